"""Frame stacks: observations that consist of the last k frames. A rollout stores each frame once.

A leaf of shape ``(k * c, ...)`` that an env declares to be a stack of ``k`` frames gets a column of shape
``[T + k - 1, N, c, ...]``. The observation of env ``n`` at step ``t`` consists of the rows ``t`` to ``t + k - 1``,
oldest first; the first ``k - 1`` rows are frames from before the rollout. At the start of an episode, its first frame
is repeated in the place of the missing earlier ones.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.wrappers import FrameStackObservation

from corral.core.actions import ACTION_FEATURES
from corral.core.errors import UsageError
from corral.core.spaces import Layout, Leaf
from corral.core.types import Leaves, Rollout

__all__ = [
    "FrameStacks",
    "ObservationView",
    "ObservationWriter",
    "column_shape",
    "find_frame_stacks",
    "validate_frame_stacks",
]

Array = npt.NDArray[Any]
Indices = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
FrameStacks = Mapping[str, int]
"""The number of frames of each leaf that is a stack, by the leaf's path."""
_ADVICE = "correct that, or set frame_stacks = {} on the env (or on the outermost of its wrappers)"


def find_frame_stacks(env: gym.Env[Any, Any]) -> dict[str, int]:
    """Return the frame stacks among an env's observations.

    These are the leaves that the env's attribute ``frame_stacks`` declares or, without that attribute, all Box leaves
    of an env that is wrapped in Gymnasium's ``FrameStackObservation`` and whose observations no outer wrapper changes.
    """
    if env.has_wrapper_attr("frame_stacks"):
        return validate_frame_stacks(env.get_wrapper_attr("frame_stacks"), env.observation_space)
    wrapper = env
    while isinstance(wrapper, gym.Wrapper) and not isinstance(wrapper, gym.ObservationWrapper | FrameStackObservation):
        wrapper = wrapper.env
    if not isinstance(wrapper, FrameStackObservation) or wrapper.padding_type != "reset" or wrapper.stack_size == 1:
        return {}
    if wrapper.observation_space != env.observation_space:  # an outer wrapper changes the observations
        return {}
    leaves = Layout(env.observation_space).leaves
    stacked = {leaf.path: wrapper.stack_size for leaf in leaves if isinstance(leaf.space, spaces.Box)}
    return {path: frames for path, frames in stacked.items() if path != ACTION_FEATURES}


def validate_frame_stacks(given: Any, space: gym.Space[Any]) -> dict[str, int]:
    """Return the declared frame stacks; raise a UsageError if the observation space cannot contain them."""
    leaves = {leaf.path: leaf for leaf in Layout(space).leaves}
    if not isinstance(given, Mapping) or not all(isinstance(k, int) and k >= 1 for k in given.values()):
        raise UsageError(f"the env's frame_stacks are {given!r:.80}, expected a dict of paths and numbers of frames")
    for path, frames in given.items():
        if path not in leaves:
            paths = ", ".join(repr(leaf_path) for leaf_path in leaves)
            raise UsageError(f"the env's frame_stacks name {path!r}, but its observations are {paths}; correct that")
        leaf = leaves[path]
        if not isinstance(leaf.space, spaces.Box) or not leaf.shape or leaf.shape[0] % frames:
            raise UsageError(
                f"the env's frame_stacks say that {path!r} is {frames} frames, joined along the first axis, but it is "
                f"{leaf.space}; correct or remove it"
            )
    return {path: frames for path, frames in given.items() if frames > 1}


def column_shape(leaf: Leaf, stacks: FrameStacks, t: int, n: int) -> tuple[int, ...]:
    """Return the shape of a leaf's column in a rollout of ``t`` steps and ``n`` envs."""
    if (frames := stacks.get(leaf.path, 1)) == 1:
        return t, n, *leaf.shape
    return t + frames - 1, n, leaf.shape[0] // frames, *leaf.shape[1:]


