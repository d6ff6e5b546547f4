"""The position of every env of a run, computed in the training process from the rollouts alone.

A position is what another instance of an env needs to continue in its place: the number of the episode, the actions
since its start and what the env showed last. The training process keeps it, so it is not lost when a worker dies. A new
worker continues from it, also in the middle of a rollout, and a checkpoint contains it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

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


class _EpisodeSoFar(NamedTuple):
    """What has happened in an env's current episode."""

    number: int
    opponent: int
    """By its number in the opponent table; -1 if the env chooses its opponent itself."""
    steps: int
    state: bytes | None
    """What the env's ``get_state`` returned at some step of the episode, if it was called."""
    actions: Array | None
    """[L, D] since ``state``, or since the reset; None if there are too many to replay."""


class EnvPositions:
    """The position of each of N envs at the end of the last rollout, or in the middle of a given one.

    ``first_env`` is the number in the run of the first of these envs, and of the first column of their rollouts.
    """

    def __init__(self, seed: int, n_envs: int, codec: ActionCodec, first_env: int = 0) -> None:
        self._seed = seed
        self._first_env = first_env
        self._codec = codec
        self.episodes = EpisodeTracker(n_envs)
        self._action_logs = [self._empty_log() for _ in range(n_envs)]  # since the env's state, or since its reset
        self._env_states: list[bytes | None] = [None] * n_envs
        self._observations: Leaves = {}  # each [N, ...]
        self._masks: npt.NDArray[np.bool_] | None = None  # [N, A]
        self._policy_states: npt.NDArray[np.float32] | None = None  # [N, S]; None at the start or without recurrence

    def begin(self, opponent_sampler: OpponentSampler) -> None:
        """Set the opponents of the first episodes, which follow from the seeds of these episodes."""
        self.episodes.opponent[...] = [
            opponent_sampler.draw(episode_seed(self._seed, self._first_env + i, 0))
            for i in range(len(self._action_logs))
        ]

    def write_initial_states(self, rollout: Rollout) -> None:
        """Write the states with which a recurrent policy begins this rollout."""
        if rollout.states is not None:
            rollout.states[0] = 0.0 if self._policy_states is None else self._policy_states

    def advance(self, rollout: Rollout, states: Mapping[int, bytes]) -> tuple[EpisodeRecord, ...]:
        """Move all positions to the end of a rollout. Return the episodes that ended in it, by step and env.

        ``states`` holds, by env, what ``get_state`` returned at the end of the rollout where it was called.
        """
        ends = rollout.terminated | rollout.truncated  # [T, N]
        episodes = self.episodes.advance(rollout, ends)
        for i, last_end in enumerate(_last_true(ends).tolist()):
            if last_end >= 0:
                self._env_states[i], self._action_logs[i] = None, self._empty_log()
            self._action_logs[i].append(rollout.actions[last_end + 1 :, i])
            if (state := states.get(self._first_env + i)) is not None:
                self._env_states[i], self._action_logs[i] = state, self._empty_log()
        self._observations = {path: leaf.copy() for path, leaf in rollout.last_observations.items()}
        self._masks = None if rollout.last_masks is None else rollout.last_masks.copy()
        self._policy_states = None if rollout.last_states is None else rollout.last_states.copy()
        return episodes

    def positions_of(self, envs: Iterable[int], under_way: Rollout | None = None, steps: int = 0) -> list[EnvPosition]:
        """Return the positions of ``envs`` after ``steps`` steps of the rollout ``under_way``.

        Without a rollout, return those at the end of the last one.
        """
        columns = [env - self._first_env for env in envs]
        return [
            self._position(i) if under_way is None or not steps else self._position_during(under_way, steps, i)
            for i in columns
        ]

    def _position(self, i: int) -> EnvPosition:
        observation = {path: leaf[i] for path, leaf in self._observations.items()}
        mask = None if self._masks is None else self._masks[i]
        return self._make_position(i, self._episode(i), observation, mask)

    def _position_during(self, rollout: Rollout, steps: int, i: int) -> EnvPosition:
        """Return the position of env ``i`` after ``steps`` > 0 steps of ``rollout``."""
        ends = np.flatnonzero(rollout.terminated[:steps, i] | rollout.truncated[:steps, i])
        if ends.size:
            last_end = int(ends[-1])
            episode = _EpisodeSoFar(
                number=int(rollout.next_episode[last_end, i]),
                opponent=int(rollout.next_opponent[last_end, i]),
                steps=steps - last_end - 1,
                state=None,
                actions=rollout.actions[last_end + 1 : steps, i].copy(),
            )
        else:
            episode = self._episode(i)
            actions = episode.actions
            if actions is not None:
                actions = np.concatenate([actions, rollout.actions[:steps, i]])
            episode = episode._replace(steps=episode.steps + steps, actions=actions)
        return self._make_position(i, episode, *_shown_after(rollout, steps, i))

    def _episode(self, i: int) -> _EpisodeSoFar:
        """Return the episode of env ``i`` at the end of the last rollout."""
        return _EpisodeSoFar(
            number=int(self.episodes.number[i]),
            opponent=int(self.episodes.opponent[i]),
            steps=int(self.episodes.length[i]),
            state=self._env_states[i],
            actions=self._action_logs[i].rows,
        )

    def _make_position(self, i: int, episode: _EpisodeSoFar, observation: Leaves, mask: Array | None) -> EnvPosition:
        actions = None
        if episode.actions is not None and len(episode.actions) <= REPLAY_LIMIT:
            actions = self._codec.layout.allocate(len(episode.actions))
            self._codec.decode(episode.actions, actions)
        return EnvPosition(
            episode=episode.number,
            seed=episode_seed(self._seed, self._first_env + i, episode.number),
            steps=episode.steps,
            actions=actions,
            observation=observation,
            mask=mask,
            state=episode.state,
            options=None if episode.opponent < 0 else {OPPONENT: episode.opponent},
        )

    # ---- for checkpoints -------------------------------------------------------------------------------------

    def arrays(self, envs: range | None = None) -> dict[str, Array]:
        """Return the positions of all envs, or of ``envs``, as arrays by their names in a checkpoint.

        Another ``EnvPositions``, whose first env is the first of ``envs``, can ``restore`` them. Some arrays are not
        copied. Their contents do not change when rollouts are added.
        """
        first = 0 if envs is None else envs.start - self._first_env
        columns = slice(first, first + (len(self._action_logs) if envs is None else len(envs)))
        by_env: dict[str, Array] = self.episodes.arrays()
        by_env |= {f"observation/{path}": leaf for path, leaf in self._observations.items()}
        optional = {"masks": self._masks, "memory": self._policy_states}
        by_env |= {name: array for name, array in optional.items() if array is not None}
        arrays = {name: array[columns] for name, array in by_env.items()}
        for i, (log, state) in enumerate(zip(self._action_logs[columns], self._env_states[columns], strict=True)):
            if log.rows is not None:
                arrays[f"actions/{i}"] = log.rows
            if state is not None:
                arrays[f"state/{i}"] = np.frombuffer(state, np.uint8).copy()
        return arrays

    def restore(self, arrays: Mapping[str, Array]) -> None:
        """Continue from the arrays of a checkpoint."""
        self.episodes.restore(arrays)
        for i in range(len(self._action_logs)):
            self._action_logs[i] = self._empty_log()
            if (rows := arrays.get(f"actions/{i}")) is None:
                self._action_logs[i].discard()
            else:
                self._action_logs[i].append(rows)
            state = arrays.get(f"state/{i}")
            self._env_states[i] = None if state is None else state.tobytes()
        prefix = "observation/"
        self._observations = {
            name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)
        }
        self._masks, self._policy_states = arrays.get("masks"), arrays.get("memory")

    # ----------------------------------------------------------------------------------------------------------

    def _empty_log(self) -> _ActionLog:
        return _ActionLog(self._codec.n_actions, self._codec.dtype)


