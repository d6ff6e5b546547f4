"""Budgets: a run ends close to the requested steps, episodes or time, and can be resumed exactly from there."""

import time

import pytest

import corral
from corral.autotune.rollout_length import fit_n_steps
from corral.config.schema import parse_config
from tests.toy_envs import Counter, Slow

SMALL = {"n_envs": 2, "n_steps": 32, "batch_size": 32, "n_epochs": 1, "eval_freq": 0, "quiet": True, "seed": 1}


@pytest.mark.parametrize(
    ("settings", "n_steps"),
    [
        ({"timesteps": 9_000}, 256),  # 10,240 steps instead of 16,384
        ({"timesteps": 20_000}, 512),
        ({"timesteps": 100_000}, 2048),
        ({"timesteps": "9e3", "batch_size": 128}, 256),
        ({"timesteps": 9_000, "batch_size": 4096}, 256),
        ({"timesteps": 10}, 16),
        ({"num_episodes": 50}, 64),
        ({"num_episodes": 1}, 16),
        ({"num_episodes": 5_000}, 2048),
        ({"num_episodes": 50, "n_envs": 1}, 512),
        ({"timesteps": 9_000, "n_envs": 3, "batch_size": 96}, 1024),
        ({"timesteps": 300, "recurrent": "gru", "sequence_length": 64}, 64),
        ({"duration": 1.0}, 2048),
    ],
)
def test_a_small_budget_gets_shorter_rollouts(settings, n_steps):
    lines = []
    assert fit_n_steps({"env": "CartPole-v1", **settings}, lines.append).n_steps == n_steps
    assert bool(lines) == (n_steps < 2048) and all(f"n_steps {n_steps} instead of 2048" in line for line in lines)


def test_an_explicit_n_steps_is_kept_and_parsing_a_config_changes_nothing(capsys):
    result = corral.train("CartPole-v1", timesteps=100, **SMALL | {"n_steps": 64})
    assert result.summary.steps == 128
    assert parse_config({"env": "CartPole-v1", "timesteps": 9_000}).n_steps == 2048


def test_a_run_ends_soon_after_its_episode_budget_is_reached():
    counts = [
        corral.train("CartPole-v1", num_episodes=50, seed=seed, eval_freq=0, quiet=True).summary.episodes
        for seed in (1, 2)
    ]
    assert all(50 <= count <= 110 for count in counts)


@pytest.mark.parametrize(("backend", "workers"), [("serial", None), ("process", 2), ("worker", 2)])
def test_a_run_that_its_duration_ends_in_the_middle_of_a_rollout_resumes_exactly(backend, workers):
    settings = SMALL | {"n_steps": 100, "batch_size": 100, "backend": backend, "num_workers": workers}
    rollout_seconds = 100 * 0.004 * (2 if backend == "serial" else 1)  # seconds that the envs sleep in a rollout
    stopped = corral.train(Slow, duration=1.5 * rollout_seconds / 3600, **settings, output_dir="stopped")
    assert stopped.summary.exit_reason == "duration" and stopped.summary.steps == 200
    resumed = corral.resume("stopped", env=Slow, quiet=True)  # the discarded rollout counts as used time
    assert resumed.summary.steps == 200
    extended = corral.resume("stopped", env=Slow, timesteps=400, quiet=True)
    uninterrupted = corral.train(Slow, timesteps=400, **settings, output_dir="uninterrupted")
    assert extended.summary.weights_sha256 == uninterrupted.summary.weights_sha256


@pytest.mark.parametrize("settings", [{"backend": "serial"}, {"num_workers": 2}, {"num_workers": 2, "overlap": True}])
def test_a_run_with_a_duration_does_not_wait_for_a_slow_rollout(settings):
    """The first rollout is quick, the next would take ten minutes. The policy is still evaluated at the end."""
    started = time.perf_counter()
    run = corral.train(SlowLater, duration=3 / 3600, **SMALL | {"eval_freq": 10**6, "eval_episodes": 1} | settings)
    assert run.summary.exit_reason == "duration" and time.perf_counter() - started < 300
    assert run.summary.eval_reward is not None and run.summary.steps >= 64


class SlowLater(Slow):
    """Its steps take ten seconds each after the first 64."""

    steps = 0

    def step(self, action):
        self.steps += 1
        if self.steps > 64:
            time.sleep(10)
        return Counter.step(self, action)