class ObservationWriter:
    """Copies one leaf of the current observations of N envs, or their action masks, into a rollout, step by step.

    ``current`` [N, ...] is the array that the envs write their observations into, ``column`` the leaf's column in the
    rollout, ``last_row`` [N, ...] the place of the observations after the last step. Of a leaf with several ``frames``
    only the newest is copied; a UsageError is raised if the others are not those of the step before.
    """

    def __init__(self, path: str, current: Array, column: Array, last_row: Array, frames: int = 1) -> None:
        self._path, self._current, self._column, self._last_row = path, current, column, last_row
        self._n_earlier = frames - 1
        self._newest = current if frames == 1 else current[:, -(current.shape[1] // frames) :]  # [N, c, ...]
        self._stack = current.reshape(len(current), frames, -1) if frames > 1 else None  # [N, k, *], a view
        assert self._stack is None or np.may_share_memory(self._stack, current)
        self._previous_stack: Array | None = None

    def write_first(self, was_reset: bool) -> None:
        """Write the observations of step 0 with all frames; ``was_reset``: whether all envs have just been reset."""
        if self._stack is None:
            self._column[0] = self._current
            return
        rows = self._column[: self._n_earlier + 1]  # [k, N, c, ...]
        rows[...] = self._stack.swapaxes(0, 1).reshape(rows.shape)
        self._previous_stack = self._stack.copy()
        if was_reset:
            self._check_reset(np.ones(len(self._current), np.bool_))

    def write(self, step: int, was_reset: Flags | None) -> None:
        """Write the observations of a later step; ``was_reset`` [N]: which envs have just been reset (None: none)."""
        self._column[step + self._n_earlier] = self._newest
        if self._stack is None:
            return
        if was_reset is not None:
            self._check_reset(was_reset)
        self._check_shift(step, slice(None) if was_reset is None else ~was_reset)

    def write_last(self) -> None:
        """Write the observations after the last step."""
        self._last_row[...] = self._current

    def _check_reset(self, was_reset: Flags) -> None:
        """Raise a UsageError unless all frames of the envs that have just been reset are equal."""
        assert self._stack is not None
        stack = self._stack[was_reset]
        if not (stack == stack[:, -1:]).all():
            raise UsageError(f"{self._declaration()}, but after a reset they are not all the same frame; {_ADVICE}")

    def _check_shift(self, step: int, continuing: slice | Flags) -> None:
        """Raise a UsageError unless a step shifted the frames of the ``continuing`` envs by one.

        In every step, the second newest frame is compared with the newest of the step before. All frames are compared
        only in the first k steps: an env that confuses older frames does it from the start.
        """
        assert self._stack is not None
        previous_newest = self._column[step + self._n_earlier - 1].reshape(len(self._current), -1)  # [N, *]
        is_shifted = np.array_equal(self._stack[continuing, -2], previous_newest[continuing])
        if step <= self._n_earlier + 1:
            before, self._previous_stack = self._previous_stack, self._stack.copy()
            is_shifted = is_shifted and (
                before is None or np.array_equal(before[continuing, 1:], self._stack[continuing, :-1])
            )
        if not is_shifted:
            raise UsageError(
                f"{self._declaration()}, but a step does not shift them by one, with the newest last; {_ADVICE}"
            )

    def _declaration(self) -> str:
        return f"the env says that its observation {self._path!r} is {self._n_earlier + 1} frames, oldest first"


class ObservationView:
    """The observations of a rollout, or some of their leaves, by row ``t * N + n``, with frame stacks put together."""

    def __init__(self, rollout: Rollout, paths: Collection[str] | None = None) -> None:
        columns = rollout.observations.items()
        self._columns = {path: column for path, column in columns if paths is None or path in paths}
        self._stacks = rollout.stacks
        self._n_steps, self._n_envs = rollout.n_steps, rollout.n_envs
        if self._stacks:
            # The step at which the episode of each row began; 0 if it began before or at the start of the rollout.
            episode_start = np.zeros((self._n_steps, self._n_envs), np.int64)  # [T, N]
            is_end = rollout.terminated[:-1] | rollout.truncated[:-1]  # [T - 1, N]
            episode_start[1:] = np.where(is_end, np.arange(1, self._n_steps)[:, None], 0)
            self._episode_start = np.maximum.accumulate(episode_start).reshape(-1)  # [T * N]

    def __getitem__(self, rows: Indices) -> Leaves:
        """Return the observations of these rows, each [R, ...]."""
        leaves: Leaves = {}
        for path, column in self._columns.items():
            if path in self._stacks:
                leaves[path] = self._gather(column, self._stacks[path], rows)
            else:
                leaves[path] = column.reshape(-1, *column.shape[2:])[rows]
        return leaves

    def all(self) -> Leaves:
        """Return the observations of all rows, each [T * N, ...]; a leaf that is not a stack is not copied."""
        all_rows = np.arange(self._n_steps * self._n_envs)
        return {
            path: self._gather(column, self._stacks[path], all_rows)
            if path in self._stacks
            else column.reshape(-1, *column.shape[2:])
            for path, column in self._columns.items()
        }

    def _gather(self, column: Array, frames: int, rows: Indices) -> Array:
        """Return the stacks [R, k * c, ...] of these rows."""
        steps, envs = np.divmod(rows, self._n_envs)
        episode_start = self._episode_start[rows]
        # Frames from before the episode are replaced by its first; those from before the rollout are in the column.
        earliest = np.where(episode_start > 0, episode_start + frames - 1, 0)  # [R]
        frame_rows = np.maximum(steps[:, None] + np.arange(frames), earliest[:, None])  # [R, k]
        stack: Array = column[frame_rows, envs[:, None]]  # [R, k, c, ...]
        return stack.reshape(len(rows), -1, *column.shape[3:])
