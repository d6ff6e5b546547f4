"""The position of a game: who owns which tile, the players' troops and attacks, and when bots give orders."""

from __future__ import annotations

import functools
import multiprocessing
import struct
import warnings
from dataclasses import dataclass
from types import ModuleType
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from corral_games.territory.bots import MIN_ORDER_INTERVAL, ORDER_INTERVALS
from corral_games.territory.rules import ANYONE, BLOCKED, EVERYWHERE, FREE, MOUNTAIN, START_PER_TILE, WATER, WIN_PERCENT
from corral_games.territory.terrain import generate_map

__all__ = ["NEVER", "Border", "Ints", "LandTotals", "World", "default_ticks", "land_totals", "new_world"]

Ints = npt.NDArray[np.int64]
NEVER = 1 << 60
"""The value of ``World.due`` for players without scheduled orders: the agent, and players without land."""
_HEADER = struct.Struct("<QqII")
"""The header of a saved world: seed, tick, width and number of players."""
_PLAYER_ARRAYS = ("home", "away", "heading", "target", "land", "rows", "columns", "due")
"""The arrays [P] of a world, in the order in which they are saved."""


class Border(NamedTuple):
    """The length of one player's border: the sides that its tiles share with free land and with other players' land."""

    sectors: Ints
    """[8]: by compass sector, as seen from the centre of the player's land."""
    contacts: Ints
    """[1 + P]: with free land, and with each player."""


class LandTotals(NamedTuple):
    """The number of tiles of each player [P], and the sums of their rows and columns."""

    land: Ints
    rows: Ints
    columns: Ints


@dataclass(slots=True)
class World:
    """The position of a game.

    Tiles are numbered row by row on a map with a frame of water; players are numbered from 0, which is the agent.
    Scalars are replaced; arrays are changed in place, by ``advance`` of ``ticks_numba`` or ``ticks_numpy``.
    """

    seed: int
    """64 bits: all random numbers of the game are hashes of this."""
    tick: int
    width: int
    """Tiles in a row, including the water at both ends."""
    terrain: npt.NDArray[np.int8]
    """[tiles]: WATER, PLAINS, HIGHLAND or MOUNTAIN."""
    owner: npt.NDArray[np.int8]
    """[tiles]: a player, FREE or BLOCKED (water)."""
    home: Ints
    """[P], as all arrays below: troops at home."""
    away: Ints
    """Troops in the attack."""
    heading: Ints
    """Direction of the attack: a sector from 0 to 7, or EVERYWHERE."""
    target: Ints
    """Whom the attack takes tiles from: a player, FREE or ANYONE."""
    land: Ints
    """Number of tiles owned."""
    rows: Ints
    """Sum of the rows of the tiles owned. With ``columns`` and ``land`` it gives the centre of a player's land."""
    columns: Ints
    """Sum of the columns of the tiles owned."""
    due: Ints
    """The tick at whose end a bot gives its next order, or NEVER."""

    @property
    def players(self) -> int:
        """Number of players at the start of the game."""
        return len(self.home)

    @property
    def bots(self) -> int:
        """Number of bots at the start of the game: all players but the agent."""
        return len(self.home) - 1

    @property
    def all_land(self) -> int:
        """Number of tiles that are not water."""
        return int(np.count_nonzero(self.terrain))

    def order(self, player: int, heading: int, percent: int, target: int) -> None:
        """Recall a player's attack, and send ``percent`` of all its troops on a new one."""
        troops = int(self.home[player] + self.away[player])
        self.away[player] = troops * percent // 100
        self.home[player] = troops - self.away[player]
        self.heading[player], self.target[player] = heading, target

    def rank(self, player: int) -> int:
        """Return a player's rank by land, 1 for the largest. Players with equal land share a rank."""
        return 1 + int(np.count_nonzero(self.land > self.land[player]))

    def winner(self, all_land: int) -> int | None:
        """Return the player with enough of ``all_land`` tiles to win, or None."""
        largest = int(self.land.argmax())
        return largest if int(self.land[largest]) * 100 >= WIN_PERCENT * all_land else None

    def to_bytes(self) -> bytes:
        """Return the world as bytes that ``from_bytes`` reads."""
        return b"".join(
            [
                _HEADER.pack(self.seed, self.tick, self.width, self.players),
                self.terrain.tobytes(),
                self.owner.tobytes(),
                *(getattr(self, name).astype("<i8").tobytes() for name in _PLAYER_ARRAYS),
            ]
        )

    @staticmethod
    def size_in_bytes(size: int, players: int) -> int:
        """Return the length of ``to_bytes()`` for a map of ``size`` x ``size`` tiles and ``players`` players."""
        return _HEADER.size + 2 * (size + 2) ** 2 + 8 * players * len(_PLAYER_ARRAYS)

    @classmethod
    def from_bytes(cls, data: bytes, size: int) -> World:
        """Return the world that ``to_bytes`` saved.

        Raise a ValueError if the bytes are not a world with a map of ``size`` x ``size`` tiles.
        """
        if len(data) < _HEADER.size:
            raise ValueError("it is too short")
        seed, tick, width, players = _HEADER.unpack_from(data)
        tiles = (size + 2) ** 2
        if width != size + 2 or len(data) != cls.size_in_bytes(size, players):
            raise ValueError("its length is wrong")
        terrain, owner = np.frombuffer(data, np.int8, 2 * tiles, _HEADER.size).reshape(2, tiles).copy()
        table = np.frombuffer(data, "<i8", offset=_HEADER.size + 2 * tiles).reshape(len(_PLAYER_ARRAYS), players)
        arrays = {name: row.astype(np.int64) for name, row in zip(_PLAYER_ARRAYS, table, strict=True)}
        world = cls(seed=seed, tick=tick, width=width, terrain=terrain, owner=owner, **arrays)
        if not world.is_consistent():
            raise ValueError("its map and its players do not agree")
        return world

    def is_consistent(self) -> bool:
        """Return whether map and players agree, and no value leads the compiled ticks outside an array."""
        players = self.players
        terrain, owner = (tiles.reshape(self.width, self.width) for tiles in (self.terrain, self.owner))
        frame = np.ones(terrain.shape, np.bool_)
        frame[1:-1, 1:-1] = False
        if not ((owner >= BLOCKED) & (owner < players) & (terrain >= WATER) & (terrain <= MOUNTAIN)).all():
            return False
        if terrain[frame].any() or not np.array_equal(owner == BLOCKED, terrain == WATER):
            return False
        saved, counted = (self.land, self.rows, self.columns), land_totals(self.owner, self.width, players)
        return (
            all(np.array_equal(a, b) for a, b in zip(saved, counted, strict=True))
            and bool((self.home >= 0).all() and (self.away >= 0).all())
            and bool(((self.heading >= 0) & (self.heading <= EVERYWHERE)).all())
            and bool(((self.target >= ANYONE) & (self.target < players)).all())
        )


