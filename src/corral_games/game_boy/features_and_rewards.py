"""Reads what a memory map names from a game's memory: values, the features of the observation, and the reward.

A step reads each range of memory once. Features that depend on one byte are looked up in tables with 256 entries, all
with one ``take``; other features and the values of rewards are computed in Python.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from corral_games.game_boy.memory_map import Feature, MemoryMap, Term, Value

__all__ = ["FeatureReader", "MemoryBytes", "MemoryLayout", "RewardTracker", "build_layout", "memory_key"]

MemoryBytes = list[int]
"""The bytes that ``MemoryLayout.read_bytes`` has read."""
ValueReader = Callable[[MemoryBytes], int]
"""Computes a value from the bytes that ``MemoryLayout.read_bytes`` has read."""
MAX_GAP = 8
"""Ranges with fewer bytes than this between them are read as one, because that takes no longer than a second read."""
_BANKED_WORK_RAM = range(0xD000, 0xE000)
_IO_REGISTERS = range(0xFF00, 0xFF80)
"""Registers of the hardware. Only those that a map names are read, because reading can have side effects."""


def memory_key(key: Any, address: int, is_color: bool) -> Any:
    """Return the key with which PyBoy's memory is read at an address or slice that begins at ``address``.

    On the Game Boy Color the game switches banks of work RAM, and which one is active at the end of a frame varies. The
    key names bank 1 there, the first of those that can be switched.
    """
    return (1, key) if is_color and address in _BANKED_WORK_RAM else key


class MemoryLayout:
    """The ranges of memory that contain a set of addresses, and where each address is in the bytes read from them."""

    def __init__(self, addresses: Iterable[int], is_color: bool = False) -> None:
        ranges: list[range] = []
        for address in sorted(set(addresses)):
            if ranges and _can_extend(ranges[-1], address, is_color):
                ranges[-1] = range(ranges[-1].start, address + 1)
            else:
                ranges.append(range(address, address + 1))
        self._index = {address: index for index, address in enumerate(itertools.chain(*ranges))}
        self._keys = [memory_key(slice(r.start, r.stop), r.start, is_color) for r in ranges]

    def read_bytes(self, memory: Any) -> MemoryBytes:
        """Read all ranges from PyBoy's memory."""
        if len(self._keys) == 1:
            return memory[self._keys[0]]  # type: ignore[no-any-return]
        data: MemoryBytes = []
        for key in self._keys:
            data += memory[key]
        return data

    def index_of(self, address: int) -> int:
        """Return the index of an address in the bytes that ``read_bytes`` returns."""
        return self._index[address]

    def reader(self, value: Value) -> ValueReader:
        """Return a function that computes a value from the bytes that ``read_bytes`` returns."""
        if value.join:
            parts = [_JoinedPart(self.reader(part), part.limit + 1) for part in value.join]
            return lambda data: _join(data, parts)
        start = self.index_of(value.at)
        if not value.count:
            if value.size == 1 and not value.bcd:
                return _byte_reader(value, start)
            return lambda data: _transform(value, _read_number(value, data, start))
        if value.size == 1:
            end = start + value.count
            table = bytes(_count(value, _decode_byte(value, byte)) for byte in range(256))
            return lambda data: sum(bytes(data[start:end]).translate(table))
        starts = range(start, start + value.count * value.size, value.size)
        return lambda data: sum(_count(value, _read_number(value, data, index)) for index in starts)


