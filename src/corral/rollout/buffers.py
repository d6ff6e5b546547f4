"""The arrays of a rollout: their names, shapes and dtypes, their allocation, and views of some envs' columns."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from corral.core.actions import ACTION_FEATURES, ActionCodec
from corral.core.errors import UsageError
from corral.core.frame_stacks import column_shape
from corral.core.machine import available_memory
from corral.core.spaces import Layout, poisoned
from corral.core.types import Rollout

__all__ = ["allocate_rollout", "column_specs", "env_columns", "rollout_columns"]


def column_specs(
    layout: Layout, codec: ActionCodec, t: int, n: int, masked: bool, stacks: Mapping[str, int], n_state: int = 0
) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
    """Return shape and dtype of every array of a rollout of ``t`` steps and ``n`` envs.

    Names are those that ``core.types.to_columns`` reads. ``masked``: whether the envs mask actions. ``stacks``: by the
    path of an observation's leaf, the number of frames in it. ``n_state``: numbers in a recurrent policy's state.
    """
    float32, boolean = np.dtype(np.float32), np.dtype(np.bool_)
    if ACTION_FEATURES in stacks:
        raise UsageError(f"the env's frame_stacks name {ACTION_FEATURES!r}, which is no stack of frames; remove it")
    named = {f"observations:{leaf.path}": (column_shape(leaf, stacks, t, n), leaf.dtype) for leaf in layout.leaves}
    named |= {"actions": ((t, n, codec.n_actions), codec.dtype)}
    named |= dict.fromkeys(("log_probs", "values", "final_values"), ((t, n), float32))
    named |= dict.fromkeys(("terminated", "truncated", "life_lost"), ((t, n), boolean))
    named |= {"rewards": ((t, n), np.dtype(np.float64))}
    named |= dict.fromkeys(("next_episode", "next_opponent"), ((t, n), np.dtype(np.int64)))
    named |= {"last_values": ((n,), float32)}
    named |= {f"last_observations:{leaf.path}": ((n, *leaf.shape), leaf.dtype) for leaf in layout.leaves}
    if masked:
        named |= {"masks": ((t, n, codec.n_mask), boolean), "last_masks": ((n, codec.n_mask), boolean)}
    if n_state:
        named |= {"states": ((t, n, n_state), float32), "last_states": ((n, n_state), float32)}
    return named


def allocate_rollout(
    layout: Layout, codec: ActionCodec, t: int, n: int, masked: bool, stacks: Mapping[str, int], n_state: int = 0
) -> Rollout:
    """Return a rollout with new arrays in this process, filled with values that show a missed write.

    For the arguments see ``column_specs``. Raise ``MemoryError`` if the arrays do not fit into free memory.
    """
    named = column_specs(layout, codec, t, n, masked, stacks, n_state)
    size = sum(math.prod(shape) * dtype.itemsize for shape, dtype in named.values())
    if size > (free := available_memory()):  # Linux would grant the memory, and kill the process when it is written
        raise MemoryError(f"it takes {size / 2**30:.1f} GB, and {free / 2**30:.1f} GB are free")
    return Rollout.from_arrays({name: poisoned(shape, dtype) for name, (shape, dtype) in named.items()}, stacks)


def env_columns(rollout: Rollout, first: int, stop: int) -> Rollout:
    """Return a view of the columns of the envs ``first`` to ``stop``, without copying."""
    columns: dict[str, Any] = {"stacks": rollout.stacks}
    for column in fields(rollout):
        value: Any = getattr(rollout, column.name)
        envs: Any = slice(first, stop)
        index = envs if column.name.startswith("last_") else (slice(None), envs)  # [N, ...] or [T, N, ...]
        if column.name in ("observations", "last_observations"):
            columns[column.name] = {path: leaf[index] for path, leaf in value.items()}
        elif isinstance(value, np.ndarray):
            columns[column.name] = value[index]
    return Rollout(**columns)


def rollout_columns(rollout: Rollout) -> dict[str, Any]:
    """Return the arrays of a rollout by the names that ``core.types.to_columns`` reads."""
    columns: dict[str, Any] = {}
    for name in (column.name for column in fields(rollout)):
        value = getattr(rollout, name)
        if isinstance(value, np.ndarray):
            columns[name] = value
        elif name in ("observations", "last_observations"):
            columns |= {f"{name}:{path}": leaf for path, leaf in value.items()}
    return columns
