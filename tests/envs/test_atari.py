"""Atari games with the real emulator: preprocessing, determinism, saved states, settings and training."""

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
    """Take random actions; return what each step returned."""
    actions = np.random.default_rng(seed).integers(env.action_space.n, size=steps)
    return [env.step(action) for action in actions]


def same_steps(first, second):
    """Return whether two sequences of steps are equal, with observations compared as arrays."""
    return all(np.array_equal(a[0], b[0]) and a[1:] == b[1:] for a, b in zip(first, second, strict=True))


def test_the_newest_frame_equals_that_of_gymnasiums_atari_preprocessing():
    env = make_env("ALE/Breakout-v5", repeat_action_probability=0)
    kwargs = {"frameskip": 1, "repeat_action_probability": 0, "disable_env_checker": True}
    gymnasium_env = AtariPreprocessing(gym.make("ALE/Breakout-v5", **kwargs))
    gymnasium_env.reset(seed=0)
    observation, _ = env.reset(seed=1)
    assert observation.shape == (4, 84, 84) and observation.dtype == np.uint8 and find_frame_stacks(env) == {"": 4}
    assert (observation == observation[-1]).all()
    gymnasium_env.unwrapped.ale.restoreState(env.unwrapped.ale.cloneState(include_rng=True))
    for action in (2, 3, 0, 2, 2, 3):
        next_observation, reward, *_ = env.step(action)
        expected_frame, expected_reward, *_ = gymnasium_env.step(action)
        assert np.array_equal(next_observation[-1], expected_frame) and reward == expected_reward
        assert np.array_equal(next_observation[:-1], observation[1:])
        observation = next_observation


@pytest.mark.parametrize("game", ["Breakout", "Qbert"])
def test_an_episode_is_determined_by_its_seed_and_continues_exactly_from_a_saved_state(game):
    used_env, new_env = make_env(f"ALE/{game}-v5"), make_env(f"ALE/{game}-v5")
    used_env.reset(seed=5)
    play(used_env, 150)
    assert np.array_equal(used_env.reset(seed=7)[0], new_env.reset(seed=7)[0])
    assert same_steps(play(used_env, 120), play(new_env, 120))
    state = used_env.get_state()
    expected = play(used_env, 100, seed=2)
    new_env.reset(seed=9)
    play(new_env, 30)
    new_env.set_state(state)
    assert same_steps(expected, play(new_env, 100, seed=2)) and new_env.get_state() == used_env.get_state()
    used_env.reset(seed=8)
    assert not same_steps(expected, play(used_env, 100, seed=2))


def test_invalid_states_and_states_of_another_frameskip_are_refused():
    env, other = make_env("ALE/Pong-v5"), make_env("ALE/Pong-v5", frameskip=2)
    env.reset(seed=0)
    other.reset(seed=0)
    for state in (b"", b"something else", env.get_state()[:-1]):
        with pytest.raises(ValueError, match="not a state of this game"):
            env.set_state(state)
    with pytest.raises(ValueError, match="its skip is 4, here it is 2"):
        other.set_state(env.get_state())


def test_a_step_lasts_as_many_frames_as_the_frameskip():
    for kwargs, frames in (({}, 4), ({"frameskip": 2}, 2), ({"frameskip": 1}, 1)):
        env = make_env("ALE/Pong-v5", **kwargs)
        env.reset(seed=0)
        frame_number = env.unwrapped.ale.getEpisodeFrameNumber
        before = frame_number()
        play(env, 10)
        assert frame_number() - before == 10 * frames
        assert env.metadata["render_fps"] == 60 // frames


def test_episodes_start_after_a_random_number_of_no_op_frames():
    env = make_env("ALE/Pong-v5", repeat_action_probability=0)
    first_frames = set()
    for seed in range(12):
        env.reset(seed=seed)
        first_frames.add(env.unwrapped.ale.getEpisodeFrameNumber())
    assert (
        len(first_frames) > 5 and min(first_frames) >= 2 + 4 and max(first_frames) <= 30 + 4
    )  # four frames press the fire button


def test_a_lost_life_is_reported_in_info_and_the_game_is_restarted_with_fire():
    env = make_env("ALE/Breakout-v5")
    env.reset(seed=0)
    lives_left, steps, terminated = [], 0, False
    while not terminated:
        _, _, terminated, _, info = env.step(0)  # the agent never presses the fire button
        lives_left += [env.unwrapped.ale.lives()] if info.get(LIFE_LOST) else []
        steps += 1
        assert steps < 1000
    assert lives_left == [4, 3, 2, 1] and not info  # the loss of the last life terminates the episode instead


