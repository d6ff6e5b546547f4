"""One tick after the other, compiled. ``ticks_numpy`` is the same game with numpy alone, and explains it."""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
from numba.extending import register_jitable

from corral_games.territory import bots, rules
from corral_games.territory.bots import PAUSE, PAUSES, bot_order
from corral_games.territory.rules import ANYONE, ARMOUR, BLOCKED, EVERYWHERE, GUARD, ONE, PACE, TOLL, growth, sector
from corral_games.territory.state import NEVER, Ints, World

__all__ = ["advance", "look_around", "paint"]

_GOLDEN, _FIRST, _SECOND = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_8, _16, _20, _27, _30, _31, _48 = (np.uint64(n) for n in (8, 16, 20, 27, 30, 31, 48))
_16_BITS, _32_BITS = np.uint64(0xFFFF), np.uint64(0xFFFFFFFF)

for _shared in (rules.capacity, growth, sector, bot_order):
    register_jitable(_shared)


def advance(world: World, ticks: int) -> None:
    """Play on for so many ticks."""
    w = world
    fields = (w.terrain, w.owner, w.home, w.away, w.heading, w.target, w.land, w.rows, w.columns, w.due)
    _advance(np.uint64(w.seed), w.tick, ticks, w.width, *fields)
    w.tick += ticks


def look_around(world: World, player: int) -> tuple[Ints, Ints]:
    """The length of a player's border by compass sector [8], and with free land and each player [1 + P]."""
    w = world
    sectors, contacts = np.zeros(8, np.int64), np.zeros(1 + w.players, np.int64)
    _look_around(player, w.width, w.owner, w.land, w.rows, w.columns, sectors, contacts)
    return sectors, contacts


def paint(world: World, shades: npt.NDArray[np.uint8], frame: npt.NDArray[np.uint8]) -> None:
    """Colour a frame [planes, S, S] by ``shades`` [4 + P, planes]: of a free tile by its terrain, else by its owner."""
    _paint(world.terrain, world.owner, shades, frame)


@register_jitable
def _mix(x: Any) -> Any:
    x = (x ^ x >> _30) * _FIRST
    x = (x ^ x >> _27) * _SECOND
    return x ^ x >> _31


