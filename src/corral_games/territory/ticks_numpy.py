"""Plays ticks with numpy alone. ``ticks_numba`` plays the same game, bit for bit.

All claims of a tick are made from the position at its start. Random numbers are hashes of (seed, tick, tile, side) and
not the output of a generator, so that no order of draws can favour a row or a player.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from corral_games.territory.bots import MIN_ORDER_INTERVAL, ORDER_INTERVALS, bot_order
from corral_games.territory.rules import (
    ANYONE,
    CAPTURE_CHANCE,
    DEFENDER_COST,
    EVERYWHERE,
    OWNED_COST_FACTOR,
    SOLDIER,
    TILE_COST,
    WATER,
    growth,
    sector,
)
from corral_games.territory.state import NEVER, Border, Ints, World

__all__ = ["advance", "measure_border", "write_planes"]

_64_BITS = (1 << 64) - 1
# The constants of SplitMix64: Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators".
_GOLDEN_GAMMA, _MULTIPLIER_1, _MULTIPLIER_2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def advance(world: World, ticks: int) -> None:
    """Play ``ticks`` ticks."""
    for _ in range(ticks):
        _play_tick(world)


def _play_tick(w: World) -> None:
    players, width, owner = len(w.home), w.width, w.owner
    key = _tick_key(w.seed, w.tick)

    # Borders: a row for each side of a tile on which a player borders that does not own the tile. [borders]
    side, tile = _borders(w)
    attacker = owner[tile + _offsets(width)[side]].astype(np.int64)
    defender = owner[tile].astype(np.int64)  # a player or FREE
    contacts = np.bincount(attacker * (players + 1) + defender + 1, minlength=players * (players + 1))

    # The front: the borders that an attack is directed at. [front]
    target = w.target[attacker]
    kept = np.flatnonzero((w.away[attacker] > 0) & ((target == ANYONE) | (target == defender)))
    side, tile, attacker, defender = side[kept], tile[kept], attacker[kept], defender[kept]
    heading = w.heading[attacker]
    kept = np.flatnonzero((heading == EVERYWHERE) | (heading == _sectors(w, attacker, tile)))
    side, tile, attacker, defender = side[kept], tile[kept], attacker[kept], defender[kept]
    front_length = np.bincount(attacker, minlength=players)  # [P]

    # Claims: a random part of the front. Of several claims on a tile, the one with the highest number stays. [claims]
    # Bits 0 to 15 of the hash decide whether a tile is claimed, 16 to 47 are that number, 48 to 63 are used below.
    bits = _mix((tile * 4 + side).astype(np.uint64) * np.uint64(_GOLDEN_GAMMA) ^ np.uint64(key))
    kept = np.flatnonzero((bits & np.uint64(0xFFFF)).astype(np.int64) < CAPTURE_CHANCE[w.terrain[tile]])
    number = (bits[kept] >> np.uint64(16) & np.uint64(0xFFFFFFFF)).astype(np.int64)
    order = np.lexsort((side[kept], -number, tile[kept]))
    kept = kept[order]
    is_first = np.ones(len(kept), np.bool_)
    is_first[1:] = tile[kept][1:] != tile[kept][:-1]
    kept = kept[is_first]
    tile, attacker, defender, bits = tile[kept], attacker[kept], defender[kept], bits[kept]

    density = w.home // np.maximum(w.land, 1)  # [P]
    terrain = w.terrain[tile]
    free_cost = TILE_COST[terrain] * SOLDIER
    cost = np.where(
        defender < 0, free_cost, free_cost * OWNED_COST_FACTOR + DEFENDER_COST[terrain] * density[defender] // 4
    )
    total_cost = np.zeros(players, np.int64)
    np.add.at(total_cost, attacker, cost)
    # A player that cannot pay for all its claims gets each with probability troops / total cost. [taken]
    is_paid = (bits >> np.uint64(48)).astype(np.int64) * total_cost[attacker] < w.away[attacker] << 16
    kept = np.flatnonzero((total_cost[attacker] <= w.away[attacker]) | is_paid)
    tile, attacker, defender = tile[kept], attacker[kept], defender[kept]

    # Troops: attackers pay, attacks without a front return home, defenders lose the soldiers on the tiles.
    w.away -= np.minimum(total_cost, w.away)
    has_ended = front_length == 0
    w.home[has_ended] += w.away[has_ended]
    w.away[has_ended] = 0
    tiles_lost = np.bincount(defender[defender >= 0], minlength=players)
    w.home -= w.home * tiles_lost // np.maximum(w.land, 1)

    # Land: the tiles change their owner.
    row, column = np.divmod(tile, width)
    is_owned = defender >= 0
    np.subtract.at(w.land, defender[is_owned], 1)
    np.subtract.at(w.rows, defender[is_owned], row[is_owned])
    np.subtract.at(w.columns, defender[is_owned], column[is_owned])
    np.add.at(w.land, attacker, 1)
    np.add.at(w.rows, attacker, row)
    np.add.at(w.columns, attacker, column)
    owner[tile] = attacker

    # Players without land are out; troops of the others grow; bots give orders.
    is_out = w.land == 0
    w.home[is_out] = w.away[is_out] = 0
    w.due[is_out] = NEVER
    w.home += growth(w.home, w.away, w.land)
    due = np.flatnonzero(w.due == w.tick)
    if len(due):
        _give_bot_orders(w, due, contacts.reshape(players, players + 1))
    w.tick += 1


def _give_bot_orders(w: World, due: Ints, contacts: Ints) -> None:
    home = w.home.copy()  # an order changes ``w.home``, but the bots that follow must not see that
    for bot in due.tolist():
        draw = int(_mix(np.array([_tick_key(w.seed, w.tick) ^ (bot + 1)], np.uint64))[0] >> np.uint64(8))
        percent, target = bot_order(bot, draw >> 20, home, w.land, contacts)
        if percent > 0:
            w.order(bot, EVERYWHERE, int(percent), int(target))
        w.due[bot] = w.tick + MIN_ORDER_INTERVAL + draw % ORDER_INTERVALS


def measure_border(world: World, player: int) -> Border:
    """Return the length of a player's border, by compass sector and by neighbour."""
    side, tile = _borders(world)
    kept = np.flatnonzero(world.owner[tile + _offsets(world.width)[side]] == player)
    tile = tile[kept]
    sectors = np.bincount(_sectors(world, np.full(len(tile), player), tile), minlength=8)
    contacts = np.bincount(world.owner[tile].astype(np.int64) + 1, minlength=1 + world.players)
    return Border(sectors=sectors, contacts=contacts)