def land_totals(owner: npt.NDArray[np.int8], width: int, players: int) -> LandTotals:
    """Count the tiles of each player, and add up their rows and columns."""
    tiles = np.flatnonzero(owner >= 0)
    row, column = np.divmod(tiles, width)
    land, rows, columns = (
        np.bincount(owner[tiles], weights, players).astype(np.int64) for weights in (None, row, column)
    )
    return LandTotals(land=land, rows=rows, columns=columns)


def new_world(seed: int, size: int, players: int) -> World:
    """Return the position at the start of a game on a map of ``size`` x ``size`` tiles. Player 0 is the agent."""
    rng = np.random.default_rng(seed)
    starting_map = generate_map(size, players, rng)
    terrain = starting_map.terrain
    owner = np.where(terrain == WATER, BLOCKED, FREE).astype(np.int8)
    down, right = np.mgrid[: size + 2, : size + 2]
    for player, (row, column) in enumerate(starting_map.starts):
        owner[abs(down - row) + abs(right - column) <= starting_map.radius] = player
    totals = land_totals(owner.ravel(), size + 2, players)
    due = rng.integers(1, MIN_ORDER_INTERVAL + ORDER_INTERVALS, players)
    due[0] = NEVER
    return World(
        seed=seed,
        tick=0,
        width=size + 2,
        terrain=terrain.ravel(),
        owner=owner.ravel(),
        home=totals.land * START_PER_TILE,
        away=np.zeros(players, np.int64),
        heading=np.zeros(players, np.int64),
        target=np.full(players, FREE, np.int64),
        land=totals.land,
        rows=totals.rows,
        columns=totals.columns,
        due=due.astype(np.int64),
    )


@functools.cache
def default_ticks() -> ModuleType:
    """Return the fastest module that plays ticks: ``ticks_numba``, or without numba ``ticks_numpy``, with a warning.

    The warning is given once, in the main process only.
    """
    try:
        from corral_games.territory import ticks_numba
    except ImportError:
        from corral_games.territory import ticks_numpy

        if multiprocessing.parent_process() is None:
            text = "Territory is about seven times as fast with numba: pip install 'corral[territory]'"
            warnings.warn(text, stacklevel=2)
        return ticks_numpy
    return ticks_numba
