"""Where in a batch an observation lies, so that its result does not depend on who else is in the batch.

A row of a matrix product can differ in its last bits with the number of rows and with its place among them, because
libraries compute edges with other instructions. Measured: with OpenBLAS on AVX2, results are the same in batches of
whole tiles of 12 rows, as long as a row keeps its place within a tile. So env ``i`` always lies at row ``i`` modulo
the tile, whoever computes it; which tile holds is tried out at start, on the network itself. Torch's convolutions are
the same anywhere in a batch, unless it has fewer than 4 rows: then only small batches are filled up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["ONE_AT_A_TIME", "Place", "Placement", "find_placement", "find_small_placement"]

Array = npt.NDArray[Any]
_TILES = (1, 2, 4, 8, 12, 16, 24, 32, 48)
_TRIED = 48  # tiles in a call, at least
_GROUP = 16  # rows of a batch where no tile holds
_LEAST = (1, 4, 8)  # rows of the smallest batches
_LARGE = 24  # rows from which on sizes of batches are no longer tried one by one


@dataclass(frozen=True, slots=True)
class Placement:
    """Rows come in tiles, up to ``most`` of them in a call; and at least so many rows in a call."""

    tile: int
    most: int
    least: int = 1

    def of(self, envs: Sequence[int] | npt.NDArray[np.int64]) -> Place:
        """Where observations of these envs lie; an env may be there more than once."""
        residues = np.asarray(envs, np.int64) % self.tile
        earlier = np.zeros(len(residues), np.int64)  # how many before it want the same row of a tile
        for residue in np.unique(residues):
            same = residues == residue
            earlier[same] = np.arange(np.count_nonzero(same))
        rows = earlier * self.tile + residues
        padded = max(self.least, int(earlier.max(initial=0) + 1) * self.tile)
        consecutive = len(rows) > 0 and bool((np.diff(rows) == 1).all())
        return Place(slice(int(rows[0]), int(rows[-1]) + 1) if consecutive else rows, padded, self)

    def calls(self, padded: int) -> list[slice]:
        """The parts of a padded batch that go through the network together."""
        rows = self.tile * self.most
        calls = [slice(start, min(start + rows, padded)) for start in range(0, padded, rows)]
        if (missing := self.least - (calls[-1].stop - calls[-1].start)) > 0:  # the call before has them to spare
            calls[-2:] = [
                slice(calls[-2].start, calls[-2].stop - missing),
                slice(calls[-1].start - missing, calls[-1].stop),
            ]
        return calls

    def __str__(self) -> str:
        if self.tile == 1:
            return "batches of one row" if self.most == 1 else f"batches of {self.least} to {self.most} rows"
        together = "" if self.most > 1 else ", one at a time"
        return f"tiles of {self.tile} rows{together}"


ONE_AT_A_TIME = Placement(1, 1)


@dataclass(frozen=True, slots=True)
class Place:
    """The rows of some observations in a padded batch."""

    rows: slice | Array
    padded: int
    placement: Placement

    def calls(self) -> list[slice]:
        """The parts of the batch that go through the network together."""
        return self.placement.calls(self.padded)


def find_placement(run: Callable[[int, int, int], Sequence[Array]], n_envs: int) -> Placement:
    """The smallest tile with which rows are invariant.

    ``run(rows, first, stop)`` gives the network's outputs for rows ``first`` to ``stop`` of a fixed batch of ``rows``.
    """
    for tile in _TILES:
        tiles = max(_TRIED, -(-n_envs // tile))
        rows = tile * tiles
        whole = run(rows, 0, rows)
        parts = [(0, 1), (1, 2), (tiles - 1, tiles), (0, 2), (1, 4), (0, tiles // 2), (tiles // 2, tiles)]
        if all(
            np.array_equal(part, all_rows[first * tile : stop * tile])
            for first, stop in parts
            for part, all_rows in zip(run(rows, first * tile, stop * tile), whole, strict=True)
        ):
            return Placement(tile, tiles)
    return Placement(_GROUP, 1)


def find_small_placement(run: Callable[[int, int, int], Sequence[Array]], n_envs: int) -> Placement:
    """For networks where a row costs so much that hardly any may be wasted: small batches are filled up, or none are.

    ``run`` is as for ``find_placement``.
    """
    rows = max(_TRIED, n_envs)
    whole = run(rows, 0, rows)

    def holds(size: int) -> bool:
        return all(
            np.array_equal(part, all_rows[start : start + size])
            for start in (1, rows - size)
            for part, all_rows in zip(run(rows, start, start + size), whole, strict=True)
        )

    sizes = [*range(1, _LARGE), *range(_LARGE, rows, 13)]
    wrong = max((size for size in sizes if not holds(size)), default=0)
    least = next((least for least in _LEAST if least > wrong), None)
    return ONE_AT_A_TIME if least is None else Placement(1, rows, least)
