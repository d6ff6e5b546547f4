"""Generalized advantage estimation (GAE) equals its definition and the result of Stable-Baselines3."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.ppo.gae import estimate_advantages

ARGS = ("rewards", "values", "terminated", "truncated", "final_values", "last_values")


def random_rollout(seed, steps=12, envs=3):
    """Return a random rollout, by name of argument."""
    rng = np.random.default_rng(seed)
    terminated = rng.random((steps, envs)) < 0.15
    truncated = (rng.random((steps, envs)) < 0.15) & ~terminated
    floats = {name: rng.normal(size=(steps, envs)).astype(np.float32) for name in ("rewards", "values", "final_values")}
    return {
        **floats,
        "terminated": terminated,
        "truncated": truncated,
        "last_values": rng.normal(size=envs).astype(np.float32),
    }


def estimate(rollout, gamma=0.99, lam=0.95):
    """Estimate the advantages of a rollout that ``random_rollout`` returned."""
    return estimate_advantages(*(rollout[name] for name in ARGS), gamma, lam)


def advantages_by_definition(rollout, gamma, lam):
    """Compute each advantage as the sum that defines it, one env and one step at a time."""
    steps, envs = rollout["rewards"].shape
    advantages = np.zeros((steps, envs))
    for n in range(envs):
        for t in range(steps):
            weight = 1.0
            for k in range(t, steps):
                next_value = rollout["last_values"][n] if k == steps - 1 else rollout["values"][k + 1, n]
                if rollout["truncated"][k, n]:
                    next_value = rollout["final_values"][k, n]
                if rollout["terminated"][k, n]:
                    next_value = 0.0
                advantages[t, n] += weight * (rollout["rewards"][k, n] + gamma * next_value - rollout["values"][k, n])
                if rollout["terminated"][k, n] or rollout["truncated"][k, n]:
                    break
                weight *= gamma * lam
    return advantages


@given(st.integers(0, 10_000), st.floats(0, 1), st.floats(0, 1))
def test_advantages_equal_their_definition(seed, gamma, lam):
    rollout = random_rollout(seed)
    result = estimate(rollout, gamma, lam)
    np.testing.assert_allclose(result.advantages, advantages_by_definition(rollout, gamma, lam), atol=2e-4)
    np.testing.assert_allclose(result.returns, result.advantages + rollout["values"], atol=1e-6)
    assert result.advantages.dtype == np.float32


def test_advantages_and_returns_equal_those_of_stable_baselines3():
    import torch
    from gymnasium import spaces
    from stable_baselines3.common.buffers import RolloutBuffer

    rollout = random_rollout(1)
    gamma, lam = 0.97, 0.9
    buffer = RolloutBuffer(12, spaces.Box(-1, 1, (1,)), spaces.Discrete(2), gamma=gamma, gae_lambda=lam, n_envs=3)
    # SB3 adds the bootstrapped value of a truncated step to its reward and then treats the step as terminated.
    done = rollout["terminated"] | rollout["truncated"]
    bootstrapped = np.where(rollout["truncated"], rollout["final_values"], 0).astype(np.float32)
    buffer.rewards = rollout["rewards"] + gamma * bootstrapped
    buffer.values = rollout["values"]
    buffer.episode_starts = np.vstack([np.zeros((1, 3)), done[:-1]]).astype(np.float32)
    buffer.compute_returns_and_advantage(torch.from_numpy(rollout["last_values"]), done[-1])
    result = estimate(rollout, gamma, lam)
    np.testing.assert_allclose(result.advantages, buffer.advantages, atol=1e-5)
    np.testing.assert_allclose(result.returns, buffer.returns, atol=1e-5)


def test_advantages_of_an_env_do_not_depend_on_other_envs():
    rollout = random_rollout(3)
    all_envs = estimate(rollout).advantages
    for n in range(3):
        single_env = {name: rollout[name][..., n : n + 1] for name in ARGS}
        assert np.array_equal(estimate(single_env).advantages[:, 0], all_envs[:, n])


@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_rewards_of_the_next_episode_do_not_change_advantages(end):
    rollout = random_rollout(4)
    rollout["terminated"][:], rollout["truncated"][:] = False, False
    rollout[end][5] = True
    before = estimate(rollout).advantages[:6].copy()
    rollout["rewards"][6:] += 100
    assert np.array_equal(before, estimate(rollout).advantages[:6])