class FeatureReader:
    """Computes the ``ram`` observation: all features, one after the other."""

    def __init__(self, features: Sequence[Feature], layout: MemoryLayout) -> None:
        self.width = sum(feature.width for feature in features)
        byte_index = np.zeros(self.width, np.intp)
        table_index = np.zeros(self.width, np.intp)
        tables: dict[bytes, int] = {bytes(4 * 256): 0}  # float32 [256] as bytes: equal tables are stored once
        self._computed: list[_ComputedFeature] = []
        """Features that no table has, because they depend on several bytes."""
        offset = 0
        for feature in features:
            stride = len(feature.sources)
            for i, source in enumerate(feature.sources):
                if source.join or source.count or source.size > 1:
                    self._computed.append(_ComputedFeature(layout.reader(source), feature, offset + i))
                    continue
                for k, table in enumerate(_byte_tables(feature, source)):
                    byte_index[offset + i + k * stride] = layout.index_of(source.at)
                    table_index[offset + i + k * stride] = tables.setdefault(table.tobytes(), len(tables))
            offset += feature.width
        self._tables = np.frombuffer(b"".join(tables), np.float32)  # [tables * 256]
        self._byte_index, self._table_start = byte_index, table_index * 256  # [width]

    def read(self, data: MemoryBytes) -> npt.NDArray[np.float32]:
        """Return the features [width], computed from the bytes that ``MemoryLayout.read_bytes`` returned."""
        raw = np.frombuffer(bytes(data), np.uint8)
        features: npt.NDArray[np.float32] = self._tables.take(raw.take(self._byte_index) + self._table_start)
        for read, feature, index in self._computed:
            number = read(data)
            if feature.classes:
                stride = len(feature.sources)
                for k, members in enumerate(feature.classes):
                    features[index + k * stride] = number in members
            else:
                features[index] = min(1.0, number / feature.scale)
        return features


class RewardTracker:
    """Computes the reward of each step, and adds up what each term has paid in the episode."""

    def __init__(self, terms: Sequence[Term], weights: Mapping[str, float], layout: MemoryLayout) -> None:
        self.names = tuple(term.name for term in terms)
        self.earned = [0.0] * len(terms)
        """The sum of rewards in the episode, by term."""
        self._kinds = [term.kind for term in terms]
        self._weights = [weights[term.name] for term in terms]
        self._readers = [
            (i, layout.reader(term.value), [layout.reader(value) for value in term.when])
            for i, term in enumerate(terms)
        ]
        """For each term: its index, the reader of its value, and the readers of its conditions."""
        self._last = [0] * len(terms)
        """The value of each term at the start of the episode, or at the last step in which its conditions held."""
        self._best = [0] * len(terms)
        """The highest value so far of each term of kind ``gain`` or ``first``, in steps whose conditions hold."""
        self._met: list[set[int]] = [set() for _ in terms]
        """The values that each term has had in the episode."""

    def begin(self, data: MemoryBytes) -> None:
        """Start an episode.

        The present values pay nothing. The exception are ``new`` and ``first`` terms whose conditions do not hold yet:
        they can still pay for the present value, once their conditions hold.
        """
        self.earned = [0.0] * len(self.names)
        self._last = [read(data) for _, read, _ in self._readers]
        self._best = list(self._last)
        self._met = [{last} for last in self._last]
        for i, _, when in self._readers:
            if self._kinds[i] in ("new", "first") and not all(holds(data) for holds in when):
                self._last[i], self._best[i], self._met[i] = -1, 0, set()

    def compute_reward(self, data: MemoryBytes) -> float:
        """Return the reward of a step."""
        reward = 0.0
        last = self._last
        for i, read, when in self._readers:
            value = read(data)
            if value == last[i] or (when and not all(holds(data) for holds in when)):
                continue
            term_reward = self._units(i, value) * self._weights[i]
            last[i] = value
            if term_reward:
                self.earned[i] += term_reward
                reward += term_reward
        return reward

    def save(self) -> dict[str, Any]:
        """Return the state as data for JSON."""
        met = [sorted(met) for met in self._met]
        return {"earned": self.earned, "last": self._last, "best": self._best, "met": met}

    def load(self, saved: Mapping[str, Any]) -> None:
        """Restore what ``save`` returned; raise a ValueError if it has another number of terms."""
        lists = [saved[key] for key in ("earned", "last", "best", "met")]
        if any(len(numbers) != len(self.names) for numbers in lists):
            raise ValueError("it has other reward terms")
        earned, last, best, met = lists
        self.earned = [float(number) for number in earned]
        self._last, self._best = [int(number) for number in last], [int(number) for number in best]
        self._met = [{int(number) for number in numbers} for numbers in met]

    def _units(self, i: int, value: int) -> int:
        """Return the units for which term ``i`` pays, given its new value, and update what it has seen."""
        kind = self._kinds[i]
        if kind == "loss":
            return max(0, self._last[i] - value)
        if kind == "new":
            if value in self._met[i]:
                return 0
            self._met[i].add(value)
            return 1
        if value <= self._best[i]:
            return 0
        units = value - self._best[i] if kind == "gain" else int(not self._best[i])
        self._best[i] = value
        return units


