"""Recurrent policies: they solve tasks that need memory of past steps, and every backend gives the same weights."""

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
BACKENDS = [{"backend": "serial"}, {"backend": "worker", "num_workers": 2}, {"backend": "process", "num_workers": 2}]


def train(env, **settings):
    return corral.train(env, **{**SMALL, **settings}).summary


def weights(env, **settings):
    return train(env, **settings).weights_sha256


# ---- learning --------------------------------------------------------------------------------------------------------

QUICK = {"seed": 1, "eval_freq": 10**9, "tensorboard": False, "quiet": True, "backend": "serial"}
FAST = {"recurrent_size": 64, "learning_rate_end": 0.0, "timesteps": 36_000}
RATE = {"gru": 3e-3, "lstm": 1.5e-3}  # with twice that rate, an LSTM soon loses what it has learned


def recall_reward(**settings):
    """Train on toy-recall until the budget is used up or nearly every answer is right; return the evaluation reward."""

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
    settings = {"recurrent": kind, "env_kwargs": {"masked": masked}, "learning_rate": RATE[kind], **FAST}
    # On each type of processor, some seeds learn more slowly than others.
    assert any(recall_reward(**settings, seed=seed) > 0.95 for seed in (1, 2, 3))


@pytest.mark.deep
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_recall_is_solved_with_the_default_settings_of_the_env_for_every_seed(kind, masked, seed):
    settings = {**QUICK, "recurrent": kind, "env_kwargs": {"masked": masked}, "seed": seed}
    assert corral.train("toy-recall", **settings).summary.eval_reward > 0.95


def test_a_policy_without_recurrence_only_guesses():
    assert 0.1 < recall_reward(recurrent="none", timesteps=20_480, eval_episodes=300) < 0.4


# ---- the same weights on every backend -------------------------------------------------------------------------------


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
    ids=["masked", "nested, overlap", "images", "truncated, 5 envs", "scored actions", "envpool"],
)
def test_weights_do_not_depend_on_the_backend(env, settings):
    hashes = [weights(env, **backend, **settings) for backend in BACKENDS]
    assert len(set(hashes)) == 1, hashes


@pytest.mark.deep
def test_moving_envs_between_workers_does_not_change_the_weights(monkeypatch):
    assignments = itertools.cycle([[range(1), range(1, 4)], [range(4), range(0)], [range(0), range(4)]])
    serial_weights = weights("CartPole-v1", backend="serial")
    monkeypatch.setattr(
        "corral.rollout.load_balancer.LoadBalancer.proposal", lambda balancer, assignment: next(assignments)
    )
    assert weights("CartPole-v1", num_workers=2, adaptive=True) == serial_weights


@pytest.mark.parametrize(
    ("settings", "backends"),
    [
        ({"recurrent": "lstm", "overlap": True}, (1, 0)),
        ({"kl_ref_coef": 0.5, "kl_ref_steps": 512, "critic_warmup": 128}, (0, 2)),
    ],
    ids=["overlap", "KL reference"],
)
def test_a_resumed_run_equals_an_uninterrupted_run(settings, backends):
    """CartPole's episodes continue across the end of a rollout, so checkpoints must contain the recurrent state."""
    uninterrupted = train("CartPole-v1", **settings)
    train("CartPole-v1", timesteps=256, output_dir="run", **settings, **BACKENDS[backends[0]])
    recurrent_state = newest_checkpoint(Path("run/checkpoints")).checkpoint.envs["memory"]
    assert recurrent_state.shape == (4, 32 if "recurrent" in settings else 16) and recurrent_state.abs().sum() > 0
    resumed = corral.resume("run", timesteps=512, quiet=True, **BACKENDS[backends[1]]).summary
    assert (resumed.weights_sha256, resumed.mean_reward) == (uninterrupted.weights_sha256, uninterrupted.mean_reward)


SELF_PLAY = {"opponent": "mixed:checkpoint=0.4,current=0.4,random=0.2", "snapshot_freq": 128, "pool_size": 2}


def test_self_play_against_recurrent_policies_resumes_exactly():
    """Opponents' recurrent states are rebuilt by replaying the game, also for an env with ``get_state``."""
    uninterrupted = weights(HighCard, **SELF_PLAY)
    train(HighCardWithState, timesteps=256, output_dir="run", **SELF_PLAY, **BACKENDS[1])
    resumed = corral.resume("run", env=HighCardWithState, timesteps=512, backend="serial", quiet=True).summary
    assert resumed.weights_sha256 == uninterrupted


