"""Plays ticks with kernels that numba compiles. ``ticks_numpy`` plays the same game, bit for bit, and explains it."""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numba
import numpy as np
import numpy.typing as npt
from numba.extending import register_jitable

from corral_games.territory import bots, rules
from corral_games.territory.bots import MIN_ORDER_INTERVAL, ORDER_INTERVALS, bot_order
from corral_games.territory.rules import (
    ANYONE,
    BLOCKED,
    CAPTURE_CHANCE,
    DEFENDER_COST,
    EVERYWHERE,
    OWNED_COST_FACTOR,
    SOLDIER,
    TILE_COST,
    growth,
    sector,
)
from corral_games.territory.state import NEVER, Border, World

__all__ = ["advance", "measure_border", "write_planes"]

Kernel = Callable[..., Any]

_GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MULTIPLIER_1, _MULTIPLIER_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_8, _16, _27, _30, _31, _48 = (np.uint64(n) for n in (8, 16, 27, 30, 31, 48))
_16_BITS, _32_BITS = np.uint64(0xFFFF), np.uint64(0xFFFFFFFF)

for _function in (rules.capacity, growth, sector, bot_order):
    register_jitable(_function)


def advance(world: World, ticks: int) -> None:
    """Play ``ticks`` ticks."""
    _kernels.advance(
        seed=np.uint64(world.seed),
        tick=world.tick,
        ticks=ticks,
        width=world.width,
        terrain=world.terrain,
        owner=world.owner,
        home=world.home,
        away=world.away,
        heading=world.heading,
        target=world.target,
        land=world.land,
        rows=world.rows,
        columns=world.columns,
        due=world.due,
    )
    world.tick += ticks


def measure_border(world: World, player: int) -> Border:
    """Return the length of a player's border, by compass sector and by neighbour."""
    border = Border(sectors=np.zeros(8, np.int64), contacts=np.zeros(1 + world.players, np.int64))
    _kernels.measure_border(
        player=player,
        width=world.width,
        owner=world.owner,
        land=world.land,
        rows=world.rows,
        columns=world.columns,
        sectors=border.sectors,
        contacts=border.contacts,
    )
    return border


def write_planes(world: World, values: npt.NDArray[np.uint8], frame: npt.NDArray[np.uint8]) -> None:
    """Write the planes of the map into ``frame`` [planes, S, S].

    ``values`` [4 + P, planes] has the values of a free tile, by its terrain, and of a player's tile.
    """
    _kernels.write_planes(world.terrain, world.owner, values, frame)


@register_jitable
def _mix(x: Any) -> Any:
    x = (x ^ x >> _30) * _MULTIPLIER_1
    x = (x ^ x >> _27) * _MULTIPLIER_2
    return x ^ x >> _31


def _compile(function: Kernel) -> Kernel:
    """Return a function that compiles ``function`` at its first call, with a cache on disk if that can be used."""
    compiled: list[Kernel] = []

    def call(*args: Any, **kwargs: Any) -> Any:
        if compiled:
            return compiled[0](*args, **kwargs)
        try:
            cached = numba.njit(cache=True)(function)
            result = cached(*args, **kwargs)
            compiled.append(cached)
        except (RuntimeError, OSError, EOFError, pickle.PickleError):  # no writable directory, full disk, damaged file
            compiled.append(numba.njit(function))
            result = compiled[0](*args, **kwargs)
        return result

    return call


class _Kernels(NamedTuple):
    """The compiled functions. Their arguments are the fields of a ``World``, and arrays into which they write."""

    advance: Kernel
    measure_border: Kernel
    write_planes: Kernel


