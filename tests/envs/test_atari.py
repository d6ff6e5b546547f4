"""Atari games, with the real emulator: what a step is, what is shown, and that nothing but the seed decides."""

import multiprocessing
import os
import signal
import sys

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.wrappers import AtariPreprocessing

import corral
from corral.cli.main import main
from corral.core.errors import UsageError
from corral.core.frame_stacks import find_frame_stacks
from corral.core.types import LIFE_LOST
from corral.envs.factory import make_env
from corral.envs.registry import recommended_settings

pytest.importorskip("ale_py")
SMALL = {
    "n_envs": 2,
    "n_steps": 16,
    "batch_size": 32,
    "n_epochs": 1,
    "timesteps": 96,
    "cnn_features": 16,
    "seed": 3,
    "eval_freq": 0,
    "tensorboard": False,
    "quiet": True,
}


def play(env, steps, seed=0):
    actions = np.random.default_rng(seed).integers(env.action_space.n, size=steps)
    return [env.step(action) for action in actions]


def same(one, two):
    return all(np.array_equal(a[0], b[0]) and a[1:] == b[1:] for a, b in zip(one, two, strict=True))


def test_the_newest_frame_is_that_of_gymnasiums_wrapper():
    ours = make_env("ALE/Breakout-v5", repeat_action_probability=0)
    kwargs = {"frameskip": 1, "repeat_action_probability": 0, "disable_env_checker": True}
    theirs = AtariPreprocessing(gym.make("ALE/Breakout-v5", **kwargs))
    theirs.reset(seed=0)
    shown, _ = ours.reset(seed=1)
    assert shown.shape == (4, 84, 84) and shown.dtype == np.uint8 and find_frame_stacks(ours) == {"": 4}
    assert (shown == shown[-1]).all()
    theirs.unwrapped.ale.restoreState(ours.unwrapped.ale.cloneState(include_rng=True))
    before = shown
    for action in (2, 3, 0, 2, 2, 3):
        mine, reward, *_ = ours.step(action)
        frame, other, *_ = theirs.step(action)
        assert np.array_equal(mine[-1], frame) and reward == other
        assert np.array_equal(mine[:-1], before[1:])
        before = mine


@pytest.mark.parametrize("game", ["Breakout", "Qbert"])
def test_an_episode_follows_from_its_seed_and_states_are_exact(game):
    used, new = make_env(f"ALE/{game}-v5"), make_env(f"ALE/{game}-v5")
    used.reset(seed=5)
    play(used, 150)
    assert np.array_equal(used.reset(seed=7)[0], new.reset(seed=7)[0])
    assert same(play(used, 120), play(new, 120))
    state = used.get_state()
    expected = play(used, 100, seed=2)
    new.reset(seed=9)
    play(new, 30)
    new.set_state(state)
    assert same(expected, play(new, 100, seed=2)) and new.get_state() == used.get_state()
    used.reset(seed=8)
    assert not same(expected, play(used, 100, seed=2))


def test_other_states_are_refused():
    env, other = make_env("ALE/Pong-v5"), make_env("ALE/Pong-v5", frameskip=2)
    env.reset(seed=0)
    other.reset(seed=0)
    for state in (b"", b"something else", env.get_state()[:-1]):
        with pytest.raises(ValueError, match="not a state of this game"):
            env.set_state(state)
    with pytest.raises(ValueError, match="its skip is 4, here it is 2"):
        other.set_state(env.get_state())


def test_a_step_is_so_many_frames():
    for kwargs, frames in (({}, 4), ({"frameskip": 2}, 2), ({"frameskip": 1}, 1)):
        env = make_env("ALE/Pong-v5", **kwargs)
        env.reset(seed=0)
        count = env.unwrapped.ale.getEpisodeFrameNumber
        before = count()
        play(env, 10)
        assert count() - before == 10 * frames
        assert env.metadata["render_fps"] == 60 // frames


def test_games_begin_at_different_moments():
    env = make_env("ALE/Pong-v5", repeat_action_probability=0)
    begun = set()
    for seed in range(12):
        env.reset(seed=seed)
        begun.add(env.unwrapped.ale.getEpisodeFrameNumber())
    assert len(begun) > 5 and min(begun) >= 2 + 4 and max(begun) <= 30 + 4  # four for the fire button


def test_a_lost_life_is_told_and_the_next_ball_is_served():
    env = make_env("ALE/Breakout-v5")
    env.reset(seed=0)
    told, steps, over = [], 0, False
    while not over:
        _, _, over, _, info = env.step(0)  # never the fire button
        told += [(steps, env.unwrapped.ale.lives())] if info.get(LIFE_LOST) else []
        steps += 1
        assert steps < 1000
    assert [lives for _, lives in told] == [4, 3, 2, 1] and not info  # the last one ends the game


