"""Generates the map of an episode: terrain from smooth noise, and the tiles on which the players start.

The terrain is computed with integers only. The starts are computed from angles and rounded to tiles.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from corral_games.territory.rules import HIGHLAND, MOUNTAIN, PLAINS, WATER

__all__ = ["StartingMap", "generate_map"]

Grid = npt.NDArray[np.int8]
_OCTAVES = ((3, 4), (6, 2), (12, 1))
"""Octaves of the noise: cells along a side of the map, and weight."""
_WATER_PERCENT, _PLAINS_PERCENT, _HIGHLAND_PERCENT = 15, 68, 90
"""Percent of tiles that are water; that are water or plains; that are not mountains."""


class StartingMap(NamedTuple):
    """The terrain of an episode, and where the players start."""

    terrain: Grid
    """[size + 2, size + 2]: the map with a frame of water around it."""
    starts: npt.NDArray[np.int64]
    """[P, 2]: row and column of each player's start."""
    radius: int
    """A player starts with all tiles up to this Manhattan distance from its start."""


def generate_map(size: int, players: int, rng: np.random.Generator) -> StartingMap:
    """Generate a map on which all land can be reached from every start.

    The starts are evenly spaced on a circle and assigned to the players in random order. Land that cannot be reached
    becomes water. If water separates the starts, each gets a road to the centre.
    """
    terrain = np.zeros((size + 2, size + 2), np.int8)
    terrain[1:-1, 1:-1] = _noise_terrain(size, rng)
    rotation, order = float(rng.random()), rng.permutation(players)
    centre, circle_radius = (size + 1) / 2, 0.36 * size
    angles = [2 * math.pi * (int(place) + rotation) / players for place in order]
    starts = np.array(
        [(round(centre + circle_radius * math.sin(a)), round(centre + circle_radius * math.cos(a))) for a in angles]
    )
    spacing = 2 * math.pi * circle_radius / players
    radius = 2 if spacing >= 7 else 1 if spacing >= 4 else 0
    inner = terrain[1:-1, 1:-1]
    down, right = np.mgrid[1 : size + 1, 1 : size + 1]
    for row, column in starts:
        inner[abs(down - row) + abs(right - column) <= radius + 2] = PLAINS
    reachable = _flood_fill(terrain, starts[0])
    if not reachable[starts[:, 0], starts[:, 1]].all():
        for start in starts:
            _build_road(terrain, start, size)
        reachable = _flood_fill(terrain, starts[0])
    terrain[~reachable] = WATER
    return StartingMap(terrain=terrain, starts=starts.astype(np.int64), radius=radius)


def _noise_terrain(size: int, rng: np.random.Generator) -> Grid:
    """Return terrain [size, size]: the lowest tiles of a height map are water, the highest are mountains.

    The height is value noise: random numbers on coarse grids, interpolated linearly and added up.
    """
    height = np.zeros((size, size), np.int64)
    for cells, weight in _OCTAVES:
        corners = rng.integers(1024, size=(cells + 1, cells + 1))
        cell, fraction = np.divmod(np.arange(size) * cells, size)  # the fraction in units of 1/size
        rows = corners[cell] * (size - fraction)[:, None] + corners[cell + 1] * fraction[:, None]  # [size, cells + 1]
        height += weight * (rows[:, cell] * (size - fraction) + rows[:, cell + 1] * fraction)  # [size, size]
    heights = np.sort(height, axis=None)
    percents = (_WATER_PERCENT, _PLAINS_PERCENT, _HIGHLAND_PERCENT)
    water_limit, plains_limit, highland_limit = (heights[len(heights) * percent // 100] for percent in percents)
    terrain = np.full((size, size), MOUNTAIN, np.int8)
    terrain[height < highland_limit] = HIGHLAND
    terrain[height < plains_limit] = PLAINS
    terrain[height < water_limit] = WATER
    return terrain


def _flood_fill(terrain: Grid, start: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Return which tiles are land that can be reached from ``start``."""
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
