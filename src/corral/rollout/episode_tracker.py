"""The episodes that envs are in, and the records of those that ended, computed from whole rollouts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from corral.core.types import EpisodeRecord, Rollout
from corral.envs.opponent_protocol import outcome

__all__ = ["EpisodeTracker"]


class EpisodeTracker:
    """The episode of each env at the end of the last rollout: its number, reward and length so far, and opponent."""

    def __init__(self, n_envs: int) -> None:
        self.number = np.zeros(n_envs, np.int64)
        self.reward = np.zeros(n_envs)
        self.length = np.zeros(n_envs, np.int64)
        self.opponent = np.full(n_envs, -1, np.int64)
        """Who plays the other side in the episode of each env, by number; -1 for the env's own choice."""

    def advance(self, rollout: Rollout, ends: npt.NDArray[np.bool_]) -> tuple[EpisodeRecord, ...]:
        """Go on to the end of a rollout, in which episodes end where ``ends`` says; return those, by step and env."""
        t_all, n = ends.shape
        envs, steps = np.nonzero(ends.T)  # env by env
        starts = np.concatenate([np.arange(n) * t_all, (envs * t_all + steps + 1)[steps + 1 < t_all]])
        starts.sort()
        sums = np.add.reduceat(rollout.rewards.T.reshape(-1), starts)
        by_start = dict(zip(starts.tolist(), sums.tolist(), strict=True))
        reward, length = self.reward.tolist(), self.length.tolist()
        began = [0] * n
        records = []
        for i, t in zip(envs.tolist(), steps.tolist(), strict=True):
            whole = reward[i] + by_start[i * t_all + began[i]]
            terminated = bool(rollout.terminated[t, i])
            truncated = bool(rollout.truncated[t, i]) and not terminated
            won = outcome(float(rollout.rewards[t, i]), terminated)
            opponent = int(self.opponent[i])
            records.append(EpisodeRecord(i, whole, length[i] + t + 1 - began[i], truncated, won, opponent, t))
            reward[i], length[i], began[i] = 0.0, 0, t + 1
            self.number[i], self.opponent[i] = rollout.next_episode[t, i], rollout.next_opponent[t, i]
        for i in range(n):
            if began[i] < t_all:
                reward[i] += by_start[i * t_all + began[i]]
                length[i] += t_all - began[i]
        self.reward, self.length = np.array(reward), np.array(length, np.int64)
        return tuple(sorted(records, key=lambda episode: episode.row))  # envs are in order already

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return copies of all of it, by the names in a checkpoint."""
        return {
            "episode": self.number.copy(),
            "reward": self.reward.copy(),
            "length": self.length.copy(),
            "opponent": self.opponent.copy(),
        }

    def restore(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Go on from what ``arrays`` gave; older checkpoints have no opponents."""
        n = len(self.number)
        self.number, self.reward, self.length = (arrays[name].copy() for name in ("episode", "reward", "length"))
        self.opponent = arrays["opponent"].copy() if "opponent" in arrays else np.full(n, -1, np.int64)
        if any(array.shape != (n,) for array in (self.number, self.reward, self.length, self.opponent)):
            raise ValueError(f"positions of {len(self.number)} envs, expected {n}")