def test_frames_that_a_game_may_last_cut_it_off():
    env = make_env("ALE/Pong-v5", max_num_frames_per_episode=60)
    env.reset(seed=0)
    *_, (_, _, terminated, truncated, _) = play(env, 15)
    assert truncated and not terminated


def test_pictures_of_the_game_are_in_colour():
    env = make_env("ALE/Pong-v5", render_mode="rgb_array")
    env.reset(seed=0)
    assert env.render().shape == (210, 160, 3)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"obs_type": "ram"}, "obs_type 'ram' cannot be used with the Atari wrappers.*add --no-atari-wrappers"),
        ({"max_episode_steps": 5}, "max_episode_steps 5 cannot be used .* max_num_frames_per_episode instead"),
        ({"continuous": True}, "continuous True cannot be used"),
        ({"frameskip": (2, 5)}, r"frameskip \(2, 5\): should be a whole number"),
        ({"frameskip": 0}, "frameskip 0: should be a whole number of frames, at least 1"),
        ({"repeat_action_probability": 1}, "repeat_action_probability 1: should be from 0"),
        ({"atari_wrappers": "perhaps"}, "atari_wrappers 'perhaps': should be true or false"),
    ],
)
def test_what_does_not_fit_is_refused(kwargs, message):
    with pytest.raises(UsageError, match=message):
        make_env("ALE/Pong-v5", **kwargs)


def test_unknown_games_are_named():
    with pytest.raises(UsageError, match=r"unknown env 'ALE/Pnog-v5'.*did you mean 'ALE/Pong-v5'"):
        make_env("ALE/Pnog-v5")


def test_games_are_listed(capsys):
    assert main(["list", "atari"]) == 0
    listed = capsys.readouterr().out.split()
    assert "ALE/Pong-v5" in listed and len(listed) > 100 and all(name.startswith("ALE/") for name in listed)
    assert main(["list"]) == 0 and "ALE/Pong-v5 and a hundred others" in capsys.readouterr().out


def test_without_the_emulator_its_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ale_py", None)
    with pytest.raises(UsageError, match=r'Atari games need ale-py and OpenCV: pip install "corral\[atari\]"'):
        corral.train("ALE/Pong-v5", **SMALL)


def test_settings_are_those_of_atari_unless_the_game_is_as_it_is():
    own = recommended_settings("ALE/Pong-v5", {"timesteps": 1})
    assert (own["n_steps"], own["batch_size"], own["clip_reward"], own["cnn_features"]) == (128, 256, True, 512)
    assert "cnn_features" not in recommended_settings("ALE/Pong-v5", {"policy": "x:y"})
    assert "cnn_features" not in recommended_settings("ALE/Pong-v5", {"cnn": "impala"})
    for kwargs in ({"atari_wrappers": False}, ["atari_wrappers=no"], ["mode=1", "atari_wrappers=false"]):
        assert recommended_settings("ALE/Pong-v5", {"env_kwargs": kwargs}) == {}
    assert recommended_settings("ALE/Pong-v5", {"env_kwargs": ["mode=1", "atari_wrappers=yes"]})


def test_no_atari_wrappers():
    plain = make_env("ALE/Pong-v5", atari_wrappers=False)
    assert plain.observation_space.shape == (210, 160, 3) and find_frame_stacks(plain) == {}


def test_the_flag_is_of_atari_games_alone(capsys):
    assert main(["eval", "ALE/Pong-v5", "--no-atari-wrappers", "--episodes", "1", "--max-steps", "2"]) == 0
    assert "frame_number" in capsys.readouterr().out  # which only Gymnasium's env tells
    assert main(["train", "CartPole-v1", "--no-atari-wrappers"]) == 2
    assert "--no-atari-wrappers is a flag of ALE/..., not of CartPole-v1" in capsys.readouterr().err


def kill_one(state):
    if state.iteration == 1:
        os.kill(multiprocessing.active_children()[0].pid, signal.SIGKILL)


def test_training_is_the_same_for_any_workers_also_when_one_dies_and_goes_on_exactly():
    game = {"env_kwargs": {"max_num_frames_per_episode": 120}}
    whole = corral.train("ALE/Breakout-v5", **SMALL, **game, backend="serial")
    workers = {"backend": "worker", "num_workers": 2, "parallel_start_method": "fork", "callback": kill_one}
    part = corral.train("ALE/Breakout-v5", **{**SMALL, "timesteps": 64}, **game, **workers, output_dir="run")
    again = corral.resume("run", timesteps=96, quiet=True)
    assert part.summary.steps == 64 and part.summary.restarts == 1 and again.summary.steps == 96
    assert whole.summary.episodes > 0 and again.summary.weights_sha256 == whole.summary.weights_sha256
