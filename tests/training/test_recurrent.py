"""Runs of policies with a memory: they learn what others cannot, and learn the same wherever they act."""

import itertools
from pathlib import Path

import numpy as np
import pytest

import corral
from corral.core.errors import UsageError
from corral.core.seeding import EVALUATION, episode_seed
from corral.envs.factory import resolve_env
from corral.opponents import matches
from corral.opponents.frozen_policy import PolicyPlayer
from corral.opponents.matches import play_match
from corral.storage.checkpoint import newest_checkpoint
from corral.training.evaluate import EpisodePlan
from corral.training.play_episodes import play_episodes
from tests.toy_envs import BrightSquare, Counter, HighCard, HighCardWithState, MortalHighCard, Shuffled

SMALL = {
    "recurrent": "gru",
    "recurrent_size": 16,
    "n_envs": 4,
    "n_steps": 32,
    "batch_size": 64,
    "n_epochs": 2,
    "timesteps": 512,
    "eval_freq": 0,
    "tensorboard": False,
    "quiet": True,
    "seed": 3,
}
RECALL = {"delay": 5, "masked": True}
PLACES = [{"backend": "serial"}, {"backend": "worker", "num_workers": 2}, {"backend": "process", "num_workers": 2}]


def train(env, **settings):
    return corral.train(env, **{**SMALL, **settings}).summary


def weights(env, **settings):
    return train(env, **settings).weights_sha256


# ---- learning ------------------------------------------------------------------------------------------------

QUICK = {"seed": 1, "eval_freq": 10**9, "tensorboard": False, "quiet": True, "backend": "serial"}
FAST = {"recurrent_size": 64, "learning_rate_end": 0.0, "timesteps": 36_000}
RATE = {"gru": 3e-3, "lstm": 1.5e-3}  # twice that, and an LSTM soon forgets again what it had learned


def remembered(**settings):
    """The reward of an evaluation, at the end of the budget or when nearly every answer was right."""

    def stop(state):
        if state.metrics.get("rollout/ep_rew_mean", 0.0) >= 0.98:
            state.stop()

    return corral.train("toy-recall", callback=stop, **{**QUICK, **settings}).summary.eval_reward


@pytest.mark.parametrize(
    ("kind", "masked"),
    [
        ("lstm", False),
        ("gru", True),
        pytest.param("lstm", True, marks=pytest.mark.deep),
        pytest.param("gru", False, marks=pytest.mark.deep),
    ],
)
def test_a_cue_is_remembered_for_twenty_steps(kind, masked):
    assert remembered(recurrent=kind, env_kwargs={"masked": masked}, learning_rate=RATE[kind], **FAST) > 0.95


@pytest.mark.deep
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_it_is_remembered_with_its_own_settings_and_any_seed(kind, masked, seed):
    settings = {**QUICK, "recurrent": kind, "env_kwargs": {"masked": masked}, "seed": seed}
    assert corral.train("toy-recall", **settings).summary.eval_reward > 0.95


def test_without_a_memory_answers_are_guesses():
    assert 0.1 < remembered(recurrent="none", timesteps=20_480, eval_episodes=300) < 0.4


# ---- the same everywhere -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("env", "settings"),
    [
        (lambda: resolve_env("toy-recall", RECALL)(), {"recurrent": "lstm"}),
        ("toy-everything", {"normalize_obs": True, "overlap": True}),
        (lambda: BrightSquare(), {"cnn_features": 16, "timesteps": 256}),
        pytest.param(
            lambda: Counter(7, truncate=True),
            {"recurrent_size": 128, "n_envs": 5, "batch_size": 32},
            marks=pytest.mark.deep,
        ),
        pytest.param(lambda: Shuffled(), {"recurrent": "lstm"}, marks=pytest.mark.deep),
        pytest.param("envpool:CartPole-v1", {"timesteps": 1024}, marks=pytest.mark.deep),
    ],
    ids=["masked", "nested, overlapping", "pictures", "cut off, uneven", "scored", "envpool"],
)
def test_weights_do_not_depend_on_who_acts(env, settings):
    found = [weights(env, **place, **settings) for place in PLACES]
    assert len(set(found)) == 1, found


