"""What envs have played since their last reset: enough to bring another copy of an env to the same place."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from corral.core.seeding import episode_seed
from corral.core.types import Leaves

__all__ = ["REPLAY_LIMIT", "EnvPosition", "ReplayLog"]

REPLAY_LIMIT = 100_000
"""Steps of an episode that are kept and played again."""
_ROWS = 1024


@dataclass(frozen=True, slots=True)
class EnvPosition:
    """Where an env is in its life, and what it showed there."""

    episode: int
    seed: int | None
    steps: int
    """Steps taken in the episode."""
    actions: Leaves | None
    """Each [L, ...]: what was played since the reset, or since ``state``; None if that is too much to play again."""
    observation: Leaves
    """Each [...]."""
    mask: npt.NDArray[np.bool_] | None
    """What it showed there; nothing, if nobody looked yet: then there is nothing to compare with."""
    state: bytes | None = None
    """What the env's ``get_state`` gave, before ``actions``."""
    options: dict[str, Any] | None = None

    @property
    def length(self) -> int:
        """How many actions there are to play."""
        return 0 if self.actions is None else len(next(iter(self.actions.values())))

    @property
    def repeatable(self) -> bool:
        """Whether another env can get there at all."""
        return self.actions is not None and (self.seed is not None or self.state is not None)

    def reproduction(self, last: Leaves | None) -> Mapping[str, Any] | None:
        """The same as plain data, with one more action at the end if there is one; None if it cannot be repeated."""
        if not self.repeatable or self.actions is None:
            return None
        actions = {path: rows.tolist() for path, rows in self.actions.items()}
        for path, action in (last or {}).items():
            actions[path].append(action.tolist())
        state = None if self.state is None else base64.b64encode(self.state).decode()
        return {"seed": self.seed, "options": self.options, "state": state, "actions": actions}


@dataclass(slots=True)
class _Episode:
    number: int = -1
    seed: int | None = None
    options: dict[str, Any] | None = None
    start: int = 0
    """The row of its first action that is kept."""
    before: int = 0
    """Steps before that row: up to ``state``."""
    state: bytes | None = None


class ReplayLog:
    """Actions by step, all envs in a row, from the oldest reset on. One small copy in each step.

    ``root`` is the seed of the run: given it, the seed of an episode follows from its number.
    """

    def __init__(
        self, actions: Leaves, first_env: int, root: int | None, limit: int = REPLAY_LIMIT, rows: int = _ROWS
    ) -> None:
        self._actions = actions
        self._blocks: Leaves = {}
        self._used = 0
        self._allocate(rows)
        self._first_env, self._root, self._limit = first_env, root, limit
        self._episodes = [_Episode() for _ in range(len(next(iter(actions.values()))))]

    def append(self) -> None:
        """Keep the actions that are about to be played."""
        if self._used == self._capacity:
            self._make_room()
        used = self._used
        for block, actions in self._pairs:
            block[used] = actions
        self._used = used + 1

    def begin(self, i: int, number: int, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Env ``i`` was reset for its episode of this number."""
        self._episodes[i] = _Episode(number, seed, options, self._used)

    def start_from_state(self, i: int, state: bytes) -> None:
        """What was played until now need not be kept: the env can go on from ``state``."""
        episode = self._episodes[i]
        episode.before += self._used - episode.start
        episode.start, episode.state = self._used, state

    @property
    def near_limit(self) -> bool:
        """Whether so much is kept of an episode that it may soon be too much."""
        return self._used - min(episode.start for episode in self._episodes) > self._limit // 2

    def seed(self, i: int) -> int | None:
        """The seed of the env's episode."""
        episode = self._episodes[i]
        if episode.seed is None and self._root is not None:
            return episode_seed(self._root, self._first_env + i, episode.number)
        return episode.seed

    def position(
        self, i: int, observation: Leaves, mask: npt.NDArray[np.bool_] | None, undone: bool = False
    ) -> EnvPosition:
        """Where env ``i`` is, or was before the last action, if that is still ``undone``."""
        episode, stop = self._episodes[i], self._used - undone
        length = stop - episode.start
        actions = None
        if length <= self._limit:
            actions = {path: block[episode.start : stop, i].copy() for path, block in self._blocks.items()}
        return EnvPosition(
            episode.number,
            self.seed(i),
            episode.before + length,
            actions,
            observation,
            mask,
            episode.state,
            episode.options,
        )

    def restore(self, positions: Sequence[EnvPosition]) -> None:
        """Every env is at its position."""
        self._used = max(position.length for position in positions)
        self._allocate(max(self._capacity, 2 * self._used))
        for i, position in enumerate(positions):
            kept = position.length if position.actions is not None else self._limit + 1
            start, before = self._used - kept, position.steps - kept
            self._episodes[i] = _Episode(
                position.episode, position.seed, position.options, start, before, position.state
            )
            for path, rows in (position.actions or {}).items():
                self._blocks[path][start : self._used, i] = rows

    def _allocate(self, rows: int) -> None:
        self._capacity = rows
        self._blocks = {path: np.empty((rows, *leaf.shape), leaf.dtype) for path, leaf in self._actions.items()}
        self._pairs = [(block, self._actions[path]) for path, block in self._blocks.items()]

    def _make_room(self) -> None:
        """Forget what no episode needs, or what is past the limit; where that is little, take more memory."""
        oldest = max(0, min(episode.start for episode in self._episodes), self._used - self._limit - 1)
        kept, before = self._used - oldest, self._blocks
        if kept > 3 * self._capacity // 4:
            self._allocate(min(2 * self._capacity, self._capacity + self._limit // 4 + 1))
        for path, block in before.items():
            self._blocks[path][:kept] = block[oldest : self._used].copy()
        self._used = kept
        for episode in self._episodes:
            episode.start -= oldest
