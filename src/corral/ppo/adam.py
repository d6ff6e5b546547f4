"""Torch's Adam in numpy, on a flat vector of weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from corral.policy.mlp import MlpShape

__all__ = ["EPSILON", "Adam"]

Floats = npt.NDArray[np.float32]
EPSILON = 1e-5
"""Stable-Baselines3's, and the original implementation's."""
_BETA1, _BETA2 = np.float32(0.9), np.float32(0.999)


class Adam:
    """Moments of every weight, and how often they were updated."""

    def __init__(self, shape: MlpShape) -> None:
        self._places = shape.places()
        self._mean, self._square, self._scratch = (np.zeros(shape.size, np.float32) for _ in range(3))
        self._is_policy = np.zeros(shape.size, np.bool_)
        for name, (place, _) in self._places.items():
            self._is_policy[place] = _is_policy(name)
        self.steps = 0
        self._held = 0  # steps that left the policy out

    def step(self, weights: Floats, gradient: Floats, learning_rate: float, freeze_policy: bool = False) -> None:
        """Move the weights along the gradient; with ``freeze_policy``, that of the policy must be zero."""
        scratch = self._scratch
        self.steps += 1
        self._held += freeze_policy
        self._mean *= _BETA1
        np.multiply(gradient, np.float32(1 - _BETA1), out=scratch)
        self._mean += scratch
        self._square *= _BETA2
        np.multiply(gradient, gradient, out=scratch)
        scratch *= np.float32(1 - _BETA2)
        self._square += scratch
        np.sqrt(self._square, out=scratch)
        scratch *= self._corrected(lambda steps: 1 / np.sqrt(1 - 0.999**steps))
        scratch += np.float32(EPSILON)
        np.divide(self._mean, scratch, out=scratch)
        scratch *= self._corrected(lambda steps: learning_rate / (1 - 0.9**steps))
        weights -= scratch

    def _corrected(self, factor: Callable[[int], float]) -> np.float32 | Floats:
        """A factor that makes up for moments that began at zero; the policy's may have begun later."""
        if not self._held:
            return np.float32(factor(self.steps))
        own = self.steps - self._held
        return np.where(self._is_policy, np.float32(factor(own) if own else 0), np.float32(factor(self.steps)))

    # ---- what a checkpoint holds, under the names that torch's Adam has for it ------------------------------------

    def state(self) -> dict[str, Any]:
        """Copies of the moments and counts, by name; none before the first step."""
        if not self.steps:
            return {}
        moments = {"exp_avg": self._mean, "exp_avg_sq": self._square}
        state: dict[str, Any] = {
            f"{key}.{name}": flat[place].reshape(shape).copy()
            for key, flat in moments.items()
            for name, (place, shape) in self._places.items()
        }
        own = {True: self.steps - self._held, False: self.steps}
        return {**state, **{f"step.{name}": float(own[_is_policy(name)]) for name in self._places}}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what ``state`` gave."""
        self.steps = self._held = 0
        own = {True: 0, False: 0}
        for name, (place, _) in self._places.items():
            if f"step.{name}" in state:
                self._mean[place] = np.ravel(state[f"exp_avg.{name}"])
                self._square[place] = np.ravel(state[f"exp_avg_sq.{name}"])
                own[_is_policy(name)] = int(state[f"step.{name}"])
        self.steps = own[False]
        self._held = self.steps - own[True]


def _is_policy(name: str) -> bool:
    return not name.startswith("network.vf.")
