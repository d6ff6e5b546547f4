"""Observations that are a few frames on top of each other: a rollout keeps each frame once.

A leaf of shape ``(k * c, ...)`` that an env calls a stack of ``k`` frames has a column ``[T + k - 1, N, c, ...]``. What
env ``n`` showed at step ``t`` are its rows ``t`` to ``t + k - 1``, oldest first; the first ``k - 1`` rows are from
before the rollout. Where an episode begins, its first frame stands for those it does not have yet.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.wrappers import FrameStackObservation

from corral.core.errors import UsageError
from corral.core.spaces import Layout, Leaf
from corral.core.types import Leaves, Rollout

__all__ = ["ColumnWriter", "ObservationView", "Stacks", "checked_stacks", "column_shape", "stacks_of"]

Array = npt.NDArray[Any]
Indices = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
_DO = "correct that, or give the env (or the outermost of its wrappers) frame_stacks = {}"
Stacks = Mapping[str, int]
"""By the path of a leaf, how many frames it has."""


def stacks_of(env: gym.Env[Any, Any]) -> dict[str, int]:
    """The leaves that an env calls stacks, in ``frame_stacks``, and those of Gymnasium's wrapper."""
    if env.has_wrapper_attr("frame_stacks"):
        return checked_stacks(env.get_wrapper_attr("frame_stacks"), env.observation_space)
    wrapper = env
    while isinstance(wrapper, gym.Wrapper) and not isinstance(wrapper, gym.ObservationWrapper | FrameStackObservation):
        wrapper = wrapper.env
    if not isinstance(wrapper, FrameStackObservation) or wrapper.padding_type != "reset" or wrapper.stack_size == 1:
        return {}
    if wrapper.observation_space != env.observation_space:  # somebody has changed them since
        return {}
    leaves = Layout(env.observation_space).leaves
    stacked = {leaf.path: wrapper.stack_size for leaf in leaves if isinstance(leaf.space, spaces.Box)}
    return {path: frames for path, frames in stacked.items() if path != "action_features"}


def checked_stacks(given: Any, space: gym.Space[Any]) -> dict[str, int]:
    """What an env says of its stacks, if its observations can be that."""
    leaves = {leaf.path: leaf for leaf in Layout(space).leaves}
    if not isinstance(given, Mapping) or not all(isinstance(k, int) and k >= 1 for k in given.values()):
        raise UsageError(f"the env's frame_stacks are {given!r:.80}, expected a dict of paths and numbers of frames")
    for path, frames in given.items():
        if path not in leaves:
            known = ", ".join(repr(known) for known in leaves)
            raise UsageError(f"the env's frame_stacks name {path!r}, but it shows {known}; correct or remove it")
        leaf = leaves[path]
        if not isinstance(leaf.space, spaces.Box) or not leaf.shape or leaf.shape[0] % frames:
            raise UsageError(
                f"the env's frame_stacks say that {path!r} is {frames} frames, joined along the first axis, but it is "
                f"{leaf.space}; correct or remove it"
            )
    return {path: frames for path, frames in given.items() if frames > 1}


def column_shape(leaf: Leaf, stacks: Stacks, t: int, n: int) -> tuple[int, ...]:
    """The shape of a leaf's column in a rollout."""
    if (frames := stacks.get(leaf.path, 1)) == 1:
        return t, n, *leaf.shape
    return t + frames - 1, n, leaf.shape[0] // frames, *leaf.shape[1:]