class _ActionLog:
    """Rows of actions, [L, D], that are only appended to, so that a view of them stays valid.

    More than ``REPLAY_LIMIT`` rows are not kept: such an episode cannot be replayed.
    """

    def __init__(self, columns: int, dtype: np.dtype[Any]) -> None:
        self._buffer: Array | None = np.empty((0, columns), dtype)
        self._length = 0

    @property
    def rows(self) -> Array | None:
        """All rows, or None if there were too many."""
        return None if self._buffer is None else self._buffer[: self._length]

    def append(self, rows: Array) -> None:
        """Append rows; discard all if there are too many."""
        buffer, length = self._buffer, self._length + len(rows)
        if buffer is None or length > REPLAY_LIMIT:
            self.discard()
            return
        if length > len(buffer):
            larger = np.empty((max(length, 2 * len(buffer)), *buffer.shape[1:]), buffer.dtype)
            larger[: self._length] = buffer[: self._length]
            self._buffer = buffer = larger
        buffer[self._length : length] = rows
        self._length = length

    def discard(self) -> None:
        """Remove all rows for good: ``rows`` is None from now on."""
        self._buffer = None


def _shown_after(rollout: Rollout, steps: int, i: int) -> tuple[Leaves, Array | None]:
    """Return the observation and the mask that env ``i`` showed after ``steps`` steps of ``rollout``."""
    if steps == rollout.n_steps:
        observation = {path: leaf[i].copy() for path, leaf in rollout.last_observations.items()}
        masks = rollout.last_masks
    else:
        row = ObservationView(rollout)[np.array([steps * rollout.n_envs + i])]  # each [1, ...]
        observation = {path: leaf[0] for path, leaf in row.items()}
        masks = None if rollout.masks is None else rollout.masks[steps]
    return observation, None if masks is None else masks[i].copy()


def _last_true(flags: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """Return the index of the last True in each column, or -1."""
    indices: npt.NDArray[np.int64] = np.where(flags.any(0), len(flags) - 1 - flags[::-1].argmax(0), -1)
    return indices
