"""What the memory of a game means: where an episode begins, what is seen, what pays, what ends.

``map_file`` reads it from a YAML file, ``readings`` looks things up while a game is played.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["KINDS", "LAST", "Feature", "MemoryMap", "Press", "Start", "Term", "Value"]

LAST = 0xFFFF
"""The highest address."""
KINDS = ("new", "first", "gain", "loss")
"""What a reward term may pay for, see ``Term``."""


@dataclass(frozen=True)
class Value:
    """A number that is made of memory: ``size`` bytes, or how many of ``count`` such numbers pass a test."""

    name: str
    at: int = 0
    size: int = 1
    big: bool = False
    """Whether the most significant byte comes first."""
    bcd: bool = False
    """Two decimal digits in each byte; a digit above 9 counts as 9."""
    unit: int = 1
    """So many in a row count as one: pixels as tiles, say."""
    bit: int | None = None
    equals: tuple[int, ...] = ()
    ones: bool = False
    """How many of its bits are set."""
    count: int = 0
    join: tuple[Value, ...] = ()
    """Other values as one; the rest does not matter then."""

    @property
    def addresses(self) -> range:
        """Where it is, if it joins no others."""
        return range(self.at, self.at + self.size * max(1, self.count))

    @property
    def limit(self) -> int:
        """No value is larger."""
        if self.join:
            return math.prod(part.limit + 1 for part in self.join) - 1
        if self.ones:
            single: int = 8 * self.size
        elif self.bit is not None or self.equals or self.count:
            single = 1
        else:
            single = ((100 if self.bcd else 256) ** self.size - 1) // self.unit
        return single * max(1, self.count)


@dataclass(frozen=True)
class Feature:
    """Some numbers in [0, 1] of the ``ram`` observation, made of ``sources``."""

    name: str
    sources: tuple[Value, ...]
    scale: float = 0.0
    """What counts as 1, unless there are classes."""
    classes: tuple[tuple[int, ...], ...] = ()
    """Which values each class has: a plane of zeros and ones for each."""

    @property
    def width(self) -> int:
        """How many numbers."""
        return len(self.sources) * max(1, len(self.classes))


@dataclass(frozen=True)
class Term:
    """Something that pays ``weight`` for each unit, in steps in which nothing of ``when`` is zero."""

    name: str
    weight: float
    kind: str
    """``new``: each value that is new in the episode. ``first``: once, when it is no longer zero. ``gain``: each unit
    above the highest so far. ``loss``: each unit that it falls."""
    value: Value
    when: tuple[Value, ...] = ()


@dataclass(frozen=True)
class Press:
    """A button, or none, for so many frames."""

    button: str | None
    frames: int


@dataclass(frozen=True)
class Start:
    """How to get to where an episode begins."""

    buttons: tuple[Press, ...] = ()
    state: bytes | None = None
    """Where to begin instead of at power-on: what PyBoy has saved."""
    seed: int | None = None
    """Where the game's random generator has its two bytes."""
    idle: int = 0
    """Up to so many frames pass before an episode begins, by its seed."""


@dataclass(frozen=True)
class MemoryMap:
    """A whole file. Equal digests mean equal maps."""

    path: str
    digest: str
    game: str
    title: str
    start: Start
    features: tuple[Feature, ...]
    rewards: tuple[Term, ...]
    ends: tuple[Value, ...]
    shown: tuple[Value, ...]