def write_planes(world: World, values: npt.NDArray[np.uint8], frame: npt.NDArray[np.uint8]) -> None:
    """Write the planes of the map into ``frame`` [planes, S, S].

    ``values`` [4 + P, planes] has the values of a free tile, by its terrain, and of a player's tile.
    """
    width = world.width
    kind = np.where(world.owner >= 0, world.owner + 4, world.terrain).reshape(width, width)[1:-1, 1:-1]  # [S, S]
    np.take(values.T, kind, axis=1, out=frame, mode="clip")


def _borders(w: World) -> tuple[Ints, Ints]:
    """Return side and tile of each pair of a land tile and a neighbouring tile with another player as owner."""
    width, owner = w.width, w.owner
    inner = owner[width:-width]
    neighbour = np.stack([owner[width + o : len(owner) - width + o] for o in _offsets(width).tolist()])  # [4, inner]
    side, tile = np.nonzero((neighbour != inner) & (neighbour >= 0) & (w.terrain[width:-width] != WATER))
    return side, tile + width


def _offsets(width: int) -> Ints:
    """Return the differences [4] between the number of a tile and of its neighbours: above, right, below, left."""
    return np.array([-width, 1, width, -1])


def _sectors(w: World, player: Ints, tile: Ints) -> Ints:
    """Return the sector of each tile [n], as seen from the centre of the land of the player [n] beside it.

    The differences to the centre are multiplied by the number of the player's tiles, so that all is in integers.
    """
    row, column = np.divmod(tile, w.width)
    land = w.land[player]
    sectors: Ints = sector(row * land - w.rows[player], column * land - w.columns[player])
    return sectors


def _tick_key(seed: int, tick: int) -> int:
    """Return the 64 bits that are hashed with a tile and side for the random numbers of a tick."""
    x = (seed + (tick + 1) * _GOLDEN_GAMMA) & _64_BITS
    x = (x ^ x >> 30) * _MULTIPLIER_1 & _64_BITS
    x = (x ^ x >> 27) * _MULTIPLIER_2 & _64_BITS
    return x ^ x >> 31


def _mix(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return the finalizer of SplitMix64, in which every bit of the input affects every bit of the output."""
    x = (x ^ x >> np.uint64(30)) * np.uint64(_MULTIPLIER_1)
    x = (x ^ x >> np.uint64(27)) * np.uint64(_MULTIPLIER_2)
    return x ^ x >> np.uint64(31)
