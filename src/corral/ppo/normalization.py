"""Running statistics of observations and returns: fixed while a rollout is collected, updated after it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["ReturnScaler", "RunningMoments"]

Array = npt.NDArray[Any]
_EPSILON = 1e-8
CLIP = 10.0
"""Scaled rewards are clipped to this, as by Stable-Baselines3's VecNormalize."""


class RunningMoments:
    """Mean and variance of all rows so far, in double precision (Chan, Golub and LeVeque 1983, parallel update)."""

    def __init__(self, shape: tuple[int, ...] = ()) -> None:
        self.mean: Array = np.zeros(shape)
        self.variance: Array = np.ones(shape)
        self.count = 0

    def merge(self, rows: Array) -> None:
        """Include ``rows`` [B, *shape] in the statistics."""
        rows = rows.astype(np.float64)
        mean, variance, count = rows.mean(0), rows.var(0), len(rows)
        total = self.count + count
        shift = mean - self.mean
        squares = self.variance * self.count + variance * count + shift**2 * (self.count * count / total)
        self.mean, self.variance, self.count = self.mean + shift * (count / total), squares / total, total

    @property
    def deviation(self) -> Array:
        """Standard deviation, never zero."""
        return np.sqrt(self.variance + _EPSILON)

    def state(self) -> dict[str, Any]:
        """Return plain data for a checkpoint; JSON keeps floats exactly."""
        return {"mean": self.mean.tolist(), "variance": self.variance.tolist(), "count": self.count}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Set the statistics to those that ``state`` returned."""
        mean, variance = (_parse_array(state[name], self.mean.shape, name) for name in ("mean", "variance"))
        count = int(state["count"])
        if (variance < 0).any() or count < 0:
            raise ValueError("a variance or a count is negative")
        self.mean, self.variance, self.count = mean, variance, count


class ReturnScaler:
    """Divides rewards by the running standard deviation of the discounted return.

    As Stable-Baselines3's VecNormalize does; Engstrom et al. 2020 (arXiv:2005.12729) study this implementation
    detail of PPO, "reward scaling".
    """

    def __init__(self, n_envs: int, gamma: float) -> None:
        self.moments = RunningMoments()
        self.gamma = gamma
        self._returns: Array = np.zeros(n_envs)  # [N] discounted, of the current episodes

    def scale(self, rewards: Array, done: Array) -> npt.NDArray[np.float32]:
        """Return scaled rewards [T, N], after the rollout's returns are included in the statistics.

        ``done`` [T, N] marks the last steps of episodes.
        """
        returns = np.empty(rewards.shape)
        for t in range(len(rewards)):
            self._returns = self._returns * self.gamma + rewards[t]
            returns[t] = self._returns
            self._returns = np.where(done[t], 0.0, self._returns)
        self.moments.merge(returns.T.reshape(-1))  # [N * T], env by env
        return np.clip(rewards / self.moments.deviation, -CLIP, CLIP).astype(np.float32)

    def state(self) -> dict[str, Any]:
        """Return plain data for a checkpoint."""
        return {**self.moments.state(), "return": self._returns.tolist()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Set the statistics to those that ``state`` returned."""
        self.moments.restore(state)
        self._returns = _parse_array(state["return"], self._returns.shape, "return")


def _parse_array(data: Any, shape: tuple[int, ...], name: str) -> Array:
    """Return plain data as an array; raise ValueError unless it has this shape and only finite numbers."""
    array = np.asarray(data, dtype=np.float64)
    if array.shape != shape or not np.isfinite(array).all():
        raise ValueError(f"{name} should be finite numbers of shape {shape}, not of shape {array.shape}")
    return array
