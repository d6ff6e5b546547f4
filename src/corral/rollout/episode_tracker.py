"""The current episode of each env, and records of finished episodes, computed from whole rollouts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from corral.core.types import EpisodeRecord, Rollout
from corral.envs.opponent_protocol import outcome

__all__ = ["EpisodeTracker"]


class EpisodeTracker:
    """The episode that each of N envs is in at the end of the last rollout."""

    def __init__(self, n_envs: int) -> None:
        self.number = np.zeros(n_envs, np.int64)
        """[N] The episode's number in its env, from 0."""
        self.reward = np.zeros(n_envs)
        """[N] The sum of the episode's rewards so far."""
        self.length = np.zeros(n_envs, np.int64)
        """[N] The episode's steps so far."""
        self.opponent = np.full(n_envs, -1, np.int64)
        """[N] The opponent, by its number in the opponent table; -1 if the env chooses its opponent itself."""

    def advance(self, rollout: Rollout, ends: npt.NDArray[np.bool_]) -> tuple[EpisodeRecord, ...]:
        """Add the steps of a rollout, and return the episodes that ended in it, ordered by step and env.

        ``ends`` [T, N] is true where an episode ended.
        """
        finished = []
        for part in _episode_parts(rollout.rewards, ends):
            self.reward[part.env] += part.reward
            self.length[part.env] += part.stop - part.start
            if part.ends_episode:
                finished.append(self._finish_episode(rollout, part.stop - 1, part.env))
        finished.sort(key=lambda episode: episode.row)  # a stable sort: within a step, envs stay in order
        return tuple(finished)

    def _finish_episode(self, rollout: Rollout, t: int, env: int) -> EpisodeRecord:
        """Return the record of an env's episode, which ended in step ``t``, and begin the env's next episode."""
        terminated = bool(rollout.terminated[t, env])
        record = EpisodeRecord(
            env=env,
            reward=float(self.reward[env]),
            length=int(self.length[env]),
            truncated=bool(rollout.truncated[t, env]) and not terminated,
            outcome=outcome(float(rollout.rewards[t, env]), terminated),
            opponent=int(self.opponent[env]),
            row=t,
        )
        self.number[env] = rollout.next_episode[t, env]
        self.opponent[env] = rollout.next_opponent[t, env]
        self.reward[env], self.length[env] = 0.0, 0
        return record

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return copies of the arrays, by the names that they have in a checkpoint."""
        return {
            "episode": self.number.copy(),
            "reward": self.reward.copy(),
            "length": self.length.copy(),
            "opponent": self.opponent.copy(),
        }

    def restore(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Continue from the arrays of a checkpoint. Older checkpoints have no opponents."""
        n_envs = len(self.number)
        self.number, self.reward, self.length = (arrays[name].copy() for name in ("episode", "reward", "length"))
        self.opponent = arrays["opponent"].copy() if "opponent" in arrays else np.full(n_envs, -1, np.int64)
        if any(array.shape != (n_envs,) for array in (self.number, self.reward, self.length, self.opponent)):
            raise ValueError(f"positions of {len(self.number)} envs, expected {n_envs}")


class _EpisodePart(NamedTuple):
    """The steps ``start`` to ``stop`` of a rollout that belong to one episode of one env."""

    env: int
    start: int
    stop: int
    reward: float
    """The sum of their rewards."""
    ends_episode: bool


def _episode_parts(rewards: npt.NDArray[np.float64], ends: npt.NDArray[np.bool_]) -> Iterator[_EpisodePart]:
    """Yield the parts of episodes in a rollout, in the order of envs and, within an env, of steps.

    All sums are computed by one ``reduceat`` over the rewards, which lie env after env: step ``t`` of env ``n`` is at
    index ``n * T + t``. A part begins at the first step of each env and after each end of an episode.
    """
    n_steps, n_envs = ends.shape
    begins = np.zeros((n_envs, n_steps), np.bool_)  # [N, T]
    begins[:, 0] = True
    begins[:, 1:] = ends.T[:, :-1]
    starts = np.flatnonzero(begins)
    sums = np.add.reduceat(rewards.T.reshape(-1), starts)
    envs, first_steps = np.divmod(starts, n_steps)
    stops = np.append(starts[1:], n_envs * n_steps) - envs * n_steps
    is_end = ends[stops - 1, envs]
    columns = (envs, first_steps, stops, sums, is_end)
    yield from map(_EpisodePart._make, zip(*(column.tolist() for column in columns), strict=True))
