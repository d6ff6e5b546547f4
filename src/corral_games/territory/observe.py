"""What the agent sees: five planes of the map, and sixteen numbers."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from corral.core.sums import add_up
from corral_games.territory.rules import CAP_PER_TILE, HIGHLAND, MOUNTAIN, PLAINS, capacity, growth
from corral_games.territory.state import Ints, World

__all__ = ["GLOBALS", "PLANES", "shade", "summarize"]

PLANES = ("own", "enemy", "neutral", "own troops", "enemy troops")
"""Planes of a frame, 0 to 255: own land; land of others, brighter the larger the owner; free land, brighter the cheaper
its terrain; troops at home per tile of the owner's land, own and others'."""
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
_FREE_SHADE = {PLAINS: 255, HIGHLAND: 170, MOUNTAIN: 100}
_DENSEST = CAP_PER_TILE


def shade(world: World, all_land: int) -> npt.NDArray[np.uint8]:
    """How each kind of free tile, and each player's land, looks in the planes: [4 + P, planes]."""
    shades = np.zeros((4 + world.players, len(PLANES)), np.uint8)
    for terrain, brightness in _FREE_SHADE.items():
        shades[terrain, 2] = brightness
    density = np.minimum(255, 255 * world.home // (np.maximum(world.land, 1) * _DENSEST))
    shades[4, 0], shades[4, 3] = 255, density[0]
    shades[5:, 1] = np.minimum(255, 60 + 195 * world.land[1:] * 10 // (4 * max(all_land, 1)))
    shades[5:, 4] = density[1:]
    return shades


def summarize(
    world: World, all_land: int, contacts: Ints, land_before: int, progress: float
) -> npt.NDArray[np.float32]:
    """The sixteen numbers, in [-1, 1]; ``contacts`` is the agent's border with free land and each player."""
    land, home, away = world.land.tolist(), world.home.tolist(), world.away.tolist()
    others, players = land[1:], len(land)
    cap = int(capacity(land[0]))
    alive = sum(n > 0 for n in others)
    own = home[0] / max(land[0], 1)
    met = [(n, home[p] / land[p]) for p, n in enumerate(contacts[1:].tolist()) if n and land[p]]
    border = int(contacts.sum())
    densities = [density for _, density in met]
    length = sum(n for n, _ in met)
    mean = add_up(n * density for n, density in met) / length if length else 0.0
    free = all_land - sum(land)
    return np.array(
        [
            land[0] / all_land,
            min(1.0, home[0] / cap),  # more, for a while, when land is lost
            min(1.0, away[0] / cap),
            min(1.0, int(growth(home[0], away[0], land[0])) / max(int(growth(cap // 2, 0, land[0])), 1)),
            free / all_land,
            1 - sum(n > land[0] for n in others) / (players - 1),
            alive / (players - 1),
            (players - 1) / 50,
            max(others) / all_land,
            sum(others) / max(alive, 1) / all_land,
            progress,
            int(contacts[0]) / max(border, 1),
            _against(own, mean),
            _against(own, min(densities, default=0.0)),
            _against(own, max(densities, default=0.0)),
            max(-1.0, min(1.0, (land[0] - land_before) / max(land_before, 1))),
        ],
        np.float32,
    )


def _against(own: float, other: float) -> float:
    return (own - other) / (own + other) if own + other > 0 else 0.0
