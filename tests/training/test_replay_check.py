"""At its first evaluation, a run warns if its env is not deterministic; the check does not change the results."""

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
ON_BACKENDS = pytest.mark.parametrize("backend", [{"backend": "serial"}, {"num_workers": 2}], ids=["serial", "workers"])


class Long(Counter):
    """Episodes of 200 steps, longer than the steps that are checked."""

    def __init__(self):
        super().__init__(length=200)


class Noisy(Long):
    """Observations contain noise from an unseeded generator from the sixth step on."""

    def step(self, action):
        observation, *rest = super().step(action)
        if self.step_count > 5:
            observation[0] = np.random.default_rng().random()
        return observation, *rest


class GlobalRandom(Long):
    """Draws from Python's global generator, which a run seeds for each env and each episode."""

    def __init__(self):
        super().__init__()
        self.offset = random.random()

    def step(self, action):
        observation, reward, *rest = super().step(action)
        observation[0] = random.random() + self.offset
        return observation, reward + float(observation[0]), *rest


def train(env, backend):
    """Train; return the summary and the rewards of all evaluations."""
    result = corral.train(env, **SETTINGS, **backend)
    rows = map(json.loads, (result.run_dir / "metrics.jsonl").read_text().splitlines())
    return result.summary, [row["eval/mean_reward"] for row in rows if "eval/mean_reward" in row]


@ON_BACKENDS
@pytest.mark.parametrize(
    ("env", "warns"), [(Noisy, True), (Long, False), (GlobalRandom, None), (Stateful, False), ("CartPole-v1", False)]
)
def test_a_nondeterministic_env_gives_one_warning(env, warns, backend, capsys):
    if warns is None:  # envs in one process share the global generator, so only then it is not deterministic
        warns = "backend" in backend
    summary, _ = train(env, backend)
    assert capsys.readouterr().err.count("is not deterministic: when 64 steps of env 0") == warns
    assert summary.inexact == 0


@ON_BACKENDS
@pytest.mark.parametrize(("seconds", "warns"), [(0.4, False), (0.6, True)])
def test_steps_that_would_take_too_long_are_not_replayed(seconds, warns, backend, monkeypatch, capsys):
    """64 of 128 steps, which took 1 s in all, are to be replayed: 0.5 s in one process, 1 s in one of two workers."""
    monkeypatch.setattr(replay_check, "_MAX_SECONDS", seconds * backend.get("num_workers", 1))
    advance = Progress.advance

    def advance_one_second(progress, rollout, _):
        advance(progress, rollout, 1.0)

    monkeypatch.setattr(Progress, "advance", advance_one_second)
    train(Noisy, backend)
    assert ("is not deterministic" in capsys.readouterr().err) == warns


@ON_BACKENDS
@pytest.mark.parametrize("env", [Long, GlobalRandom, "CartPole-v1"])
def test_the_check_changes_neither_weights_nor_evaluations(env, backend, monkeypatch):
    checked, evaluations = train(env, backend)
    monkeypatch.setattr(evaluate, "check_replay", lambda run: None)
    unchecked, evaluations_without_check = train(env, backend)
    assert checked.weights_sha256 == unchecked.weights_sha256
    assert len(evaluations) == 3 and (
        evaluations == evaluations_without_check or (env is GlobalRandom and "backend" not in backend)
    )


@ON_BACKENDS
def test_an_evaluation_env_that_fails_in_the_check_is_created_again(backend, monkeypatch):
    expected = train(Long, backend)

    def fail(env, position):
        env.state = CallState.FAILED
        raise WorkerDied("the worker died")

    monkeypatch.setattr(replay_check, "_reaches", fail)
    summary, evaluations = train(Long, backend)
    assert (summary.weights_sha256, evaluations) == (expected[0].weights_sha256, expected[1])
