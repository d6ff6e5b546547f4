"""Small worlds of Territory, drawn as text, and a reference implementation of border tiles."""

import math

import numpy as np

from corral_games.territory import ticks_numpy
from corral_games.territory.rules import BLOCKED, FREE, HIGHLAND, MOUNTAIN, PLAINS, WATER
from corral_games.territory.state import NEVER, World

try:
    from corral_games.territory import ticks_numba
except ImportError:  # Numba is optional.
    TICK_MODULES = [ticks_numpy]
else:
    TICK_MODULES = [ticks_numpy, ticks_numba]
TICK_NAMES = [module.__name__.rpartition("_")[2] for module in TICK_MODULES]

_TERRAIN = {"~": WATER, ".": PLAINS, "^": HIGHLAND, "A": MOUNTAIN}


def world_of(*lines, home, seed=7):
    """Return a square world drawn as text, with the troops ``home`` of each player.

    ``~ . ^ A`` are water and free plains, highland and mountain; a digit is plains of that player.
    """
    size = max(len(lines), *map(len, lines))
    rows = [line.ljust(size, "~") for line in lines] + ["~" * size] * (size - len(lines))
    players = len(home)
    terrain = np.zeros((size + 2, size + 2), np.int8)
    owner = np.full((size + 2, size + 2), BLOCKED, np.int8)
    for r, row in enumerate(rows, 1):
        for c, character in enumerate(row, 1):
            terrain[r, c] = _TERRAIN.get(character, PLAINS)
            owner[r, c] = int(character) if character.isdigit() else FREE if terrain[r, c] else BLOCKED
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


def border_tiles(world, player):
    """Return the tiles next to a player's land that it can attack, each with its sector: {tile: sector}."""
    width = world.width
    own_tiles = np.argwhere(world.owner.reshape(width, width) == player)
    centre = own_tiles.mean(axis=0)
    sectors = {}
    for row, column in own_tiles.tolist():
        for tile in (
            (row - 1) * width + column,
            row * width + column + 1,
            (row + 1) * width + column,
            row * width + column - 1,
        ):
            if world.owner[tile] not in (player, BLOCKED):
                down, right = np.array(divmod(tile, width)) - centre
                sectors[tile] = round(math.degrees(math.atan2(right, -down)) / 45) % 8
    return sectors
