"""Small worlds, drawn as text, and a slow definition of who has a front where."""

import math

import numpy as np

from corral_games.territory import ticks_numpy
from corral_games.territory.rules import BLOCKED, FREE, HIGHLAND, MOUNTAIN, PLAINS, WATER
from corral_games.territory.state import NEVER, World

try:
    from corral_games.territory import ticks_numba
except ImportError:  # numba is optional
    TICKS = [ticks_numpy]
else:
    TICKS = [ticks_numpy, ticks_numba]
TICK_NAMES = [module.__name__.rpartition("_")[2] for module in TICKS]

_TERRAIN = {"~": WATER, ".": PLAINS, "^": HIGHLAND, "A": MOUNTAIN}


def world_of(*lines, home, seed=7):
    """A square world: ``~ . ^ A`` are free water, plains, highland, mountain; a digit is a player's plains."""
    size = max(len(lines), *map(len, lines))
    rows = [line.ljust(size, "~") for line in lines] + ["~" * size] * (size - len(lines))
    players = len(home)
    terrain = np.zeros((size + 2, size + 2), np.int8)
    owner = np.full((size + 2, size + 2), BLOCKED, np.int8)
    for r, row in enumerate(rows, 1):
        for c, sign in enumerate(row, 1):
            terrain[r, c] = _TERRAIN.get(sign, PLAINS)
            owner[r, c] = int(sign) if sign.isdigit() else FREE if terrain[r, c] else BLOCKED
    down, right = np.mgrid[: size + 2, : size + 2]
    owned = [owner == player for player in range(players)]
    return World(
        seed=seed,
        tick=0,
        width=size + 2,
        terrain=terrain.ravel(),
        owner=owner.ravel(),
        home=np.array(home, np.int64),
        away=np.zeros(players, np.int64),
        heading=np.zeros(players, np.int64),
        target=np.full(players, FREE, np.int64),
        land=np.array([tiles.sum() for tiles in owned], np.int64),
        rows=np.array([down[tiles].sum() for tiles in owned], np.int64),
        columns=np.array([right[tiles].sum() for tiles in owned], np.int64),
        due=np.full(players, NEVER, np.int64),
    )


def fronts(world, player):
    """Tiles that border on a player's land and are not its own: {tile: sector}."""
    width = world.width
    mine = np.argwhere(world.owner.reshape(width, width) == player)
    centre = mine.mean(axis=0)
    found = {}
    for row, column in mine.tolist():
        for tile in (
            (row - 1) * width + column,
            row * width + column + 1,
            (row + 1) * width + column,
            row * width + column - 1,
        ):
            if world.owner[tile] not in (player, BLOCKED):
                down, right = np.array(divmod(tile, width)) - centre
                found[tile] = round(math.degrees(math.atan2(right, -down)) / 45) % 8
    return found
