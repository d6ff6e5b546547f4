"""One tick after the other, with numpy alone. ``ticks_numba`` plays the same, bit for bit.

All claims of a tick are made from the position at its beginning. Chance is a hash of (seed, tick, tile, side): there is
no generator whose order of draws could favour a row or a player.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from corral_games.territory.bots import PAUSE, PAUSES, bot_order
from corral_games.territory.rules import ANYONE, ARMOUR, EVERYWHERE, GUARD, ONE, PACE, TOLL, WATER, growth, sector
from corral_games.territory.state import NEVER, Ints, World

__all__ = ["advance", "look_around", "paint"]

_64_BITS = (1 << 64) - 1
_GOLDEN, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def advance(world: World, ticks: int) -> None:
    """Play on for so many ticks."""
    for _ in range(ticks):
        _play_tick(world)


def _play_tick(w: World) -> None:
    players, width, owner = len(w.home), w.width, w.owner
    key = _key(w.seed, w.tick)
    side, tile = _borders(w)
    by = owner[tile + _offsets(width)[side]].astype(np.int64)
    of = owner[tile].astype(np.int64)
    contacts = np.bincount(by * (players + 1) + of + 1, minlength=players * (players + 1))

    # The front: borders that an attack is directed at.
    target = w.target[by]
    met = np.flatnonzero((w.away[by] > 0) & ((target == ANYONE) | (target == of)))
    side, tile, by, of = side[met], tile[met], by[met], of[met]
    heading = w.heading[by]
    met = np.flatnonzero((heading == EVERYWHERE) | (heading == _sectors(w, by, tile)))
    side, tile, by, of = side[met], tile[met], by[met], of[met]
    front = np.bincount(by, minlength=players)

    # Claims: some of the front, and of several on one tile the one with the highest number.
    chance = _mix((tile * 4 + side).astype(np.uint64) * np.uint64(_GOLDEN) ^ np.uint64(key))
    hit = np.flatnonzero((chance & np.uint64(0xFFFF)).astype(np.int64) < PACE[w.terrain[tile]])
    number = (chance[hit] >> np.uint64(16) & np.uint64(0xFFFFFFFF)).astype(np.int64)
    order = np.lexsort((side[hit], -number, tile[hit]))
    hit = hit[order]
    first = np.ones(len(hit), np.bool_)
    first[1:] = tile[hit][1:] != tile[hit][:-1]
    hit = hit[first]
    tile, by, of, chance = tile[hit], by[hit], of[hit], chance[hit]

    density = w.home // np.maximum(w.land, 1)
    terrain = w.terrain[tile]
    toll = TOLL[terrain] * ONE
    cost = np.where(of < 0, toll, toll * GUARD + ARMOUR[terrain] * density[of] // 4)
    total = np.zeros(players, np.int64)
    np.add.at(total, by, cost)
    # Who cannot pay for all its claims gets each with the chance that the troops suffice for.
    paid = (chance >> np.uint64(48)).astype(np.int64) * total[by] < w.away[by] << 16
    taken = np.flatnonzero((total[by] <= w.away[by]) | paid)
    tile, by, of = tile[taken], by[taken], of[taken]

    w.away -= np.minimum(total, w.away)
    ended = front == 0
    w.home[ended] += w.away[ended]
    w.away[ended] = 0
    lost = np.bincount(of[of >= 0], minlength=players)
    w.home -= w.home * lost // np.maximum(w.land, 1)  # those who stood there
    row, column = np.divmod(tile, width)
    mine = of >= 0
    np.subtract.at(w.land, of[mine], 1)
    np.subtract.at(w.rows, of[mine], row[mine])
    np.subtract.at(w.columns, of[mine], column[mine])
    np.add.at(w.land, by, 1)
    np.add.at(w.rows, by, row)
    np.add.at(w.columns, by, column)
    owner[tile] = by

    gone = w.land == 0
    w.home[gone] = w.away[gone] = 0
    w.due[gone] = NEVER
    w.home += growth(w.home, w.away, w.land)
    due = np.flatnonzero(w.due == w.tick)
    if len(due):
        _let_bots_order(w, due, contacts.reshape(players, players + 1))
    w.tick += 1


def _let_bots_order(w: World, due: Ints, contacts: Ints) -> None:
    home = w.home.copy()  # what all of them see
    for bot in due.tolist():
        draw = int(_mix(np.array([_key(w.seed, w.tick) ^ (bot + 1)], np.uint64))[0] >> np.uint64(8))
        percent, target = bot_order(bot, draw >> 20, home, w.land, contacts)
        if percent > 0:
            w.order(bot, EVERYWHERE, int(percent), int(target))
        w.due[bot] = w.tick + PAUSE + draw % PAUSES


def look_around(world: World, player: int) -> tuple[Ints, Ints]:
    """The length of a player's border by compass sector [8], and with free land and each player [1 + P]."""
    side, tile = _borders(world)
    mine = np.flatnonzero(world.owner[tile + _offsets(world.width)[side]] == player)
    tile = tile[mine]
    sectors = _sectors(world, np.full(len(tile), player), tile)
    contacts = np.bincount(world.owner[tile].astype(np.int64) + 1, minlength=1 + world.players)
    return np.bincount(sectors, minlength=8), contacts


def paint(world: World, shades: npt.NDArray[np.uint8], frame: npt.NDArray[np.uint8]) -> None:
    """Colour a frame [planes, S, S] by ``shades`` [4 + P, planes]: of a free tile by its terrain, else by its owner."""
    width = world.width
    shown = np.where(world.owner >= 0, world.owner + 4, world.terrain).reshape(width, width)[1:-1, 1:-1]
    np.take(shades.T, shown, axis=1, out=frame, mode="clip")


def _borders(w: World) -> tuple[Ints, Ints]:
    """Side and tile of every land tile that has a neighbour, on that side, who does not own it."""
    width, owner = w.width, w.owner
    inner = owner[width:-width]
    near = np.stack([owner[width + o : len(owner) - width + o] for o in _offsets(width).tolist()])
    side, tile = np.nonzero((near != inner) & (near >= 0) & (w.terrain[width:-width] != WATER))
    return side, tile + width


def _offsets(width: int) -> Ints:
    """From a tile to its neighbours: above, right, below, left."""
    return np.array([-width, 1, width, -1])


def _sectors(w: World, player: Ints, tile: Ints) -> Ints:
    """The sector in which each player sees a tile."""
    row, column = np.divmod(tile, w.width)
    land = w.land[player]
    found: Ints = sector(row * land - w.rows[player], column * land - w.columns[player])
    return found


def _key(seed: int, tick: int) -> int:
    """The 64 bits behind all chances of a tick."""
    x = (seed + (tick + 1) * _GOLDEN) & _64_BITS
    x = (x ^ x >> 30) * _FIRST & _64_BITS
    x = (x ^ x >> 27) * _SECOND & _64_BITS
    return x ^ x >> 31


def _mix(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The finalizer of splitmix64: every bit of the input moves every bit of the output."""
    x = (x ^ x >> np.uint64(30)) * np.uint64(_FIRST)
    x = (x ^ x >> np.uint64(27)) * np.uint64(_SECOND)
    return x ^ x >> np.uint64(31)
