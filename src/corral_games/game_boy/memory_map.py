"""What a game's memory means: where an episode starts, what is observed, what is rewarded and what ends an episode.

``map_file`` reads a memory map from a YAML file. ``features_and_rewards`` reads its values from the memory of a running
game.

``MemoryMap.digest`` hashes the ``repr`` of the other classes in this module, and saved states of envs contain it:
renaming a class or a field, or changing the order of fields, makes all saved states unusable.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["KINDS", "LAST_ADDRESS", "Feature", "MemoryMap", "Press", "Start", "Term", "Value"]

LAST_ADDRESS = 0xFFFF
KINDS = ("new", "first", "gain", "loss")
"""The kinds of reward terms, see ``Term.kind``."""


@dataclass(frozen=True)
class Value:
    """An integer that is computed from memory: a number of ``size`` bytes, or a count of ``count`` such numbers.

    At most one of ``unit``, ``bit``, ``equals`` and ``ones`` changes the number that was read. With ``count``, the
    value is the sum of the changed numbers, or without such a change how many of the numbers are not zero.
    """

    name: str
    at: int = 0
    """The address of the first byte."""
    size: int = 1
    big: bool = False
    """Whether the number is big-endian: the most significant byte comes first."""
    bcd: bool = False
    """Whether the number is a binary-coded decimal: two digits in each byte. A digit above 9 counts as 9."""
    unit: int = 1
    """The number is divided by this and rounded down, for example from pixels to tiles."""
    bit: int | None = None
    """The number is replaced with this bit of it."""
    equals: tuple[int, ...] = ()
    """The number is replaced with 1 if it is one of these, otherwise with 0."""
    ones: bool = False
    """Whether the number is replaced with the number of bits in it that are 1."""
    count: int = 0
    """How many numbers that follow each other in memory are counted; 0 for a single number."""
    join: tuple[Value, ...] = ()
    """Values that are combined into one integer, which differs for each combination. All other fields are unused."""

    @property
    def addresses(self) -> range:
        """The addresses of a value that joins no others."""
        return range(self.at, self.at + self.size * max(1, self.count))

    @property
    def limit(self) -> int:
        """The largest integer that the value can be."""
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
    """Numbers in [0, 1] of the ``ram`` observation: one for each source or, with classes, for each class and source."""

    name: str
    sources: tuple[Value, ...]
    scale: float = 0.0
    """Without classes: the source is divided by this, and larger values are clipped to 1."""
    classes: tuple[tuple[int, ...], ...] = ()
    """For each class, the values that belong to it: its number is 1 if the source is one of them, otherwise 0."""

    @property
    def width(self) -> int:
        """How many numbers the feature has."""
        return len(self.sources) * max(1, len(self.classes))


@dataclass(frozen=True)
class Term:
    """A term of the reward: ``weight`` for each unit, in steps in which all values of ``when`` are not zero."""

    name: str
    weight: float
    kind: str
    """What counts as a unit. ``new``: each value that is new in the episode. ``first``: the first time that the value
    is not zero. ``gain``: each unit above the highest value so far. ``loss``: each unit by which the value falls."""
    value: Value
    when: tuple[Value, ...] = ()


@dataclass(frozen=True)
class Press:
    """A button that is held for a number of frames; None to wait without one."""

    button: str | None
    frames: int


@dataclass(frozen=True)
class Start:
    """How the position in which episodes start is reached."""

    buttons: tuple[Press, ...] = ()
    state: bytes | None = None
    """A state that PyBoy saved, from which the buttons are pressed; None to start at power-on."""
    seed: int | None = None
    """The address of the two bytes of the game's random generator, which are set at each reset."""
    idle: int = 0
    """The largest number of frames that pass at a reset; the number is random."""


@dataclass(frozen=True)
class MemoryMap:
    """The content of a memory map file. Maps with equal digests are equal, except for ``path`` and ``game``."""

    path: str
    digest: str
    game: str
    """The name of the game, for people."""
    title: str
    """The title in the header of the ROM."""
    start: Start
    features: tuple[Feature, ...]
    rewards: tuple[Term, ...]
    ends: tuple[Value, ...]
    """The episode ends when one of these is not zero."""
    shown: tuple[Value, ...]
    """Values that are in the ``info`` of every step."""
