"""Budgets: a run ends near the steps, the episodes or the time that were asked for, and goes on from there exactly."""

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


def test_what_was_given_is_kept(capsys):
    result = corral.train("CartPole-v1", timesteps=100, **SMALL | {"n_steps": 64})
    assert result.summary.steps == 128
    assert parse_config({"env": "CartPole-v1", "timesteps": 9_000}).n_steps == 2048


def test_an_episode_budget_ends_soon_after_it_is_reached():
    counts = [
        corral.train("CartPole-v1", num_episodes=50, seed=seed, eval_freq=0, quiet=True).summary.episodes
        for seed in (1, 2)
    ]
    assert all(50 <= count <= 110 for count in counts)


@pytest.mark.parametrize(("backend", "workers"), [("serial", None), ("process", 2), ("worker", 2)])
def test_a_duration_ends_in_the_middle_of_a_rollout_and_the_run_goes_on_exactly(backend, workers):
    settings = SMALL | {"n_steps": 100, "batch_size": 100, "backend": backend, "num_workers": workers}
    rollout = 100 * 0.004 * (2 if backend == "serial" else 1)  # seconds that the envs sleep in each
    cut = corral.train(Slow, duration=1.5 * rollout / 3600, **settings, output_dir="cut")
    assert cut.summary.exit_reason == "duration" and cut.summary.steps == 200
    again = corral.resume("cut", env=Slow, quiet=True)  # the time of the discarded rollout is spent
    assert again.summary.steps == 200
    longer = corral.resume("cut", env=Slow, timesteps=400, quiet=True)
    whole = corral.train(Slow, timesteps=400, **settings, output_dir="whole")
    assert longer.summary.weights_sha256 == whole.summary.weights_sha256


@pytest.mark.parametrize("settings", [{"backend": "serial"}, {"num_workers": 2}, {"num_workers": 2, "overlap": True}])
def test_a_duration_does_not_wait_for_a_slow_rollout(settings):
    """The first rollout is quick, the next would take ten minutes; the policy is evaluated all the same."""
    started = time.perf_counter()
    run = corral.train(SlowLater, duration=3 / 3600, **SMALL | {"eval_freq": 10**6, "eval_episodes": 1} | settings)
    assert run.summary.exit_reason == "duration" and time.perf_counter() - started < 300
    assert run.summary.eval_reward is not None and run.summary.steps >= 64


class SlowLater(Slow):
    """Its later episodes have slow steps."""

    steps = 0

    def step(self, action):
        self.steps += 1
        if self.steps > 64:
            time.sleep(10)
        return Counter.step(self, action)
