"""Generalised advantage estimation (GAE): Schulman et al. 2016, arXiv:1506.02438.

Terminated and truncated steps stay apart until here, because the value after them differs: nothing follows a terminal
state, but an episode that a time limit cut off would have continued (Pardo et al. 2018, arXiv:1712.00378).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["Advantages", "estimate_advantages"]

Floats = npt.NDArray[np.float32]
Flags = npt.NDArray[np.bool_]


class Advantages(NamedTuple):
    """Estimated advantages and returns of a rollout of T steps in N envs."""

    advantages: Floats  # [T, N]
    returns: Floats  # [T, N] advantages + values: what the value function learns to predict


def estimate_advantages(
    rewards: Floats,  # [T, N]
    values: Floats,  # [T, N] V(s_t)
    terminated: Flags,  # [T, N]
    truncated: Flags,  # [T, N]
    final_values: Floats,  # [T, N] value of the episode's final observation, where truncated
    last_values: Floats,  # [N] V(s_T), of the observation after the last step
    gamma: float,
    gae_lambda: float,
) -> Advantages:
    """Return the advantages A and the returns R of a rollout; no env affects another.

        delta_t = r_t + gamma * V(s_{t+1}) - V(s_t)
        A_t = delta_t + gamma * gae_lambda * A_{t+1}
        R_t = A_t + V(s_t)

    V(s_{t+1}) is 0 after a terminated step, and the value of the final observation after a truncated one. After
    either, A_{t+1} belongs to the next episode, so it counts as 0. After the last step, it is unknown and counts as 0.
    """
    next_values: Floats = np.concatenate([values[1:], last_values[None]])  # [T, N]
    next_values[truncated] = final_values[truncated]
    next_values[terminated] = 0  # a step that is both is terminated
    deltas: Floats = rewards + np.float32(gamma) * next_values - values  # [T, N]
    decay = np.where(terminated | truncated, np.float32(0), np.float32(gamma * gae_lambda))  # [T, N]

    advantages = np.empty_like(deltas)
    advantage: Floats = np.zeros_like(last_values)  # [N] A_{t+1}
    for t in range(len(deltas) - 1, -1, -1):
        advantage = deltas[t] + decay[t] * advantage
        advantages[t] = advantage
    return Advantages(advantages, advantages + values)