@pytest.mark.deep
def test_envs_may_move_in_the_middle_of_a_run(monkeypatch):
    shares = itertools.cycle([[range(1), range(1, 4)], [range(4), range(0)], [range(0), range(4)]])
    alone = weights("CartPole-v1", backend="serial")
    monkeypatch.setattr("corral.rollout.load_balancer.LoadBalancer.proposal", lambda balance, now: next(shares))
    assert weights("CartPole-v1", num_workers=2, adaptive=True) == alone


@pytest.mark.parametrize(
    ("settings", "places"),
    [
        ({"recurrent": "lstm", "overlap": True}, (1, 0)),
        ({"kl_ref_coef": 0.5, "kl_ref_steps": 512, "critic_warmup": 128}, (0, 2)),
    ],
    ids=["overlap", "near a reference"],
)
def test_a_resumed_run_ends_as_one_that_was_never_stopped(settings, places):
    """CartPole's episodes go on across the end of a rollout, and so does what is remembered of them."""
    whole = train("CartPole-v1", **settings)
    train("CartPole-v1", timesteps=256, output_dir="run", **settings, **PLACES[places[0]])
    memory = newest_checkpoint(Path("run/checkpoints")).checkpoint.envs["memory"]
    assert memory.shape == (4, 32 if "recurrent" in settings else 16) and memory.abs().sum() > 0
    again = corral.resume("run", timesteps=512, quiet=True, **PLACES[places[1]]).summary
    assert (again.weights_sha256, again.mean_reward) == (whole.weights_sha256, whole.mean_reward)


PLAY = {"opponent": "mixed:checkpoint=0.4,current=0.4,random=0.2", "snapshot_freq": 128, "pool_size": 2}


def test_self_play_against_policies_that_remember_goes_on_exactly():
    """An opponent's memory is that of the game, which is played again, also where an env could say where it is."""
    whole = weights(HighCard, **PLAY)
    train(HighCardWithState, timesteps=256, output_dir="run", **PLAY, **PLACES[1])
    resumed = corral.resume("run", env=HighCardWithState, timesteps=512, backend="serial", quiet=True).summary
    assert resumed.weights_sha256 == whole


@pytest.mark.deep
def test_workers_that_die_leave_no_trace_in_such_games():
    Path("deaths").mkdir()
    kwargs = {"directory": str(Path("deaths").absolute())}
    healed = train(MortalHighCard, env_kwargs=kwargs, **PLAY, **PLACES[1])
    assert healed.restarts > 0 and healed.weights_sha256 == weights(HighCard, **PLAY)


def test_two_policies_that_remember_meet_and_forget_between_games(monkeypatch):
    monkeypatch.setattr(matches, "available_cores", lambda: 1)
    train(HighCard, opponent="random", output_dir="run")
    side = corral.load("run").frozen("run")
    match = play_match(resolve_env(HighCard), side, side, 40, seed=0)
    assert match == play_match(resolve_env(HighCard), side, side, 40, seed=0)
    player = side.player()
    mask, seen = np.ones(8, np.bool_), np.ones(18, np.float32)
    first = player.for_new_game()
    for _ in range(3):
        first(seen, mask, np.random.default_rng(0))
    assert first._states.any() and not player._states.any() and not first.for_new_game()._states.any()


class Shown(HighCard):
    """Can be looked at."""

    def __init__(self, render_mode=None):
        super().__init__()
        self.metadata, self.render_mode = {"render_modes": ["ansi"]}, render_mode

    def render(self):
        return ""