@pytest.mark.deep
def test_worker_deaths_in_self_play_do_not_change_the_weights():
    Path("deaths").mkdir()
    kwargs = {"directory": str(Path("deaths").absolute())}
    summary = train(MortalHighCard, env_kwargs=kwargs, **SELF_PLAY, **BACKENDS[1])
    assert summary.restarts > 0 and summary.weights_sha256 == weights(HighCard, **SELF_PLAY)


def test_matches_of_recurrent_policies_are_reproducible_and_reset_the_state_between_games(monkeypatch):
    monkeypatch.setattr(matches, "available_cores", lambda: 1)
    train(HighCard, opponent="random", output_dir="run")
    policy = corral.load("run").frozen("run")
    result = play_match(resolve_env(HighCard), policy, policy, 40, seed=0)
    assert result == play_match(resolve_env(HighCard), policy, policy, 40, seed=0)
    player = policy.player()
    mask, observation = np.ones(8, np.bool_), np.ones(18, np.float32)
    first_game = player.for_new_game()
    for _ in range(3):
        first_game(observation, mask, np.random.default_rng(0))
    assert first_game._states.any() and not player._states.any() and not first_game.for_new_game()._states.any()


class RenderedHighCard(HighCard):
    """HighCard with a render mode."""

    def __init__(self, render_mode=None):
        super().__init__()
        self.metadata, self.render_mode = {"render_modes": ["ansi"]}, render_mode

    def render(self):
        return ""


def test_an_opponent_in_rendered_games_resets_its_state_between_games(monkeypatch):
    train(HighCard, opponent="random", output_dir="run")
    player, has_state = corral.load("run").frozen("run").player(), []
    choose = PolicyPlayer.__call__

    def record_and_choose(player, *args):
        has_state.append(bool(player._states.any()))
        return choose(player, *args)

    monkeypatch.setattr(PolicyPlayer, "__call__", record_and_choose)
    plan = EpisodePlan(episodes=3, seed=0, max_steps=50, options={"opponent": player})
    steps = play_episodes(resolve_env(RenderedHighCard), None, plan, render_mode="ansi")
    assert sum(step.done for step in steps) == 3
    assert has_state.count(False) == 3 and has_state.count(True) > 3


# ---- prediction and evaluation ---------------------------------------------------------------------------------------


def test_predict_takes_and_returns_the_recurrent_state():
    train("CartPole-v1", output_dir="run", timesteps=128)
    model = corral.load("run")
    observations = np.random.default_rng(0).standard_normal((5, 4), dtype=np.float32)
    action, state = model.predict(observations[0])
    assert np.shape(action) == () and state.shape == (1, 16) and state.any()
    _, batch_states = model.predict(observations[:2], deterministic=False)
    assert batch_states.shape == (2, 16)
    np.testing.assert_allclose(batch_states[:1], state, atol=1e-6)
    _, next_state = model.predict(observations[1], state=state)
    _, restarted_state = model.predict(observations[1], state=state, episode_start=True)
    _, fresh_state = model.predict(observations[1])
    assert np.array_equal(restarted_state, fresh_state) and not np.array_equal(next_state, fresh_state)
    _, mixed_states = model.predict(observations[:2], state=batch_states, episode_start=np.array([True, False]))
    np.testing.assert_allclose(mixed_states[:1], state, atol=1e-6)
    with pytest.raises(ValueError, match=r"state of shape \(3, 16\), expected \(2, 16\)"):
        model.predict(observations[:2], state=np.zeros((3, 16)))


def test_predict_of_a_policy_without_recurrence_returns_no_state():
    train("CartPole-v1", output_dir="run", timesteps=128, recurrent="none", recurrent_size=128)
    assert corral.load("run").predict(np.zeros(4, np.float32), state=None, episode_start=True)[1] is None


def test_evaluation_chooses_the_same_actions_as_predict():
    env_kwargs = {"delay": 3, "cues": 2}
    summary = train("toy-recall", env_kwargs=env_kwargs, eval_freq=512, eval_episodes=20, output_dir="run")
    model, env, rewards = corral.load("run", checkpoint="latest"), corral.make_env("toy-recall", **env_kwargs), []
    for episode in range(20):
        (observation, _), state, done = env.reset(seed=episode_seed(3, EVALUATION, episode)), None, False
        while not done:
            action, state = model.predict(observation, state=state)
            observation, reward, done, _, _ = env.step(action)
        rewards.append(reward)
    assert summary.eval_reward == np.mean(rewards)


# ---- refused settings ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
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
    ids=[
        "custom network",
        "compile",
        "numpy",
        "sequence length",
        "no common sequence length",
        "shares",
        "size",
        "expert",
    ],
)
def test_settings_that_contradict_recurrent_are_refused(settings, message):
    settings = dict(settings)
    with pytest.raises(UsageError, match=message):
        train(settings.pop("env", "CartPole-v1"), **settings)
    assert not Path("runs").exists()
