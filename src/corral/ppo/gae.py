"""Generalised advantage estimation, with terminated and truncated kept apart until here."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["Advantages", "estimate_advantages"]

Floats = npt.NDArray[np.float32]
Flags = npt.NDArray[np.bool_]


class Advantages(NamedTuple):
    """Both [T, N]."""

    advantages: Floats
    returns: Floats


def estimate_advantages(
    rewards: Floats,  # [T, N]
    values: Floats,  # [T, N]
    terminated: Flags,  # [T, N]
    truncated: Flags,  # [T, N]
    final_values: Floats,  # [T, N] value of the final observation where truncated
    last_values: Floats,  # [N] value of the observation after the last step
    gamma: float,
    gae_lambda: float,
) -> Advantages:
    """Advantages and returns, each env on its own.

    What follows a step is worth: nothing if the episode terminated; the value of its final observation if it was
    truncated (it would have gone on); the next step's value otherwise. Nothing flows back across either end.
    """
    following: Floats = np.concatenate([values[1:], last_values[None]])  # [T, N]
    following[truncated] = final_values[truncated]
    following[terminated] = 0
    deltas: Floats = rewards + np.float32(gamma) * following - values
    carried = np.where(terminated | truncated, np.float32(0), np.float32(gamma * gae_lambda))

    advantages = np.empty_like(deltas)
    running: Floats = np.zeros_like(last_values)
    for t in range(len(deltas) - 1, -1, -1):
        running = deltas[t] + carried[t] * running
        advantages[t] = running
    return Advantages(advantages, advantages + values)