def test_an_opponent_that_is_shown_forgets_between_games(monkeypatch):
    train(HighCard, opponent="random", output_dir="run")
    player, seen = corral.load("run").frozen("run").player(), []
    choose = PolicyPlayer.__call__

    def watched(player, *args):
        seen.append(bool(player._states.any()))
        return choose(player, *args)

    monkeypatch.setattr(PolicyPlayer, "__call__", watched)
    plan = EpisodePlan(episodes=3, seed=0, max_steps=50, options={"opponent": player})
    moments = play_episodes(resolve_env(Shown), None, plan, render_mode="ansi")
    assert sum(moment.done for moment in moments) == 3
    assert seen.count(False) == 3 and seen.count(True) > 3


# ---- acting outside of training ------------------------------------------------------------------------------


def test_predict_takes_and_gives_what_is_remembered():
    train("CartPole-v1", output_dir="run", timesteps=128)
    model = corral.load("run")
    seen = np.random.default_rng(0).standard_normal((5, 4), dtype=np.float32)
    action, state = model.predict(seen[0])
    assert np.shape(action) == () and state.shape == (1, 16) and state.any()
    _, both = model.predict(seen[:2], deterministic=False)
    assert both.shape == (2, 16)
    np.testing.assert_allclose(both[:1], state, atol=1e-6)
    _, later = model.predict(seen[1], state=state)
    _, for_new_game = model.predict(seen[1], state=state, episode_start=True)
    _, fresh = model.predict(seen[1])
    assert np.array_equal(for_new_game, fresh) and not np.array_equal(later, fresh)
    _, mixed = model.predict(seen[:2], state=both, episode_start=np.array([True, False]))
    np.testing.assert_allclose(mixed[:1], state, atol=1e-6)
    with pytest.raises(ValueError, match=r"state of shape \(3, 16\), expected \(2, 16\)"):
        model.predict(seen[:2], state=np.zeros((3, 16)))


def test_predict_without_a_memory_gives_none():
    train("CartPole-v1", output_dir="run", timesteps=128, recurrent="none", recurrent_size=128)
    assert corral.load("run").predict(np.zeros(4, np.float32), state=None, episode_start=True)[1] is None


def test_an_evaluation_is_what_predict_plays():
    env = {"delay": 3, "cues": 2}
    summary = train("toy-recall", env_kwargs=env, eval_freq=512, eval_episodes=20, output_dir="run")
    model, one, rewards = corral.load("run", checkpoint="latest"), corral.make_env("toy-recall", **env), []
    for episode in range(20):
        (seen, _), state, done = one.reset(seed=episode_seed(3, EVALUATION, episode)), None, False
        while not done:
            action, state = model.predict(seen, state=state)
            seen, reward, done, _, _ = one.step(action)
        rewards.append(reward)
    assert summary.eval_reward == np.mean(rewards)


# ---- what is refused -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"policy": lambda a, b: None}, "a network of your own gets no recurrent state; leave one"),
        ({"compile": True}, "a loop over steps does not compile well"),
        ({"learner": "numpy"}, "recurrent gru needs learner torch, but learner is numpy"),
        ({"sequence_length": 5}, "sequence_length 5 does not divide both n_steps 32 and the 64 steps"),
        ({"n_steps": 30, "batch_size": 24}, "have only sequences of 6 steps in common"),
        ({"learner_shares": 3, "env": BrightSquare}, "learner_shares 3 is more than the 2 sequences in a minibatch"),
        ({"recurrent": "none"}, "recurrent_size 16 has no effect without recurrent"),
        ({"expert": "miser", "env": HighCard}, "imitation learns from single steps"),
    ],
    ids=["network", "compile", "numpy", "length", "nothing in common", "shares", "size", "expert"],
)
def test_what_does_not_go_together_is_refused(settings, said):
    settings = dict(settings)
    with pytest.raises(UsageError, match=said):
        train(settings.pop("env", "CartPole-v1"), **settings)
    assert not Path("runs").exists()
