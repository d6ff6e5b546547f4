"""The world: who owns what, and what it takes to go on from there."""

from __future__ import annotations

import functools
import multiprocessing
import struct
import warnings
from dataclasses import dataclass
from types import ModuleType

import numpy as np
import numpy.typing as npt

from corral_games.territory.bots import PAUSE, PAUSES
from corral_games.territory.rules import ANYONE, BLOCKED, EVERYWHERE, FREE, MOUNTAIN, START_PER_TILE, WATER, WIN_PERCENT
from corral_games.territory.terrain import lay_out

__all__ = ["NEVER", "Ints", "World", "default_ticks", "found", "holdings"]

_HEAD = struct.Struct("<QqII")
_COLUMNS = ("home", "away", "heading", "target", "land", "rows", "columns", "due")
Ints = npt.NDArray[np.int64]
NEVER = 1 << 60
"""When a player is due that gives its own orders."""


@dataclass(slots=True)
class World:
    """A position. Tiles are numbered row by row on a map with water around it; players from 0 on.

    What is not an array may be replaced; the arrays are changed in place, by ``advance`` of a tick module.
    """

    seed: int
    """64 bits, from which every chance of the game is computed."""
    tick: int
    width: int
    """Tiles of a row, the water at both ends included."""
    terrain: npt.NDArray[np.int8]
    owner: npt.NDArray[np.int8]
    """[tiles]: a player, FREE or BLOCKED (water)."""
    home: Ints
    """[P], like those that follow: troops at home."""
    away: Ints
    """Troops in the attack."""
    heading: Ints
    """Of the attack: a sector, or EVERYWHERE."""
    target: Ints
    """Of the attack: a player, FREE or ANYONE."""
    land: Ints
    """Tiles owned."""
    rows: Ints
    """Sum of the rows of the tiles owned; ``columns`` likewise: together, the centre of a player's land."""
    columns: Ints
    due: Ints
    """The tick after which a bot gives its next order."""

    @property
    def players(self) -> int:
        """How many there were at the beginning."""
        return len(self.home)

    @property
    def bots(self) -> int:
        """All of them but the first."""
        return len(self.home) - 1

    @property
    def all_land(self) -> int:
        """Tiles that can be owned."""
        return int(np.count_nonzero(self.terrain))

    def order(self, player: int, heading: int, percent: int, target: int) -> None:
        """Call the player's attack home, and send a share of all its troops on a new one."""
        troops = int(self.home[player] + self.away[player])
        self.away[player] = troops * percent // 100
        self.home[player] = troops - self.away[player]
        self.heading[player], self.target[player] = heading, target

    def rank(self, player: int) -> int:
        """1 for the largest; those with as much land share a rank."""
        return 1 + int(np.count_nonzero(self.land > self.land[player]))

    def winner(self, all_land: int) -> int | None:
        """Who has enough land to win, if anybody."""
        largest = int(self.land.argmax())
        return largest if int(self.land[largest]) * 100 >= WIN_PERCENT * all_land else None

    def to_bytes(self) -> bytes:
        """The world as plain data."""
        return b"".join(
            [
                _HEAD.pack(self.seed, self.tick, self.width, self.players),
                self.terrain.tobytes(),
                self.owner.tobytes(),
                *(getattr(self, name).astype("<i8").tobytes() for name in _COLUMNS),
            ]
        )

    @staticmethod
    def size_in_bytes(size: int, players: int) -> int:
        """The length of what ``to_bytes`` gives for a map of this size with so many players."""
        return _HEAD.size + 2 * (size + 2) ** 2 + 8 * players * len(_COLUMNS)

    @classmethod
    def from_bytes(cls, data: bytes, size: int) -> World:
        """What ``to_bytes`` gave, of a map of this size; a ValueError if it is something else."""
        if len(data) < _HEAD.size:
            raise ValueError("it is too short")
        seed, tick, width, players = _HEAD.unpack_from(data)
        tiles = (size + 2) ** 2
        if width != size + 2 or len(data) != cls.size_in_bytes(size, players):
            raise ValueError("its length is wrong")
        terrain, owner = np.frombuffer(data, np.int8, 2 * tiles, _HEAD.size).reshape(2, tiles).copy()
        columns = np.frombuffer(data, "<i8", offset=_HEAD.size + 2 * tiles).reshape(len(_COLUMNS), players)
        arrays = {name: column.astype(np.int64) for name, column in zip(_COLUMNS, columns, strict=True)}
        world = cls(seed=seed, tick=tick, width=width, terrain=terrain, owner=owner, **arrays)
        if not world.is_sound():
            raise ValueError("its map and its players do not agree")
        return world

    def is_sound(self) -> bool:
        """Whether it could be reached by playing, as far as a look can tell: no number leads out of an array."""
        players, inside = self.players, np.s_[1:-1, 1:-1]
        terrain, owner = (tiles.reshape(self.width, self.width) for tiles in (self.terrain, self.owner))
        frame = np.ones(terrain.shape, np.bool_)
        frame[inside] = False
        if not ((owner >= BLOCKED) & (owner < players) & (terrain >= WATER) & (terrain <= MOUNTAIN)).all():
            return False
        if terrain[frame].any() or not np.array_equal(owner == BLOCKED, terrain == WATER):
            return False
        told, counted = (self.land, self.rows, self.columns), holdings(self.owner, self.width, players)
        return (
            all(np.array_equal(a, b) for a, b in zip(told, counted, strict=True))
            and bool((self.home >= 0).all() and (self.away >= 0).all())
            and bool(((self.heading >= 0) & (self.heading <= EVERYWHERE)).all())
            and bool(((self.target >= ANYONE) & (self.target < players)).all())
        )


def holdings(owner: npt.NDArray[np.int8], width: int, players: int) -> tuple[Ints, Ints, Ints]:
    """What each player's tiles come to: how many, and the sums of their rows and columns."""
    tiles = np.flatnonzero(owner >= 0)
    weights: tuple[Ints | None, ...] = None, *np.divmod(tiles, width)
    land, rows, columns = (np.bincount(owner[tiles], of, players).astype(np.int64) for of in weights)
    return land, rows, columns


def found(seed: int, size: int, players: int) -> World:
    """A new world. All players but the first are bots."""
    rng = np.random.default_rng(seed)
    terrain, starts, reach = lay_out(size, players, rng)
    owner = np.where(terrain == WATER, BLOCKED, FREE).astype(np.int8)
    down, right = np.mgrid[: size + 2, : size + 2]
    for player, (row, column) in enumerate(starts):
        owner[abs(down - row) + abs(right - column) <= reach] = player
    land, rows, columns = holdings(owner.ravel(), size + 2, players)
    due = rng.integers(1, PAUSE + PAUSES, players)
    due[0] = NEVER
    return World(
        seed=seed,
        tick=0,
        width=size + 2,
        terrain=terrain.ravel(),
        owner=owner.ravel(),
        home=land * START_PER_TILE,
        away=np.zeros(players, np.int64),
        heading=np.zeros(players, np.int64),
        target=np.full(players, FREE, np.int64),
        land=land,
        rows=rows,
        columns=columns,
        due=due.astype(np.int64),
    )


@functools.cache
def default_ticks() -> ModuleType:
    """The module that plays ticks fastest here: compiled, if numba is installed; if not, that is said once."""
    try:
        from corral_games.territory import ticks_numba
    except ImportError:
        from corral_games.territory import ticks_numpy

        if multiprocessing.parent_process() is None:
            text = "territory is played seven times as fast with numba: pip install 'corral[territory]'"
            warnings.warn(text, stacklevel=2)
        return ticks_numpy
    return ticks_numba
