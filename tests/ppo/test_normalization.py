"""Running moments of observations and the scale of rewards."""

import json

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from corral.ppo.normalization import ReturnScaler, RunningMoments


@given(st.lists(st.integers(1, 20), min_size=1, max_size=5), st.integers(0, 1000))
def test_moments_merged_from_parts_equal_those_of_all_rows(sizes, seed):
    rows = np.random.default_rng(seed).normal(3, 5, (sum(sizes), 2))
    moments = RunningMoments((2,))
    for part in np.split(rows, np.cumsum(sizes)[:-1]):
        moments.merge(part)
    np.testing.assert_allclose(moments.mean, rows.mean(0), atol=1e-9)
    np.testing.assert_allclose(moments.variance, rows.var(0), atol=1e-9)
    restored = RunningMoments((2,))
    restored.restore(json.loads(json.dumps(moments.state())))
    assert np.array_equal(restored.mean, moments.mean) and np.array_equal(restored.variance, moments.variance)


def test_scaled_returns_have_a_standard_deviation_near_one():
    rng = np.random.default_rng(0)
    scaler = ReturnScaler(4, gamma=0.9)
    for _ in range(20):
        rewards = rng.normal(0, 50, (64, 4)).astype(np.float32)
        done = rng.random((64, 4)) < 0.05
        scaled = scaler.scale(rewards, done)
    running, returns = np.zeros(4), []
    for t in range(64):
        running = running * 0.9 + scaled[t]
        returns.append(running)
        running = np.where(done[t], 0, running)
    assert 0.7 < np.std(returns) < 1.3
    assert np.corrcoef(rewards.ravel(), scaled.ravel())[0, 1] > 0.999


def test_a_restored_scaler_continues_bit_for_bit():
    rng = np.random.default_rng(0)
    original, restored = ReturnScaler(2, 0.99), ReturnScaler(2, 0.99)
    for _ in range(3):
        rewards, done = rng.normal(size=(8, 2)), rng.random((8, 2)) < 0.2
        restored.restore(json.loads(json.dumps(original.state())))
        assert np.array_equal(original.scale(rewards, done), restored.scale(rewards, done))