def _compile(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiled at its first call, and kept on disk where that is possible."""
    chosen: list[Callable[..., Any]] = []

    def call(*args: Any) -> Any:
        if chosen:
            return chosen[0](*args)
        try:
            kept = numba.njit(cache=True)(function)
            found = kept(*args)
            chosen.append(kept)
        except (RuntimeError, OSError, EOFError, pickle.PickleError):  # no place for it, a full disk, half a file
            chosen.append(numba.njit(function))
            found = chosen[0](*args)
        return found

    return call


def _kernels(version: int) -> tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]:
    """What is compiled. ``version`` is part of it, so that nothing is taken from disk that other rules were in."""

    def advance(
        seed: Any, tick: Any, ticks: Any, width: Any, terrain: Any, owner: Any, home: Any, away: Any, heading: Any,
        target: Any, land: Any, rows: Any, columns: Any, due: Any,
    ) -> None:  # fmt: skip
        version  # noqa: B018
        players, tiles = len(home), len(owner)
        offsets = (-width, 1, width, -1)
        contacts = np.zeros((players, 1 + players), np.int64)
        front, total, lost = np.zeros(players, np.int64), np.zeros(players, np.int64), np.zeros(players, np.int64)
        seen = np.zeros(players, np.int64)
        at, by, chances = np.zeros(tiles, np.int64), np.zeros(tiles, np.int64), np.zeros(tiles, np.uint64)
        for now in range(tick, tick + ticks):
            key = _mix(seed + np.uint64(now + 1) * _GOLDEN)
            contacts[:] = 0
            front[:] = 0
            total[:] = 0
            lost[:] = 0
            claims = 0
            for tile in range(width, tiles - width):
                of = owner[tile]
                if of == BLOCKED:
                    continue
                if (
                    owner[tile - width] == of
                    and owner[tile + 1] == of
                    and owner[tile + width] == of
                    and owner[tile - 1] == of
                ):
                    continue
                best, best_chance, best_number = np.int64(-1), np.uint64(0), np.int64(-1)
                for side in range(4):
                    p = owner[tile + offsets[side]]
                    if p < 0 or p == of:
                        continue
                    contacts[p, 1 + of] += 1
                    if away[p] == 0 or (target[p] != ANYONE and target[p] != of):
                        continue
                    if heading[p] != EVERYWHERE:
                        row, column = tile // width, tile % width
                        if heading[p] != sector(row * land[p] - rows[p], column * land[p] - columns[p]):
                            continue
                    front[p] += 1
                    chance = _mix(np.uint64(tile * 4 + side) * _GOLDEN ^ key)
                    if np.int64(chance & _16_BITS) >= PACE[terrain[tile]]:
                        continue
                    number = np.int64(chance >> _16 & _32_BITS)
                    if number > best_number:
                        best, best_chance, best_number = p, chance, number
                if best >= 0:
                    at[claims], by[claims], chances[claims] = tile, best, best_chance
                    claims += 1
                    toll = TOLL[terrain[tile]] * ONE
                    if of < 0:
                        total[best] += toll
                    else:
                        total[best] += toll * GUARD + ARMOUR[terrain[tile]] * (home[of] // land[of]) // 4
            taken = 0
            for claim in range(claims):
                p = by[claim]
                if total[p] > away[p] and np.int64(chances[claim] >> _48) * total[p] >= away[p] << 16:
                    continue
                at[taken], by[taken] = at[claim], p
                taken += 1
                of = owner[at[claim]]
                if of >= 0:
                    lost[of] += 1
            for p in range(players):
                away[p] -= min(total[p], away[p])
                if front[p] == 0:
                    home[p] += away[p]
                    away[p] = 0
                home[p] -= home[p] * lost[p] // max(land[p], 1)
            for claim in range(taken):
                tile, p = at[claim], by[claim]
                row, column = tile // width, tile % width
                of = owner[tile]
                if of >= 0:
                    land[of] -= 1
                    rows[of] -= row
                    columns[of] -= column
                land[p] += 1
                rows[p] += row
                columns[p] += column
                owner[tile] = p
            for p in range(players):
                if land[p] == 0:
                    home[p] = away[p] = 0
                    due[p] = NEVER
                home[p] += growth(home[p], away[p], land[p])
                seen[p] = home[p]
            for p in range(players):
                if due[p] != now:
                    continue
                draw = np.int64(_mix(key ^ np.uint64(p + 1)) >> _8)
                percent, aim = bot_order(p, draw >> 20, seen, land, contacts)
                if percent > 0:
                    troops = home[p] + away[p]
                    away[p] = troops * percent // 100
                    home[p] = troops - away[p]
                    heading[p], target[p] = EVERYWHERE, aim
                due[p] = now + PAUSE + draw % PAUSES

    def look_around(
        player: Any, width: Any, owner: Any, land: Any, rows: Any, columns: Any, sectors: Any, contacts: Any
    ) -> None:
        version  # noqa: B018
        offsets = (-width, 1, width, -1)
        for tile in range(width, len(owner) - width):
            if owner[tile] != player:
                continue
            for side in range(4):
                near = tile + offsets[side]
                of = owner[near]
                if of != player and of != BLOCKED:
                    row, column = near // width, near % width
                    sectors[sector(row * land[player] - rows[player], column * land[player] - columns[player])] += 1
                    contacts[1 + of] += 1

    def paint(terrain: Any, owner: Any, shades: Any, frame: Any) -> None:
        planes, size, _ = frame.shape
        for row in range(size):
            for column in range(size):
                tile = (row + 1) * (size + 2) + column + 1
                shown = owner[tile] + 4 if owner[tile] >= 0 else terrain[tile]
                for plane in range(planes):
                    frame[plane, row, column] = shades[shown, plane]

    return _compile(advance), _compile(look_around), _compile(paint)


_advance, _look_around, _paint = _kernels(
    zlib.crc32(b"".join(Path(str(module.__file__)).read_bytes() for module in (rules, bots)))
)
