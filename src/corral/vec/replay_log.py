"""The replay log: the actions of every env since its last reset, with which a new env gets to the same position."""

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
"""Steps of an episode that are logged and replayed at most."""
_ROWS = 1024  # steps for which a new log has room


@dataclass(frozen=True, slots=True)
class EnvPosition:
    """Where an env is in its episode, how to get there, and what it showed there."""

    episode: int
    """Number of the episode among the episodes of this env, from 0."""
    seed: int | None
    """The seed of the episode's reset."""
    steps: int
    """Steps taken in the episode."""
    actions: Leaves | None
    """The actions since the reset, or since ``state``, each leaf [L, ...]; None if there are too many to replay."""
    observation: Leaves
    """The observation after the actions, each leaf [...]; empty if it is unknown, and so cannot be compared."""
    mask: npt.NDArray[np.bool_] | None
    """The action mask after the actions. [M]"""
    state: bytes | None = None
    """The result of the env's ``get_state`` before ``actions``, if the env has it."""
    options: dict[str, Any] | None = None
    """The options of the episode's reset."""

    @property
    def length(self) -> int:
        """How many actions there are to replay."""
        return 0 if self.actions is None else len(next(iter(self.actions.values())))

    @property
    def repeatable(self) -> bool:
        """Whether another instance of the env can get there."""
        return self.actions is not None and (self.seed is not None or self.state is not None)

    def reproduction(self, last_action: Leaves | None) -> Mapping[str, Any] | None:
        """Return the position as plain data, with one more action at the end if given; None if it is not repeatable."""
        if not self.repeatable or self.actions is None:
            return None
        actions = {path: rows.tolist() for path, rows in self.actions.items()}
        for path, action in (last_action or {}).items():
            actions[path].append(action.tolist())
        state = None if self.state is None else base64.b64encode(self.state).decode()
        return {"seed": self.seed, "options": self.options, "state": state, "actions": actions}


@dataclass(slots=True)
class _Episode:
    """What the log knows of the current episode of an env."""

    number: int = -1
    seed: int | None = None
    options: dict[str, Any] | None = None
    first_row: int = 0
    """The row of the log with its first logged action; negative if that row was dropped."""
    steps_before: int = 0
    """Steps before that row, which ``state`` makes superfluous."""
    state: bytes | None = None


class ReplayLog:
    """The actions of N envs, one row for each step, from the oldest episode's reset on. Each step costs one small copy.

    ``actions`` are the arrays that hold the actions of the next step, each [N, ...]. Given ``root_seed``, the seed of
    the run, the seed of an episode follows from its number.
    """

    def __init__(
        self, actions: Leaves, first_env: int, root_seed: int | None, limit: int = REPLAY_LIMIT, rows: int = _ROWS
    ) -> None:
        self._actions = actions
        self._blocks: Leaves = {}
        self._used = 0
        self._allocate(rows)
        self._first_env, self._root_seed, self._limit = first_env, root_seed, limit
        self._episodes = [_Episode() for _ in range(len(next(iter(actions.values()))))]

    def append(self) -> None:
        """Log the actions of the next step."""
        if self._used == self._capacity:
            self._make_room()
        used = self._used
        for block, actions in self._pairs:
            block[used] = actions
        self._used = used + 1

    def begin(self, i: int, number: int, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Begin the log of a new episode of env ``i``, which has no actions yet."""
        self._episodes[i] = _Episode(number, seed, options, self._used)

    def set_options(self, i: int, options: dict[str, Any]) -> None:
        """Set the reset options of the episode of env ``i``, which has just begun."""
        self._episodes[i].options = options

    def start_from_state(self, i: int, state: bytes) -> None:
        """Drop the actions of env ``i`` so far, because a copy can start from ``state`` instead."""
        episode = self._episodes[i]
        episode.steps_before += self._used - episode.first_row
        episode.first_row, episode.state = self._used, state

    @property
    def near_limit(self) -> bool:
        """Whether some episode has more than half of the steps that can be replayed."""
        return self._used - min(episode.first_row for episode in self._episodes) > self._limit // 2

    def seed(self, i: int) -> int | None:
        """Return the seed of the episode of env ``i``."""
        episode = self._episodes[i]
        if episode.seed is None and self._root_seed is not None:
            return episode_seed(self._root_seed, self._first_env + i, episode.number)
        return episode.seed

    def position(
        self, i: int, observation: Leaves, mask: npt.NDArray[np.bool_] | None, without_last_action: bool = False
    ) -> EnvPosition:
        """Return where env ``i`` is after its logged actions, or where it was before the last of them."""
        episode, stop = self._episodes[i], self._used - without_last_action
        length = stop - episode.first_row
        actions = None
        if length <= self._limit:
            actions = {path: block[episode.first_row : stop, i].copy() for path, block in self._blocks.items()}
        return EnvPosition(
            episode.number,
            self.seed(i),
            episode.steps_before + length,
            actions,
            observation,
            mask,
            episode.state,
            episode.options,
        )

    def restore(self, positions: Sequence[EnvPosition]) -> None:
        """Set the log to these positions, one for each env."""
        self._used = max(position.length for position in positions)
        self._allocate(max(self._capacity, 2 * self._used))
        for i, position in enumerate(positions):
            logged = position.length if position.actions is not None else self._limit + 1
            first_row = self._used - logged
            self._episodes[i] = _Episode(
                position.episode, position.seed, position.options, first_row, position.steps - logged, position.state
            )
            for path, rows in (position.actions or {}).items():
                self._blocks[path][first_row : self._used, i] = rows

    def _allocate(self, rows: int) -> None:
        self._capacity = rows
        self._blocks = {path: np.empty((rows, *leaf.shape), leaf.dtype) for path, leaf in self._actions.items()}
        self._pairs = [(block, self._actions[path]) for path, block in self._blocks.items()]

    def _make_room(self) -> None:
        """Drop rows that no episode needs or that are beyond the limit; if these are few, allocate more memory."""
        oldest = max(0, min(episode.first_row for episode in self._episodes), self._used - self._limit - 1)
        kept, old_blocks = self._used - oldest, self._blocks
        if kept > 3 * self._capacity // 4:
            self._allocate(min(2 * self._capacity, self._capacity + self._limit // 4 + 1))
        for path, block in old_blocks.items():
            self._blocks[path][:kept] = block[oldest : self._used].copy()
        self._used = kept
        for episode in self._episodes:
            episode.first_row -= oldest
