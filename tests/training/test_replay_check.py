"""A run says at its first evaluation if its env does not repeat itself, and changes nothing by looking."""

import json
import random

import numpy as np
import pytest

import corral
from corral.core.errors import WorkerDied
from corral.training import evaluate, replay_check
from corral.training.progress import Progress
from corral.vec.api import CallState
from tests.toy_envs import Counter, Stateful

SETTINGS = {
    "n_envs": 2,
    "n_steps": 64,
    "batch_size": 64,
    "n_epochs": 1,
    "timesteps": 384,
    "eval_freq": 128,
    "eval_episodes": 2,
    "tensorboard": False,
    "seed": 3,
}
WAYS = pytest.mark.parametrize("way", [{"backend": "serial"}, {"num_workers": 2}], ids=["serial", "workers"])


class Long(Counter):
    def __init__(self):
        super().__init__(length=200)


class Noisy(Long):
    """Shows noise without a seed from its sixth step on."""

    def step(self, action):
        observation, *rest = super().step(action)
        if self.step_count > 5:
            observation[0] = np.random.default_rng().random()
        return observation, *rest


class Careless(Long):
    """Draws from Python's global generator, which a run seeds for each env and each episode."""

    def __init__(self):
        super().__init__()
        self.offset = random.random()

    def step(self, action):
        observation, reward, *rest = super().step(action)
        observation[0] = random.random() + self.offset
        return observation, reward + float(observation[0]), *rest


def trained(env, way):
    """A run's weights and evaluations."""
    result = corral.train(env, **SETTINGS, **way)
    rows = map(json.loads, (result.run_dir / "metrics.jsonl").read_text().splitlines())
    return result.summary, [row["eval/mean_reward"] for row in rows if "eval/mean_reward" in row]


@WAYS
@pytest.mark.parametrize(
    ("env", "warns"), [(Noisy, True), (Long, False), (Careless, None), (Stateful, False), ("CartPole-v1", False)]
)
def test_an_env_that_does_not_repeat_itself_is_told_once(env, warns, way, capsys):
    if warns is None:  # in one process its envs share a generator
        warns = "backend" in way
    summary, _ = trained(env, way)
    assert capsys.readouterr().err.count("is not deterministic: when 64 steps of env 0") == warns
    assert summary.inexact == 0


@WAYS
@pytest.mark.parametrize(("seconds", "warns"), [(0.4, False), (0.6, True)])
def test_what_would_take_long_is_not_played_again(seconds, warns, way, monkeypatch, capsys):
    """64 steps of env 0, of 128 steps that took 1 s in all: half a second in one process, 1 s of one of two workers."""
    monkeypatch.setattr(replay_check, "_MAX_SECONDS", seconds * way.get("num_workers", 1))
    advance = Progress.advance

    def take_a_second(progress, rollout, _):
        advance(progress, rollout, 1.0)

    monkeypatch.setattr(Progress, "advance", take_a_second)
    trained(Noisy, way)
    assert ("is not deterministic" in capsys.readouterr().err) == warns


@WAYS
@pytest.mark.parametrize("env", [Long, Careless, "CartPole-v1"])
def test_looking_changes_neither_weights_nor_evaluations(env, way, monkeypatch):
    seen, evaluations = trained(env, way)
    monkeypatch.setattr(evaluate, "check_replay", lambda run: None)
    unseen, others = trained(env, way)
    assert seen.weights_sha256 == unseen.weights_sha256
    assert len(evaluations) == 3 and (evaluations == others or (env is Careless and "backend" not in way))


@WAYS
def test_an_evaluation_env_that_fails_then_is_made_again(way, monkeypatch):
    expected = trained(Long, way)

    def fail(env, position):
        env.state = CallState.FAILED
        raise WorkerDied("it died")

    monkeypatch.setattr(replay_check, "_reaches", fail)
    summary, evaluations = trained(Long, way)
    assert (summary.weights_sha256, evaluations) == (expected[0].weights_sha256, expected[1])
