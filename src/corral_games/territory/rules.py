"""The numbers of the game, and those of its rules that look at one tile or one player.

Troops are integers in units of 1/1024, so that the same game comes out on every machine. The functions are plain
arithmetic: ``ticks_numpy`` calls them with arrays, ``ticks_numba`` compiles them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = [
    "ANYONE",
    "BLOCKED",
    "EVERYWHERE",
    "FREE",
    "HIGHLAND",
    "MOUNTAIN",
    "ONE",
    "PLAINS",
    "WATER",
    "capacity",
    "growth",
    "sector",
]

WATER, PLAINS, HIGHLAND, MOUNTAIN = range(4)
"""Kinds of terrain."""
FREE, BLOCKED = -1, -2
"""Owners of tiles that nobody owns, or can own; also: an attack on free land only."""
ANYONE = -2
"""An attack on whoever is met."""
EVERYWHERE = 8
"""The heading of an attack in all directions; 0 to 7 are N, NE, E, SE, S, SW, W, NW."""

ONE = 1024
"""One soldier."""
CAP, CAP_PER_TILE = 10 * ONE, 5 * ONE
"""The most that a player's troops grow to: so much, and so much for each tile."""
GROWTH_TICKS = 50
"""Troops that are few multiply by e in so many ticks."""
LEAST_PER_TILE = ONE // 8
"""Troops grow as if at least so many were at home, so that nobody is stuck at nothing."""
START_PER_TILE = 2 * ONE
PACE = np.array([0, 65536 // 6, 65536 // 9, 65536 // 12], np.int64)
"""By terrain: the chance, of 65,536, that an attack takes a tile in a tick, for each side on which it is met."""
TOLL = np.array([0, 6, 8, 11], np.int64)
"""By terrain: soldiers that a free tile costs."""
GUARD = 4
"""A tile that somebody owns costs so many times the toll, and the soldiers of its owner that stand on it."""
ARMOUR = np.array([0, 4, 5, 6], np.int64)
"""By terrain: quarters by which the soldiers that stand on a tile count."""
WIN_PERCENT = 80
"""Share of all land that wins."""

_TAN_22_5 = (29, 70)  # 0.4142857; the tangent is 0.4142136


def capacity(land: Any) -> Any:
    """The most that a player's troops grow to."""
    return CAP + CAP_PER_TILE * land


def growth(home: Any, away: Any, land: Any) -> Any:
    """Troops that a player gains in a tick: most with about half of what it can have, none when that is full."""
    cap = capacity(land)
    room = cap - home - away
    return (home + LEAST_PER_TILE * land) * (room * (room > 0)) // (cap * GROWTH_TICKS)


def sector(down: Any, right: Any) -> Any:
    """Which of the eight compass sectors, N = 0 clockwise to NW = 7, a step of so many rows and columns leads into."""
    tall, wide = abs(down), abs(right)
    upright = _TAN_22_5[1] * wide < _TAN_22_5[0] * tall
    level = _TAN_22_5[1] * tall < _TAN_22_5[0] * wide
    # each is 0 or 1; a diagonal is neither upright nor level
    south, east = 1 * (down > 0), 1 * (right > 0)
    slanted = (1 - upright) * (1 - level)
    diagonal = 1 * (1 - south) * east + 3 * south * east + 5 * south * (1 - east) + 7 * (1 - south) * (1 - east)
    return upright * 4 * south + level * (6 - 4 * east) + slanted * diagonal