def test_an_episode_is_truncated_at_the_maximum_number_of_frames():
    env = make_env("ALE/Pong-v5", max_num_frames_per_episode=60)
    env.reset(seed=0)
    *_, (_, _, terminated, truncated, _) = play(env, 15)
    assert truncated and not terminated


def test_rendered_frames_are_in_colour():
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
def test_kwargs_that_the_atari_wrappers_cannot_use_are_refused(kwargs, message):
    with pytest.raises(UsageError, match=message):
        make_env("ALE/Pong-v5", **kwargs)


def test_an_unknown_game_is_refused_with_the_nearest_name():
    with pytest.raises(UsageError, match=r"unknown env 'ALE/Pnog-v5'.*did you mean 'ALE/Pong-v5'"):
        make_env("ALE/Pnog-v5")


def test_corral_list_atari_lists_the_games(capsys):
    assert main(["list", "atari"]) == 0
    names = capsys.readouterr().out.split()
    assert "ALE/Pong-v5" in names and len(names) > 100 and all(name.startswith("ALE/") for name in names)
    assert main(["list"]) == 0 and "ALE/Pong-v5 and a hundred others" in capsys.readouterr().out


def test_without_ale_py_the_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ale_py", None)
    with pytest.raises(UsageError, match=r'Atari games need ale-py and OpenCV: pip install "corral\[atari\]"'):
        corral.train("ALE/Pong-v5", **SMALL)


def test_atari_settings_are_recommended_unless_the_wrappers_are_off():
    settings = recommended_settings("ALE/Pong-v5", {"timesteps": 1})
    assert (settings["n_steps"], settings["batch_size"], settings["clip_reward"], settings["cnn_features"]) == (
        128,
        256,
        True,
        512,
    )
    assert "cnn_features" not in recommended_settings("ALE/Pong-v5", {"policy": "x:y"})
    assert "cnn_features" not in recommended_settings("ALE/Pong-v5", {"cnn": "impala"})
    for kwargs in ({"atari_wrappers": False}, ["atari_wrappers=no"], ["mode=1", "atari_wrappers=false"]):
        assert recommended_settings("ALE/Pong-v5", {"env_kwargs": kwargs}) == {}
    assert recommended_settings("ALE/Pong-v5", {"env_kwargs": ["mode=1", "atari_wrappers=yes"]})


def test_without_the_atari_wrappers_observations_are_unchanged():
    env = make_env("ALE/Pong-v5", atari_wrappers=False)
    assert env.observation_space.shape == (210, 160, 3) and find_frame_stacks(env) == {}


def test_no_atari_wrappers_is_a_flag_of_atari_games_only(capsys):
    assert main(["eval", "ALE/Pong-v5", "--no-atari-wrappers", "--episodes", "1", "--max-steps", "2"]) == 0
    assert "frame_number" in capsys.readouterr().out  # only the env without wrappers reports it
    assert main(["train", "CartPole-v1", "--no-atari-wrappers"]) == 2
    assert "--no-atari-wrappers is a flag of ALE/..., not of CartPole-v1" in capsys.readouterr().err


def kill_a_worker(state):
    if state.iteration == 1:
        os.kill(multiprocessing.active_children()[0].pid, signal.SIGKILL)


def test_a_resumed_run_in_which_a_worker_died_has_the_weights_of_a_serial_run():
    game = {"env_kwargs": {"max_num_frames_per_episode": 120}}
    serial = corral.train("ALE/Breakout-v5", **SMALL, **game, backend="serial")
    workers = {"backend": "worker", "num_workers": 2, "parallel_start_method": "fork", "callback": kill_a_worker}
    first_part = corral.train("ALE/Breakout-v5", **{**SMALL, "timesteps": 64}, **game, **workers, output_dir="run")
    resumed = corral.resume("run", timesteps=96, quiet=True)
    assert first_part.summary.steps == 64 and first_part.summary.restarts == 1 and resumed.summary.steps == 96
    assert serial.summary.episodes > 0 and resumed.summary.weights_sha256 == serial.summary.weights_sha256
