"""The map of an episode: terrain from smooth noise, and the places where the players begin.

All in integers, but for the angles of the starts, which are rounded to tiles.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from corral_games.territory.rules import HIGHLAND, MOUNTAIN, PLAINS, WATER

__all__ = ["lay_out"]

Grid = npt.NDArray[np.int8]
_WAVES = ((3, 4), (6, 2), (12, 1))  # cells along a side, and weight
_SEA, _LOW, _HIGH = 15, 68, 90  # percent of tiles that are water, that are no higher than plains, than highland


def lay_out(size: int, players: int, rng: np.random.Generator) -> tuple[Grid, npt.NDArray[np.int64], int]:
    """A map [size + 2, size + 2] with water around it, the start [row, column] of each player, and its radius.

    Starts are evenly spaced on a circle, in an order that is drawn. All land can be reached from all of them.
    """
    terrain = np.zeros((size + 2, size + 2), np.int8)
    terrain[1:-1, 1:-1] = _relief(size, rng)
    turn, order = float(rng.random()), rng.permutation(players)
    centre, radius = (size + 1) / 2, 0.36 * size
    angles = [2 * math.pi * (int(place) + turn) / players for place in order]
    starts = np.array([(round(centre + radius * math.sin(a)), round(centre + radius * math.cos(a))) for a in angles])
    spacing = 2 * math.pi * radius / players
    reach = 2 if spacing >= 7 else 1 if spacing >= 4 else 0
    inner = terrain[1:-1, 1:-1]
    down, right = np.mgrid[1 : size + 1, 1 : size + 1]
    for row, column in starts:
        inner[abs(down - row) + abs(right - column) <= reach + 2] = PLAINS
    reached = _flood(terrain, starts[0])
    if not reached[starts[:, 0], starts[:, 1]].all():
        for start in starts:
            _build_road(terrain, start, size)
        reached = _flood(terrain, starts[0])
    terrain[~reached] = WATER
    return terrain, starts.astype(np.int64), reach


def _relief(size: int, rng: np.random.Generator) -> Grid:
    """Terrain [size, size]: the lowest tiles are water, the highest are mountains."""
    height = np.zeros((size, size), np.int64)
    for cells, weight in _WAVES:
        corners = rng.integers(1024, size=(cells + 1, cells + 1))
        place, part = np.divmod(np.arange(size) * cells, size)
        rows = corners[place] * (size - part)[:, None] + corners[place + 1] * part[:, None]  # [size, cells + 1]
        height += weight * (rows[:, place] * (size - part) + rows[:, place + 1] * part)
    ordered = np.sort(height, axis=None)
    sea, low, high = (ordered[len(ordered) * percent // 100] for percent in (_SEA, _LOW, _HIGH))
    relief = np.full((size, size), MOUNTAIN, np.int8)
    relief[height < high] = HIGHLAND
    relief[height < low] = PLAINS
    relief[height < sea] = WATER
    return relief


def _flood(terrain: Grid, start: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """The land that can be reached from ``start``."""
    land = terrain != WATER
    reached: npt.NDArray[np.bool_] = np.zeros_like(land)
    reached[start[0], start[1]] = True
    count = 0
    while count != (count := int(reached.sum())):
        for _ in range(8):
            reached[1:] |= reached[:-1] & land[1:]
            reached[:-1] |= reached[1:] & land[:-1]
            reached[:, 1:] |= reached[:, :-1] & land[:, 1:]
            reached[:, :-1] |= reached[:, 1:] & land[:, :-1]
    return reached


def _build_road(terrain: Grid, start: npt.NDArray[np.int64], size: int) -> None:
    """Turn the water between ``start`` and the centre into plains."""
    row, column = int(start[0]), int(start[1])
    centre = (size + 1) // 2
    while (row, column) != (centre, centre):
        if abs(row - centre) >= abs(column - centre):
            row += 1 if row < centre else -1
        else:
            column += 1 if column < centre else -1
        if terrain[row, column] == WATER:
            terrain[row, column] = PLAINS
