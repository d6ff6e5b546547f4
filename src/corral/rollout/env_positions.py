"""Where every env of a run is, kept by the trainer from the rollouts alone: nothing of it can die with a worker.

It is what a new worker needs to go on for one that died, in the middle of a rollout too, and what a checkpoint needs
to go on for a run: the number of each env's episode and what was played in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from corral.core.actions import ActionCodec
from corral.core.frame_stacks import ObservationView
from corral.core.seeding import episode_seed
from corral.core.types import EpisodeRecord, Leaves, Rollout
from corral.envs.opponent_protocol import OPPONENT
from corral.rollout.episode_tracker import EpisodeTracker
from corral.vec.api import OpponentSampler
from corral.vec.replay_log import REPLAY_LIMIT, EnvPosition

__all__ = ["EnvPositions"]

Array = npt.NDArray[Any]


class EnvPositions:
    """The envs at the end of the last rollout, or, given one that is under way, in the middle of it."""

    def __init__(self, seed: int, n_envs: int, codec: ActionCodec) -> None:
        self._seed = seed
        self._codec = codec
        self.episodes = EpisodeTracker(n_envs)
        self._played = [self._empty_history() for _ in range(n_envs)]
        self._states: list[bytes | None] = [None] * n_envs
        self._observations: Leaves = {}
        self._masks: npt.NDArray[np.bool_] | None = None
        self._memory: npt.NDArray[np.float32] | None = None  # [N, S]; None at the start, or without a memory

    def begin(self, opponent_sampler: OpponentSampler) -> None:
        """The first episodes begin, with opponents that follow from their seeds."""
        self.episodes.opponent[...] = [
            opponent_sampler.draw(episode_seed(self._seed, i, 0)) for i in range(len(self._played))
        ]

    def write_initial_states(self, rollout: Rollout) -> None:
        """Write what the policy remembers of every env when this rollout begins, if it has a memory."""
        if rollout.states is not None:
            rollout.states[0] = 0.0 if self._memory is None else self._memory

    def advance(self, rollout: Rollout, states: Mapping[int, bytes]) -> tuple[EpisodeRecord, ...]:
        """Go on to the end of a rollout; the episodes that ended in it, by step and env.

        ``states`` are of envs that were asked for it at the end.
        """
        ends = rollout.terminated | rollout.truncated
        episodes = self.episodes.advance(rollout, ends)
        last = _last_true(ends)
        for i, t in enumerate(last.tolist()):
            rows = rollout.actions[t + 1 :, i]
            if t >= 0:
                self._states[i], self._played[i] = None, self._empty_history()
            self._played[i].add(rows)
            if i in states:
                self._states[i], self._played[i] = states[i], self._empty_history()
        self._observations = {path: leaf.copy() for path, leaf in rollout.last_observations.items()}
        self._masks = None if rollout.last_masks is None else rollout.last_masks.copy()
        self._memory = None if rollout.last_states is None else rollout.last_states.copy()
        return episodes

    def positions_of(self, envs: Iterable[int], under_way: Rollout | None = None, steps: int = 0) -> list[EnvPosition]:
        """Where some envs are; with a rollout that is under way, after so many steps of it."""
        return [
            self._position(i) if under_way is None or not steps else self._position_during(under_way, steps, i)
            for i in envs
        ]

    def _position(self, i: int) -> EnvPosition:
        observation = {path: leaf[i] for path, leaf in self._observations.items()}
        mask = None if self._masks is None else self._masks[i]
        return self._make_position(
            i, int(self.episodes.length[i]), self._states[i], self._played[i].rows, observation, mask
        )

    def _position_during(self, rollout: Rollout, steps: int, i: int) -> EnvPosition:
        ended = np.flatnonzero(rollout.terminated[:steps, i] | rollout.truncated[:steps, i])
        whole = steps == rollout.n_steps
        if whole:
            observation = {path: leaf[i].copy() for path, leaf in rollout.last_observations.items()}
        else:
            row = ObservationView(rollout)[np.array([steps * rollout.n_envs + i])]
            observation = {path: leaf[0] for path, leaf in row.items()}
        masks = rollout.last_masks if whole else None if rollout.masks is None else rollout.masks[steps]
        mask = None if masks is None else masks[i].copy()
        if ended.size:
            t = int(ended[-1])
            rows = rollout.actions[t + 1 : steps, i].copy()
            began = int(rollout.next_episode[t, i]), int(rollout.next_opponent[t, i])
            return self._make_position(i, len(rows), None, rows, observation, mask, began)
        before, new = self._played[i].rows, rollout.actions[:steps, i]
        together = None if before is None else np.concatenate([before, new])
        return self._make_position(
            i, int(self.episodes.length[i]) + steps, self._states[i], together, observation, mask
        )

    def _make_position(
        self,
        i: int,
        steps: int,
        state: bytes | None,
        rows: Array | None,
        observation: Leaves,
        mask: Array | None,
        began: tuple[int, int] | None = None,
    ) -> EnvPosition:
        number, opponent = began or (int(self.episodes.number[i]), int(self.episodes.opponent[i]))
        actions = None
        if rows is not None and len(rows) <= REPLAY_LIMIT:
            actions = self._codec.layout.allocate(len(rows))
            self._codec.decode(rows, actions)
        options = None if opponent < 0 else {OPPONENT: opponent}
        seed = episode_seed(self._seed, i, number)
        return EnvPosition(number, seed, steps, actions, observation, mask, state, options)

    # ---- for checkpoints -------------------------------------------------------------------------------------

    def arrays(self) -> dict[str, Array]:
        """All of it by name. Nothing is copied and nothing will change."""
        found = self.episodes.arrays()
        for i, (played, state) in enumerate(zip(self._played, self._states, strict=True)):
            if played.rows is not None:
                found[f"actions/{i}"] = played.rows
            if state is not None:
                found[f"state/{i}"] = np.frombuffer(state, np.uint8).copy()
        found |= {f"observation/{path}": leaf for path, leaf in self._observations.items()}
        optional = {"masks": self._masks, "memory": self._memory}
        return found | {name: array for name, array in optional.items() if array is not None}

    def restore(self, arrays: Mapping[str, Array]) -> None:
        """Go on from what ``arrays`` gave."""
        self.episodes.restore(arrays)
        for i in range(len(self._played)):
            self._played[i] = self._empty_history()
            if (rows := arrays.get(f"actions/{i}")) is None:
                self._played[i].forget()
            else:
                self._played[i].add(rows)
            state = arrays.get(f"state/{i}")
            self._states[i] = None if state is None else state.tobytes()
        prefix = "observation/"
        self._observations = {k.removeprefix(prefix): array for k, array in arrays.items() if k.startswith(prefix)}
        self._masks, self._memory = arrays.get("masks"), arrays.get("memory")

    # ---- inside ----------------------------------------------------------------------------------------------

    def _empty_history(self) -> _Played:
        return _Played(self._codec.n_actions, self._codec.dtype)


class _Played:
    """Rows of actions that only grow, so that a view of them stays true; too many are not kept."""

    def __init__(self, columns: int, dtype: np.dtype[Any]) -> None:
        self._buffer: Array | None = np.empty((0, columns), dtype)
        self._length = 0

    @property
    def rows(self) -> Array | None:
        """What was played, or None if it was too much."""
        return None if self._buffer is None else self._buffer[: self._length]

    def add(self, rows: Array) -> None:
        """Keep more."""
        buffer, length = self._buffer, self._length + len(rows)
        if buffer is None or length > REPLAY_LIMIT:
            self.forget()
            return
        if length > len(buffer):
            roomier = np.empty((max(length, 2 * len(buffer)), *buffer.shape[1:]), buffer.dtype)
            roomier[: self._length] = buffer[: self._length]
            self._buffer = buffer = roomier
        buffer[self._length : length] = rows
        self._length = length

    def forget(self) -> None:
        """It is too much."""
        self._buffer = None


def _last_true(flags: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """The row of the last True of each column, or -1."""
    found: npt.NDArray[np.int64] = np.where(flags.any(0), len(flags) - 1 - flags[::-1].argmax(0), -1)
    return found