class ColumnWriter:
    """Writes what N envs show into a column of a rollout, step by step."""

    def __init__(self, path: str, shown: Array, column: Array, last: Array, frames: int = 1) -> None:
        self._path, self._shown, self._column, self._end = path, shown, column, last
        self._earlier = frames - 1
        self._newest = shown if frames == 1 else shown[:, -(shown.shape[1] // frames) :]
        self._stack = shown.reshape(len(shown), frames, -1) if frames > 1 else None  # [N, k, *]
        assert self._stack is None or np.may_share_memory(self._stack, shown)
        self._before: Array | None = None

    def first(self, begun: bool) -> None:
        """The observations of step 0, whole; ``begun``: every env's episode has just begun."""
        if self._stack is None:
            self._column[0] = self._shown
            return
        rows = self._column[: self._earlier + 1]  # [k, N, ...]
        rows[...] = self._stack.swapaxes(0, 1).reshape(rows.shape)
        self._before = self._stack.copy()
        if begun:
            self._check_first(np.ones(len(self._shown), np.bool_))

    def write(self, step: int, begun: Flags | None) -> None:
        """The observations of a later step; ``begun`` [N]: whose episode has just begun, if anybody's."""
        self._column[step + self._earlier] = self._newest
        if self._stack is None:
            return
        if begun is not None:
            self._check_first(begun)
        on = slice(None) if begun is None else ~begun
        before = self._column[step + self._earlier - 1].reshape(len(self._shown), -1)
        moved = np.array_equal(self._stack[on, -2], before[on])
        if step <= self._earlier + 1:  # who mixes up older frames shows it soon
            earlier, self._before = self._before, self._stack.copy()
            moved = moved and (earlier is None or np.array_equal(earlier[on, 1:], self._stack[on, :-1]))
        if not moved:
            raise UsageError(f"{self._claim()}, but a step does not move them along, so that the newest is last; {_DO}")

    def last(self) -> None:
        """The observations after the last step."""
        self._end[...] = self._shown

    def _check_first(self, begun: Flags) -> None:
        assert self._stack is not None
        stack = self._stack[begun]
        if not (stack == stack[:, -1:]).all():
            raise UsageError(f"{self._claim()}, but when an episode begins they are not all its first; {_DO}")

    def _claim(self) -> str:
        return f"the env says that its observation {self._path!r} is {self._earlier + 1} frames, oldest first"


class ObservationView:
    """The observations of a rollout (or some leaves) by row, ``t * N + n``; stacks are put together when asked for."""

    def __init__(self, rollout: Rollout, paths: Collection[str] | None = None) -> None:
        seen = rollout.observations.items()
        self._columns = {path: column for path, column in seen if paths is None or path in paths}
        self._stacks = rollout.stacks
        self._n_steps, self._n_envs = rollout.n_steps, rollout.n_envs
        if self._stacks:
            began = np.zeros((self._n_steps, self._n_envs), np.int64)  # the step in which a row's episode did
            ended = rollout.terminated[:-1] | rollout.truncated[:-1]
            began[1:] = np.where(ended, np.arange(1, self._n_steps)[:, None], 0)
            self._began = np.maximum.accumulate(began).reshape(-1)

    def __getitem__(self, rows: Indices) -> Leaves:
        """The observations of some rows, each [R, ...]."""
        found: Leaves = {}
        for path, column in self._columns.items():
            if path in self._stacks:
                found[path] = self._gather(column, self._stacks[path], rows)
            else:
                found[path] = column.reshape(-1, *column.shape[2:])[rows]
        return found

    def all(self) -> Leaves:
        """Those of all rows, each [T * N, ...]; what is no stack is not copied."""
        every = np.arange(self._n_steps * self._n_envs)
        return {
            path: self._gather(column, self._stacks[path], every)
            if path in self._stacks
            else column.reshape(-1, *column.shape[2:])
            for path, column in self._columns.items()
        }

    def _gather(self, column: Array, frames: int, rows: Indices) -> Array:
        steps, envs = np.divmod(rows, self._n_envs)
        began = self._began[rows]
        earliest = np.where(began > 0, began + frames - 1, 0)  # before step 0 frames are as they were shown
        of = np.maximum(steps[:, None] + np.arange(frames), earliest[:, None])  # [R, k]
        stack: Array = column[of, envs[:, None]]  # [R, k, c, ...]
        return stack.reshape(len(rows), -1, *column.shape[3:])
