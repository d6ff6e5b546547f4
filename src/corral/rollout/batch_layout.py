"""Where in a batch an observation lies, so that its result does not depend on who else is in the batch.

A row of a matrix product can differ in its last bits with the number of rows and with its place among them, because
libraries compute edges with other instructions. Measured: with OpenBLAS on AVX2, results are the same in batches of
whole tiles of 12 rows, as long as a row keeps its place within a tile. So env ``i`` always lies at row ``i`` modulo
the tile, whoever computes it; which tile holds is tried out at start, on the network itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["MOST_WEIGHTS", "SINGLE_ROW", "UNTRIED", "BatchLayout", "RowLayout", "envs_tried", "find_batch_layout"]

Array = npt.NDArray[Any]
_TILES = (1, 2, 4, 8, 12, 16, 24, 32, 48)
_TRIED = 48  # tiles in a call, at least
_DEAR_TILES = (1, 2, 4, 8)  # where a row costs so much that few may be wasted
_GROUP = 16  # rows of a batch where no tile holds
MOST_WEIGHTS = 8_000_000
"""The largest network that is tried out: the search costs some thousand rows of it.

It took minutes and 3 GB with 300,000 inputs (38 million weights). Networks that are usual here are far below: two
towers of three layers of 1,024 have 5 million. This is a rule of the shape alone, because one of time could place the
rows of a run in two ways.
"""


@dataclass(frozen=True, slots=True)
class BatchLayout:
    """Rows come in tiles, up to ``most`` of them in a call."""

    tile: int
    most: int

    def rows_of(self, envs: Sequence[int] | npt.NDArray[np.int64]) -> RowLayout:
        """Where observations of these envs lie; an env may be there more than once."""
        residues = np.asarray(envs, np.int64) % self.tile
        earlier = np.zeros(len(residues), np.int64)  # how many before it want the same row of a tile
        for residue in np.unique(residues):
            same = residues == residue
            earlier[same] = np.arange(np.count_nonzero(same))
        rows = earlier * self.tile + residues
        padded = int(earlier.max(initial=0) + 1) * self.tile
        consecutive = len(rows) > 0 and bool((np.diff(rows) == 1).all())
        return RowLayout(slice(int(rows[0]), int(rows[-1]) + 1) if consecutive else rows, padded, self)

    def calls(self, padded: int) -> list[slice]:
        """The parts of a padded batch that go through the network together."""
        rows = self.tile * self.most
        return [slice(start, min(start + rows, padded)) for start in range(0, padded, rows)]

    def __str__(self) -> str:
        if self == SINGLE_ROW:
            return "batches of one row"
        together = "" if self.most > 1 else ", one at a time"
        return f"tiles of {self.tile} rows{together}"


SINGLE_ROW = BatchLayout(1, 1)
UNTRIED = BatchLayout(_GROUP, 1)
"""Every batch has the same number of rows, and an env its own row, so that results are invariant with any library."""


@dataclass(frozen=True, slots=True)
class RowLayout:
    """The rows of some observations in a padded batch."""

    rows: slice | Array
    padded: int
    batch_layout: BatchLayout

    def calls(self) -> list[slice]:
        """The parts of the batch that go through the network together."""
        return self.batch_layout.calls(self.padded)


def envs_tried(n_envs: int) -> int:
    """The number of envs that stands for ``n_envs`` in the search: all small ones have the same result."""
    return max(n_envs, _TRIED)


def find_batch_layout(
    run: Callable[[int, int, int], Sequence[Array]], n_envs: int, expensive: bool = False
) -> BatchLayout:
    """The smallest tile with which rows are invariant; ``expensive``: a row costs so much that few may be wasted.

    ``run(rows, first, stop)`` gives the network's outputs for rows ``first`` to ``stop`` of a fixed batch of ``rows``.
    """
    for tile in _DEAR_TILES if expensive else _TILES:
        tiles = max(_TRIED, -(-n_envs // tile))
        rows = tile * tiles
        whole = run(rows, 0, rows)
        parts = [(0, 1), (1, 2), (tiles - 1, tiles), (0, 2), (1, 4), (0, tiles // 2), (tiles // 2, tiles)]
        if all(
            np.array_equal(part, all_rows[first * tile : stop * tile])
            for first, stop in parts
            for part, all_rows in zip(run(rows, first * tile, stop * tile), whole, strict=True)
        ):
            return BatchLayout(tile, tiles)
    return SINGLE_ROW if expensive else UNTRIED