def _make_kernels(version: int) -> _Kernels:
    """Return the kernels.

    ``version`` is a hash of the rules. Numba's cache notices only changes of this file and of closure variables. The
    kernels that depend on the rules use ``version``, so that one compiled with other rules is not loaded.
    """

    def advance(
        seed: Any, tick: Any, ticks: Any, width: Any, terrain: Any, owner: Any, home: Any, away: Any, heading: Any,
        target: Any, land: Any, rows: Any, columns: Any, due: Any,
    ) -> None:  # fmt: skip
        version  # noqa: B018
        players, tiles = len(home), len(owner)
        offsets = (-width, 1, width, -1)
        contacts = np.zeros((players, 1 + players), np.int64)
        front_length, total_cost = np.zeros(players, np.int64), np.zeros(players, np.int64)
        tiles_lost, home_before_orders = np.zeros(players, np.int64), np.zeros(players, np.int64)
        # Claims of a tick are the first entries of these arrays.
        claim_tile, claim_attacker = np.zeros(tiles, np.int64), np.zeros(tiles, np.int64)
        claim_bits = np.zeros(tiles, np.uint64)
        for current_tick in range(tick, tick + ticks):
            key = _mix(seed + np.uint64(current_tick + 1) * _GOLDEN_GAMMA)
            contacts[:] = 0
            front_length[:] = 0
            total_cost[:] = 0
            tiles_lost[:] = 0
            claims = 0
            # Borders, front and claims.
            for tile in range(width, tiles - width):
                defender = owner[tile]
                if defender == BLOCKED:
                    continue
                if (
                    owner[tile - width] == defender
                    and owner[tile + 1] == defender
                    and owner[tile + width] == defender
                    and owner[tile - 1] == defender
                ):
                    continue
                best, best_bits, best_number = np.int64(-1), np.uint64(0), np.int64(-1)
                for side in range(4):
                    attacker = owner[tile + offsets[side]]
                    if attacker < 0 or attacker == defender:
                        continue
                    contacts[attacker, 1 + defender] += 1
                    if away[attacker] == 0 or (target[attacker] != ANYONE and target[attacker] != defender):
                        continue
                    if heading[attacker] != EVERYWHERE:
                        row, column = tile // width, tile % width
                        down = row * land[attacker] - rows[attacker]
                        right = column * land[attacker] - columns[attacker]
                        if heading[attacker] != sector(down, right):
                            continue
                    front_length[attacker] += 1
                    bits = _mix(np.uint64(tile * 4 + side) * _GOLDEN_GAMMA ^ key)
                    if np.int64(bits & _16_BITS) >= CAPTURE_CHANCE[terrain[tile]]:
                        continue
                    number = np.int64(bits >> _16 & _32_BITS)
                    if number > best_number:
                        best, best_bits, best_number = attacker, bits, number
                if best >= 0:
                    claim_tile[claims], claim_attacker[claims], claim_bits[claims] = tile, best, best_bits
                    claims += 1
                    free_cost = TILE_COST[terrain[tile]] * SOLDIER
                    if defender < 0:
                        total_cost[best] += free_cost
                    else:
                        density = home[defender] // land[defender]
                        total_cost[best] += free_cost * OWNED_COST_FACTOR + DEFENDER_COST[terrain[tile]] * density // 4
            # Of the claims, those that are paid for move to the front of the arrays.
            taken = 0
            for claim in range(claims):
                player = claim_attacker[claim]
                if (
                    total_cost[player] > away[player]
                    and np.int64(claim_bits[claim] >> _48) * total_cost[player] >= away[player] << 16
                ):
                    continue
                claim_tile[taken], claim_attacker[taken] = claim_tile[claim], player
                taken += 1
                loser = owner[claim_tile[claim]]
                if loser >= 0:
                    tiles_lost[loser] += 1
            # Troops.
            for player in range(players):
                away[player] -= min(total_cost[player], away[player])
                if front_length[player] == 0:
                    home[player] += away[player]
                    away[player] = 0
                home[player] -= home[player] * tiles_lost[player] // max(land[player], 1)
            # Land.
            for claim in range(taken):
                tile, player = claim_tile[claim], claim_attacker[claim]
                row, column = tile // width, tile % width
                loser = owner[tile]
                if loser >= 0:
                    land[loser] -= 1
                    rows[loser] -= row
                    columns[loser] -= column
                land[player] += 1
                rows[player] += row
                columns[player] += column
                owner[tile] = player
            # Players without land, growth, and orders of the bots.
            for player in range(players):
                if land[player] == 0:
                    home[player] = away[player] = 0
                    due[player] = NEVER
                home[player] += growth(home[player], away[player], land[player])
                home_before_orders[player] = home[player]
            for player in range(players):
                if due[player] != current_tick:
                    continue
                draw = np.int64(_mix(key ^ np.uint64(player + 1)) >> _8)
                percent, order_target = bot_order(player, draw >> 20, home_before_orders, land, contacts)
                if percent > 0:
                    troops = home[player] + away[player]
                    away[player] = troops * percent // 100
                    home[player] = troops - away[player]
                    heading[player], target[player] = EVERYWHERE, order_target
                due[player] = current_tick + MIN_ORDER_INTERVAL + draw % ORDER_INTERVALS

    def measure_border(
        player: Any, width: Any, owner: Any, land: Any, rows: Any, columns: Any, sectors: Any, contacts: Any
    ) -> None:
        version  # noqa: B018
        offsets = (-width, 1, width, -1)
        for tile in range(width, len(owner) - width):
            if owner[tile] != player:
                continue
            for side in range(4):
                neighbour = tile + offsets[side]
                neighbour_owner = owner[neighbour]
                if neighbour_owner != player and neighbour_owner != BLOCKED:
                    row, column = neighbour // width, neighbour % width
                    sectors[sector(row * land[player] - rows[player], column * land[player] - columns[player])] += 1
                    contacts[1 + neighbour_owner] += 1

    def write_planes(terrain: Any, owner: Any, values: Any, frame: Any) -> None:
        planes, size, _ = frame.shape
        for row in range(size):
            for column in range(size):
                tile = (row + 1) * (size + 2) + column + 1
                kind = owner[tile] + 4 if owner[tile] >= 0 else terrain[tile]
                for plane in range(planes):
                    frame[plane, row, column] = values[kind, plane]

    return _Kernels(_compile(advance), _compile(measure_border), _compile(write_planes))


_kernels = _make_kernels(
    version=zlib.crc32(b"".join(Path(str(module.__file__)).read_bytes() for module in (rules, bots)))
)
