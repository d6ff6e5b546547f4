"""The constants of Territory, and the rules that concern one tile or one player.

Troops are integers in units of 1/1024 soldier, so that a game has the same result on every machine. The functions are
plain arithmetic: ``ticks_numpy`` calls them with arrays, ``ticks_numba`` compiles them.
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
    "PLAINS",
    "SOLDIER",
    "WATER",
    "capacity",
    "growth",
    "sector",
]

WATER, PLAINS, HIGHLAND, MOUNTAIN = range(4)
"""Kinds of terrain."""
FREE, BLOCKED = -1, -2
"""Owners of tiles without a player: free land, and water, which nobody can own. FREE is also the target of an attack on
free land only."""
ANYONE = -2
"""The target of an attack on every tile that it reaches, whoever owns it."""
EVERYWHERE = 8
"""The heading of an attack in all directions. Headings 0 to 7 are the sectors N, NE, E, SE, S, SW, W, NW."""

SOLDIER = 1024
"""One soldier, in units of troops."""
CAP, CAP_PER_TILE = 10 * SOLDIER, 5 * SOLDIER
"""The capacity, up to which a player's troops grow, is CAP and CAP_PER_TILE for each tile."""
GROWTH_TICKS = 50
"""Ticks in which troops far below the capacity multiply by e."""
MIN_GROWTH_PER_TILE = SOLDIER // 8
"""Added to the troops at home, for each tile, when growth is computed, so that a player without troops recovers."""
START_PER_TILE = 2 * SOLDIER
"""Troops per tile at the start of a game."""
CAPTURE_CHANCE = np.array([0, 65536 // 6, 65536 // 9, 65536 // 12], np.int64)
"""By terrain: the chance, out of 65,536, that an attack claims a tile in a tick, for each side that it comes from."""
TILE_COST = np.array([0, 6, 8, 11], np.int64)
"""By terrain: the cost of a free tile in soldiers."""
OWNED_COST_FACTOR = 4
"""A tile with an owner costs this many times as much as a free tile, plus the owner's soldiers that stand on it."""
DEFENDER_COST = np.array([0, 4, 5, 6], np.int64)
"""By terrain: the cost of each soldier that stands on a tile, in quarters of a soldier."""
WIN_PERCENT = 80
"""Percent of all land with which a player wins."""

_TAN_22_5 = (29, 70)  # a fraction near the tangent of 22.5 degrees: 0.4142857 instead of 0.4142136


def capacity(land: Any) -> Any:
    """Return the number of troops up to which a player with ``land`` tiles grows."""
    return CAP + CAP_PER_TILE * land


def growth(home: Any, away: Any, land: Any) -> Any:
    """Return the troops that a player gains in a tick.

    Growth is logistic: largest when the troops are about half of the capacity, and zero at the capacity. Troops that
    are away in an attack use capacity but do not multiply.
    """
    cap = capacity(land)
    room = cap - home - away
    return (home + MIN_GROWTH_PER_TILE * land) * (room * (room > 0)) // (cap * GROWTH_TICKS)


def sector(down: Any, right: Any) -> Any:
    """Return the compass sector, from N = 0 clockwise to NW = 7, of a tile ``down`` rows and ``right`` columns away."""
    rows, columns = abs(down), abs(right)
    # each of these is 0 or 1, and exactly one of vertical, horizontal and diagonal is 1
    vertical = _TAN_22_5[1] * columns < _TAN_22_5[0] * rows
    horizontal = _TAN_22_5[1] * rows < _TAN_22_5[0] * columns
    diagonal = (1 - vertical) * (1 - horizontal)
    south, east = 1 * (down > 0), 1 * (right > 0)
    corner = 1 * (1 - south) * east + 3 * south * east + 5 * south * (1 - east) + 7 * (1 - south) * (1 - east)
    return vertical * 4 * south + horizontal * (6 - 4 * east) + diagonal * corner
