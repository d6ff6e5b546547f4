"""The arrays of a rollout, to be written wherever they lie: in this process, or in memory that workers share."""

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

__all__ = ["allocate", "columns_of", "named_columns"]


def named_columns(
    layout: Layout, codec: ActionCodec, t: int, n: int, masked: bool, stacks: Mapping[str, int], n_state: int = 0
) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
    """Shape and dtype of every column, under the names that ``to_columns`` expects."""
    single, boolean = np.dtype(np.float32), np.dtype(np.bool_)
    if ACTION_FEATURES in stacks:
        raise UsageError(f"the env's frame_stacks name {ACTION_FEATURES!r}, which is no stack of frames; remove it")
    named = {f"observations:{leaf.path}": (column_shape(leaf, stacks, t, n), leaf.dtype) for leaf in layout.leaves}
    named |= {"actions": ((t, n, codec.n_actions), codec.dtype)}
    named |= dict.fromkeys(("log_probs", "values", "final_values"), ((t, n), single))
    named |= dict.fromkeys(("terminated", "truncated", "life_lost"), ((t, n), boolean))
    named |= {"rewards": ((t, n), np.dtype(np.float64))}
    named |= dict.fromkeys(("next_episode", "next_opponent"), ((t, n), np.dtype(np.int64)))
    named |= {"last_values": ((n,), single)}
    named |= {f"last_observations:{leaf.path}": ((n, *leaf.shape), leaf.dtype) for leaf in layout.leaves}
    if masked:
        named |= {"masks": ((t, n, codec.n_mask), boolean), "last_masks": ((n, codec.n_mask), boolean)}
    if n_state:
        named |= {"states": ((t, n, n_state), single), "last_states": ((n, n_state), single)}
    return named


def allocate(
    layout: Layout, codec: ActionCodec, t: int, n: int, masked: bool, stacks: Mapping[str, int], n_state: int = 0
) -> Rollout:
    """A rollout with new poisoned arrays in this process."""
    named = named_columns(layout, codec, t, n, masked, stacks, n_state)
    size = sum(math.prod(shape) * dtype.itemsize for shape, dtype in named.values())
    if size > (free := available_memory()):  # the system would promise it all the same, and end the process later
        raise MemoryError(f"it takes {size / 2**30:.1f} GB, and {free / 2**30:.1f} GB are free")
    return Rollout.from_arrays({name: poisoned(shape, dtype) for name, (shape, dtype) in named.items()}, stacks)


def columns_of(rollout: Rollout, first: int, stop: int) -> Rollout:
    """A view of some envs' columns."""
    columns: dict[str, Any] = {"stacks": rollout.stacks}
    for column in fields(rollout):
        value: Any = getattr(rollout, column.name)
        part: Any = slice(first, stop) if column.name.startswith("last_") else (slice(None), slice(first, stop))
        if column.name in ("observations", "last_observations"):
            columns[column.name] = {path: leaf[part] for path, leaf in value.items()}
        elif isinstance(value, np.ndarray):
            columns[column.name] = value[part]
    return Rollout(**columns)
