"""The rows that observations take in a batch, so that a row's result does not depend on the other rows.

In a matrix product, the last bits of a row's result can depend on the number of rows and on the row's index, because
libraries compute the edges of a matrix with other instructions. Measured with OpenBLAS on AVX2: results are the same in
batches of whole tiles of 12 rows, if a row keeps its index within its tile. So env ``i`` always takes a row whose index
is ``i`` modulo the tile size, in every process. The tile size is found by a test of the network when a run starts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = [
    "FIXED_BATCHES",
    "MAX_TESTED_WEIGHTS",
    "SINGLE_ROW",
    "BatchLayout",
    "RowLayout",
    "find_batch_layout",
    "tested_envs",
]

Array = npt.NDArray[Any]
_TILE_SIZES = (1, 2, 4, 8, 12, 16, 24, 32, 48)
_EXPENSIVE_TILE_SIZES = (1, 2, 4, 8)
"""Tile sizes for networks in which a row costs so much that few rows may be padding."""
_MIN_TESTED_TILES = 48
_FIXED_BATCH_ROWS = 16
MAX_TESTED_WEIGHTS = 8_000_000
"""The largest network for which a tile size is searched. The search computes some thousand rows.

With 300,000 inputs (38 million weights) it took minutes and 3 GB. Usual networks are far smaller: two towers of three
layers of 1,024 have 5 million weights. The limit depends on the shape alone, because a limit on time could lead to two
different layouts in one run.
"""


@dataclass(frozen=True, slots=True)
class BatchLayout:
    """How batches are built: of tiles of ``tile`` rows, with at most ``max_tiles`` tiles in one call of the network."""

    tile: int
    max_tiles: int

    def rows_of(self, envs: Sequence[int] | npt.NDArray[np.int64]) -> RowLayout:
        """Return the rows of observations of these envs; an env may occur more than once."""
        index_in_tile = np.asarray(envs, np.int64) % self.tile
        tile_number = np.zeros(len(index_in_tile), np.int64)  # earlier observations with the same index in a tile
        for index in np.unique(index_in_tile):
            has_index = index_in_tile == index
            tile_number[has_index] = np.arange(np.count_nonzero(has_index))
        rows = tile_number * self.tile + index_in_tile
        padded = int(tile_number.max(initial=0) + 1) * self.tile
        is_consecutive = len(rows) > 0 and bool((np.diff(rows) == 1).all())
        return RowLayout(slice(int(rows[0]), int(rows[-1]) + 1) if is_consecutive else rows, padded, self)

    def calls(self, padded: int) -> list[slice]:
        """Return the rows of each call of the network, for a batch of ``padded`` rows."""
        max_rows = self.tile * self.max_tiles
        return [slice(start, min(start + max_rows, padded)) for start in range(0, padded, max_rows)]

    def __str__(self) -> str:
        if self == SINGLE_ROW:
            return "batches of one row"
        return f"tiles of {self.tile} rows{'' if self.max_tiles > 1 else ', one at a time'}"


SINGLE_ROW = BatchLayout(1, 1)
FIXED_BATCHES = BatchLayout(_FIXED_BATCH_ROWS, 1)
"""All batches have the same number of rows and an env keeps its row, so results are the same without any test."""


@dataclass(frozen=True, slots=True)
class RowLayout:
    """The rows of observations in a padded batch."""

    rows: slice | Array
    """A slice where the rows are consecutive, otherwise their indices."""
    padded: int
    """Rows of the batch, with those that are padding."""
    batch_layout: BatchLayout

    def calls(self) -> list[slice]:
        """Return the rows of each call of the network."""
        return self.batch_layout.calls(self.padded)


def tested_envs(n_envs: int) -> int:
    """Return a number of envs for which a search has the same result as for ``n_envs``; all small ones share one."""
    return max(n_envs, _MIN_TESTED_TILES)


def find_batch_layout(
    run: Callable[[int, int, int], Sequence[Array]], n_envs: int, expensive: bool = False
) -> BatchLayout:
    """Return the layout with the smallest tile size for which the results of rows do not depend on other rows.

    ``run(n_rows, first, stop)`` returns the network's outputs for the rows ``first`` to ``stop`` of a fixed batch of
    ``n_rows`` rows. ``expensive``: a row costs so much that few rows may be padding.
    """
    for tile in _EXPENSIVE_TILE_SIZES if expensive else _TILE_SIZES:
        n_tiles = max(_MIN_TESTED_TILES, -(-n_envs // tile))
        n_rows = tile * n_tiles
        outputs = run(n_rows, 0, n_rows)
        half = n_tiles // 2
        tile_ranges = [(0, 1), (1, 2), (n_tiles - 1, n_tiles), (0, 2), (1, 4), (0, half), (half, n_tiles)]
        if all(
            np.array_equal(part, output[first * tile : stop * tile])
            for first, stop in tile_ranges
            for part, output in zip(run(n_rows, first * tile, stop * tile), outputs, strict=True)
        ):
            return BatchLayout(tile, n_tiles)
    return SINGLE_ROW if expensive else FIXED_BATCHES
