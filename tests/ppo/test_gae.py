import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.ppo.gae import estimate_advantages

ARGS = ("rewards", "values", "terminated", "truncated", "final_values", "last_values")


def example(seed, steps=12, envs=3):
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


def by_definition(e, gamma, lam):
    """Each advantage as the sum it is defined by, one env and step at a time."""
    steps, envs = e["rewards"].shape
    out = np.zeros((steps, envs))
    for n in range(envs):
        for t in range(steps):
            weight = 1.0
            for k in range(t, steps):
                following = e["last_values"][n] if k == steps - 1 else e["values"][k + 1, n]
                if e["truncated"][k, n]:
                    following = e["final_values"][k, n]
                if e["terminated"][k, n]:
                    following = 0.0
                out[t, n] += weight * (e["rewards"][k, n] + gamma * following - e["values"][k, n])
                if e["terminated"][k, n] or e["truncated"][k, n]:
                    break
                weight *= gamma * lam
    return out


@given(st.integers(0, 10_000), st.floats(0, 1), st.floats(0, 1))
def test_advantages_are_what_the_definition_says(seed, gamma, lam):
    e = example(seed)
    found = estimate_advantages(*(e[name] for name in ARGS), gamma, lam)
    np.testing.assert_allclose(found.advantages, by_definition(e, gamma, lam), atol=2e-4)
    np.testing.assert_allclose(found.returns, found.advantages + e["values"], atol=1e-6)
    assert found.advantages.dtype == np.float32


def test_agrees_with_stable_baselines3():
    import torch
    from gymnasium import spaces
    from stable_baselines3.common.buffers import RolloutBuffer

    e = example(1)
    gamma, lam = 0.97, 0.9
    buffer = RolloutBuffer(12, spaces.Box(-1, 1, (1,)), spaces.Discrete(2), gamma=gamma, gae_lambda=lam, n_envs=3)
    # SB3 adds the bootstrapped value of a truncated step to its reward and then treats it as terminated
    done = e["terminated"] | e["truncated"]
    buffer.rewards = e["rewards"] + gamma * np.where(e["truncated"], e["final_values"], 0).astype(np.float32)
    buffer.values = e["values"]
    buffer.episode_starts = np.vstack([np.zeros((1, 3)), done[:-1]]).astype(np.float32)
    buffer.compute_returns_and_advantage(torch.from_numpy(e["last_values"]), done[-1])
    found = estimate_advantages(*(e[name] for name in ARGS), gamma, lam)
    np.testing.assert_allclose(found.advantages, buffer.advantages, atol=1e-5)
    np.testing.assert_allclose(found.returns, buffer.returns, atol=1e-5)


def test_envs_do_not_mix():
    e = example(3)
    whole = estimate_advantages(*(e[name] for name in ARGS), 0.99, 0.95).advantages
    for n in range(3):
        alone = {name: e[name][..., n : n + 1] for name in ARGS}
        assert np.array_equal(
            estimate_advantages(*(alone[name] for name in ARGS), 0.99, 0.95).advantages[:, 0], whole[:, n]
        )


@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_nothing_flows_back_across_an_end(end):
    e = example(4)
    e["terminated"][:], e["truncated"][:] = False, False
    e[end][5] = True
    before = estimate_advantages(*(e[name] for name in ARGS), 0.99, 0.95).advantages[:6].copy()
    e["rewards"][6:] += 100
    assert np.array_equal(before, estimate_advantages(*(e[name] for name in ARGS), 0.99, 0.95).advantages[:6])