def build_layout(memory_map: MemoryMap, features: bool, is_color: bool) -> MemoryLayout:
    """Return the ranges of memory that a map needs, with or without its features.

    ``is_color`` says that the game is made for the Game Boy Color, see ``memory_key``.
    """
    values = [value for term in memory_map.rewards for value in (term.value, *term.when)]
    values += [*memory_map.ends, *memory_map.shown]
    if features:
        values += [source for feature in memory_map.features for source in feature.sources]
    return MemoryLayout(_addresses_of(values), is_color)


class _JoinedPart(NamedTuple):
    """A value that is part of a joined value."""

    read: ValueReader
    base: int
    """The number of different integers that the value can be."""


class _ComputedFeature(NamedTuple):
    """One source of a feature that depends on more than one byte."""

    read: ValueReader
    feature: Feature
    offset: int
    """Where in the observation the number of the source, or of its first class, is."""


def _can_extend(last: range, address: int, is_color: bool) -> bool:
    """Return whether a range of memory may be extended up to an address that follows it."""
    gap = range(last.stop, address)
    crosses_bank = is_color and (address in _BANKED_WORK_RAM) != (last.start in _BANKED_WORK_RAM)
    return len(gap) < MAX_GAP and not crosses_bank and not any(unused in _IO_REGISTERS for unused in gap)


def _addresses_of(values: Iterable[Value]) -> set[int]:
    """Return every address that the values need."""
    addresses: set[int] = set()
    for value in values:
        addresses |= _addresses_of(value.join) if value.join else set(value.addresses)
    return addresses


def _byte_reader(value: Value, index: int) -> ValueReader:
    """Return a function that computes the value of a single byte."""
    if value.unit == 1 and value.bit is None and not value.equals and not value.ones:
        return lambda data: data[index]
    table = [_transform(value, byte) for byte in range(256)]
    return lambda data: table[data[index]]


def _join(data: MemoryBytes, parts: list[_JoinedPart]) -> int:
    """Combine values into one integer, as digits of a number with mixed bases."""
    number = 0
    for read, base in parts:
        number = number * base + read(data)
    return number


def _read_number(value: Value, data: MemoryBytes, index: int) -> int:
    """Return the number in the ``value.size`` bytes from ``index`` on."""
    number_bytes = bytes(data[index : index + value.size])
    if not value.bcd:
        return int.from_bytes(number_bytes, "big" if value.big else "little")
    number = 0
    for byte in number_bytes if value.big else reversed(number_bytes):
        number = number * 100 + _decode_byte(value, byte)
    return number


def _decode_byte(value: Value, byte: int) -> int:
    """Return the number in a byte: its two decimal digits if the value is a binary-coded decimal."""
    return min(9, byte >> 4) * 10 + min(9, byte & 15) if value.bcd else byte


def _transform(value: Value, number: int) -> int:
    """Apply the value's ``bit``, ``equals``, ``ones`` or ``unit`` to a number that was read."""
    if value.bit is not None:
        return number >> value.bit & 1
    if value.equals:
        return int(number in value.equals)
    return number.bit_count() if value.ones else number // value.unit


def _count(value: Value, number: int) -> int:
    """Return what one number adds to a value that counts several."""
    if value.bit is None and not value.equals and not value.ones:
        return int(number != 0)
    return _transform(value, number)


def _byte_tables(feature: Feature, source: Value) -> list[npt.NDArray[np.float32]]:
    """Return a table [256] for each class of a feature, or one table without classes: its number for each byte."""
    numbers = [_transform(source, _decode_byte(source, byte)) for byte in range(256)]
    if not feature.classes:
        return [np.minimum(np.array(numbers, np.float64) / feature.scale, 1.0).astype(np.float32)]
    return [np.array([number in members for number in numbers], np.float32) for members in feature.classes]
