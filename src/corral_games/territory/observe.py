"""The agent's observation: five planes of the map, and sixteen numbers."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from corral.core.sums import add_up
from corral_games.territory.rules import CAP_PER_TILE, HIGHLAND, MOUNTAIN, PLAINS, capacity, growth
from corral_games.territory.state import Ints, World

__all__ = ["GLOBALS", "PLANES", "global_features", "plane_values"]

PLANES = ("own", "enemy", "neutral", "own troops", "enemy troops")
"""The planes of a frame, with values from 0 to 255: own land; land of others, brighter the larger its owner; free land,
brighter the cheaper its terrain; density of own troops; density of the others' troops. The density is the number of
troops at home for each tile that their owner has."""
GLOBALS = (
    "own share of all land",
    "troops at home, of the most one can have",
    "troops in the attack, of the most one can have",
    "growth of the troops, of that when half full, at most 1",
    "free share of all land",
    "rank: 1 first, 0 last",
    "bots alive, of those at the beginning",
    "bots at the beginning, of 50",
    "share of the largest bot",
    "mean share of the living bots",
    "steps played, of the most there are",
    "free part of the own border",
    "own density against the mean of the neighbours: 1 nobody there, 0 as dense, -1 nobody at home",
    "own density against the weakest neighbour, likewise",
    "own density against the strongest neighbour, likewise",
    "land gained in the last step, of that held before it, at most all",
)
"""The numbers of a frame, in order."""
_FREE_BRIGHTNESS = {PLAINS: 255, HIGHLAND: 170, MOUNTAIN: 100}
_MAX_DENSITY = CAP_PER_TILE
"""The density that is shown as 255."""


def plane_values(world: World, all_land: int) -> npt.NDArray[np.uint8]:
    """Return the value in each plane of a free tile, by its terrain, and of a player's tile: [4 + P, planes]."""
    values = np.zeros((4 + world.players, len(PLANES)), np.uint8)
    for terrain, brightness in _FREE_BRIGHTNESS.items():
        values[terrain, 2] = brightness
    density = np.minimum(255, 255 * world.home // (np.maximum(world.land, 1) * _MAX_DENSITY))  # [P]
    values[4, 0], values[4, 3] = 255, density[0]
    values[5:, 1] = np.minimum(255, 60 + 195 * world.land[1:] * 10 // (4 * max(all_land, 1)))
    values[5:, 4] = density[1:]
    return values


def global_features(
    world: World, all_land: int, contacts: Ints, land_before: int, progress: float
) -> npt.NDArray[np.float32]:
    """Return the agent's sixteen numbers of ``GLOBALS``, in [-1, 1].

    ``contacts`` [1 + P] is the length of the agent's border with free land and with each player, ``land_before`` the
    number of its tiles before the step, ``progress`` the part of the episode's steps that are played.
    """
    land, home, away = world.land.tolist(), world.home.tolist(), world.away.tolist()
    bot_land, players = land[1:], len(land)
    cap = int(capacity(land[0]))
    alive = sum(n > 0 for n in bot_land)
    own_density = home[0] / max(land[0], 1)
    neighbours = [(n, home[p] / land[p]) for p, n in enumerate(contacts[1:].tolist()) if n and land[p]]
    border = int(contacts.sum())
    densities = [density for _, density in neighbours]
    length = sum(n for n, _ in neighbours)
    mean_density = add_up(n * density for n, density in neighbours) / length if length else 0.0
    free = all_land - sum(land)
    return np.array(
        [
            land[0] / all_land,
            min(1.0, home[0] / cap),  # troops exceed the capacity for a while after land is lost
            min(1.0, away[0] / cap),
            min(1.0, int(growth(home[0], away[0], land[0])) / max(int(growth(cap // 2, 0, land[0])), 1)),
            free / all_land,
            1 - sum(n > land[0] for n in bot_land) / (players - 1),
            alive / (players - 1),
            (players - 1) / 50,
            max(bot_land) / all_land,
            sum(bot_land) / max(alive, 1) / all_land,
            progress,
            int(contacts[0]) / max(border, 1),
            _contrast(own_density, mean_density),
            _contrast(own_density, min(densities, default=0.0)),
            _contrast(own_density, max(densities, default=0.0)),
            max(-1.0, min(1.0, (land[0] - land_before) / max(land_before, 1))),
        ],
        np.float32,
    )


def _contrast(own: float, other: float) -> float:
    """Compare two densities on a scale from -1 to 1, where 0 means that they are equal."""
    return (own - other) / (own + other) if own + other > 0 else 0.0
