"""Running statistics of observations and returns: frozen while a rollout is collected, merged after it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["ReturnScaler", "RunningMoments"]

Array = npt.NDArray[Any]
_EPSILON = 1e-8
CLIP = 10.0


class RunningMoments:
    """Mean and variance of everything seen so far, in double precision (Chan's parallel update)."""

    def __init__(self, shape: tuple[int, ...] = ()) -> None:
        self.mean: Array = np.zeros(shape)
        self.variance: Array = np.ones(shape)
        self.count = 0

    def merge(self, rows: Array) -> None:
        """Take in ``rows`` [B, *shape]."""
        rows = rows.astype(np.float64)
        mean, variance, count = rows.mean(0), rows.var(0), len(rows)
        total = self.count + count
        shift = mean - self.mean
        spread = self.variance * self.count + variance * count + shift**2 * (self.count * count / total)
        self.mean, self.variance, self.count = self.mean + shift * (count / total), spread / total, total

    @property
    def deviation(self) -> Array:
        """Standard deviation, never zero."""
        return np.sqrt(self.variance + _EPSILON)

    def state(self) -> dict[str, Any]:
        """Plain data for a checkpoint; floats survive JSON exactly."""
        return {"mean": self.mean.tolist(), "variance": self.variance.tolist(), "count": self.count}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from ``state``."""
        mean, variance = (_numbers_like(self.mean, state[name], name) for name in ("mean", "variance"))
        count = int(state["count"])
        if (variance < 0).any() or count < 0:
            raise ValueError("a variance or a count is negative")
        self.mean, self.variance, self.count = mean, variance, count


class ReturnScaler:
    """Divides rewards by the running deviation of the discounted return, as Stable-Baselines3's VecNormalize does."""

    def __init__(self, n_envs: int, gamma: float) -> None:
        self.moments = RunningMoments()
        self.gamma = gamma
        self._return: Array = np.zeros(n_envs)

    def scale(self, rewards: Array, done: Array) -> npt.NDArray[np.float32]:
        """Scaled rewards [T, N]; the rollout's own returns are part of the statistics."""
        returns = np.empty(rewards.shape)
        for t in range(len(rewards)):
            self._return = self._return * self.gamma + rewards[t]
            returns[t] = self._return
            self._return = np.where(done[t], 0.0, self._return)
        self.moments.merge(returns.T.reshape(-1))  # env by env
        return np.clip(rewards / self.moments.deviation, -CLIP, CLIP).astype(np.float32)

    def state(self) -> dict[str, Any]:
        """Plain data for a checkpoint."""
        return {**self.moments.state(), "return": self._return.tolist()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from ``state``."""
        self.moments.restore(state)
        self._return = _numbers_like(self._return, state["return"], "return")


def _numbers_like(known: Array, given: Any, name: str) -> Array:
    """Plain data as an array of the same shape as a known one, with only finite numbers."""
    array = np.asarray(given, dtype=np.float64)
    if array.shape != known.shape or not np.isfinite(array).all():
        raise ValueError(f"{name} should be finite numbers of shape {known.shape}, not of shape {array.shape}")
    return array
