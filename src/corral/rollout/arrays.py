"""The arrays of a rollout, wherever they lie: in this process, or in memory that workers write to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from corral.core.actions import ActionCodec
from corral.core.spaces import Layout, poisoned, to_columns
from corral.core.types import Leaves

__all__ = ["RolloutArrays"]

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class RolloutArrays:
    """The columns of a ``Rollout``, to be written."""

    observations: Leaves  # each [T, N, ...]
    actions: Array  # [T, N, D]
    log_probs: npt.NDArray[np.float32]  # [T, N]
    values: npt.NDArray[np.float32]  # [T, N]
    rewards: npt.NDArray[np.float32]  # [T, N]
    terminated: npt.NDArray[np.bool_]  # [T, N]
    truncated: npt.NDArray[np.bool_]  # [T, N]
    final_values: npt.NDArray[np.float32]  # [T, N]
    last_values: npt.NDArray[np.float32]  # [N]
    masks: npt.NDArray[np.bool_] | None = None  # [T, N, A]

    @classmethod
    def named(
        cls, layout: Layout, codec: ActionCodec, t: int, n: int, masked: bool
    ) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
        """Shape and dtype of every array, under the names that ``of`` expects."""
        single, boolean = np.dtype(np.float32), np.dtype(np.bool_)
        named = {f"observations:{leaf.path}": ((t, n, *leaf.shape), leaf.dtype) for leaf in layout.leaves}
        named |= {"actions": ((t, n, codec.n_actions), codec.dtype)}
        named |= dict.fromkeys(("log_probs", "values", "rewards", "final_values"), ((t, n), single))
        named |= dict.fromkeys(("terminated", "truncated"), ((t, n), boolean))
        named |= {"last_values": ((n,), single)}
        return named | ({"masks": ((t, n, codec.n_mask), boolean)} if masked else {})

    @classmethod
    def of(cls, arrays: Mapping[str, Array]) -> RolloutArrays:
        """Assemble from named arrays."""
        return cls(**to_columns(arrays))

    @classmethod
    def allocate(cls, layout: Layout, codec: ActionCodec, t: int, n: int, masked: bool) -> RolloutArrays:
        """New poisoned arrays in this process."""
        named = cls.named(layout, codec, t, n, masked)
        return cls.of({name: poisoned(shape, dtype) for name, (shape, dtype) in named.items()})

    def envs(self, first: int, stop: int) -> RolloutArrays:
        """A view of some envs' columns."""
        columns: dict[str, Any] = {"last_values": self.last_values[first:stop]}
        for column in fields(self):
            value = getattr(self, column.name)
            if isinstance(value, dict):
                columns[column.name] = {path: leaf[:, first:stop] for path, leaf in value.items()}
            elif value is not None and column.name not in columns:
                columns[column.name] = value[:, first:stop]
        return RolloutArrays(**columns)

    def columns(self) -> dict[str, Any]:
        """Every column by name, for a ``Rollout``."""
        return {column.name: getattr(self, column.name) for column in fields(self)}
