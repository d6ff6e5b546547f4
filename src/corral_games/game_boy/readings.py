"""Looks up, in a game's memory, what a map names: features for the observation, values, and the reward.

A step reads each stretch of memory once. Every number of an observation that depends on one byte is found in a table of
256; the few others, and what rewards need, are plain Python.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from corral_games.game_boy.memory_map import Feature, MemoryMap, Term, Value

__all__ = ["FeatureReader", "Meter", "Sight", "key_of", "sight_of"]

Bytes = list[int]
"""What a ``Sight`` has read."""
GAP = 8
"""Reading so many bytes for nothing takes no longer than to begin anew."""
_BANKED = range(0xD000, 0xE000)
_REGISTERS = range(0xFF00, 0xFF80)
"""Of the machine: never read for nothing, since that can have effects."""


def key_of(key: Any, address: int, banked: bool) -> Any:
    """What PyBoy's memory is asked with: on the Game Boy Color, for the first bank of work RAM that can be changed.

    Which bank is there when a frame ends is a matter of chance.
    """
    return (1, key) if banked and address in _BANKED else key


class Sight:
    """The stretches of memory in which some addresses are, and how to read values there."""

    def __init__(self, addresses: Iterable[int], banked: bool = False) -> None:
        spans: list[range] = []
        for address in sorted(set(addresses)):
            between = range(spans[-1].stop, address) if spans else range(GAP)
            parted = banked and bool(spans) and (address in _BANKED) != (spans[-1].start in _BANKED)
            if len(between) < GAP and not parted and not any(unasked in _REGISTERS for unasked in between):
                spans[-1] = range(spans[-1].start, address + 1)
            else:
                spans.append(range(address, address + 1))
        self._place = {address: place for place, address in enumerate(itertools.chain(*spans))}
        self._slices = [key_of(slice(span.start, span.stop), span.start, banked) for span in spans]

    def look(self, memory: Any) -> Bytes:
        """All of it, as it is now."""
        if len(self._slices) == 1:
            return memory[self._slices[0]]  # type: ignore[no-any-return]
        seen: Bytes = []
        for span in self._slices:
            seen += memory[span]
        return seen

    def place(self, address: int) -> int:
        """Where in the bytes an address is."""
        return self._place[address]

    def reader(self, value: Value) -> Callable[[Bytes], int]:
        """Finds a value in what ``look`` returned."""
        if value.join:
            parts = [(self.reader(part), part.limit + 1) for part in value.join]
            return lambda seen: _joined(seen, parts)
        at = self.place(value.at)
        if not value.count:
            if value.size == 1 and not value.bcd:
                return _byte_reader(value, at)
            return lambda seen: _tested(value, _number(value, seen, at))
        if value.size == 1:
            end, table = at + value.count, bytes(_counted(value, _decoded(value, byte)) for byte in range(256))
            return lambda seen: sum(bytes(seen[at:end]).translate(table))
        starts = range(at, at + value.count * value.size, value.size)
        return lambda seen: sum(_counted(value, _number(value, seen, start)) for start in starts)


class FeatureReader:
    """The ``ram`` observation: all features, one after the other."""

    def __init__(self, features: Sequence[Feature], sight: Sight) -> None:
        self.width = sum(feature.width for feature in features)
        places = np.zeros(self.width, np.intp)
        rows = np.zeros(self.width, np.intp)
        tables: dict[bytes, int] = {bytes(4 * 256): 0}
        self._rest: list[tuple[Callable[[Bytes], int], Feature, int]] = []
        offset = 0
        for feature in features:
            stride = len(feature.sources)
            for i, source in enumerate(feature.sources):
                if source.join or source.count or source.size > 1:
                    self._rest.append((sight.reader(source), feature, offset + i))
                    continue
                columns = _table(feature, source)
                for k, column in enumerate(columns):
                    places[offset + i + k * stride] = sight.place(source.at)
                    rows[offset + i + k * stride] = tables.setdefault(column.tobytes(), len(tables))
            offset += feature.width
        self._tables = np.frombuffer(b"".join(tables), np.float32)
        self._places, self._rows = places, rows * 256

    def read(self, seen: Bytes) -> npt.NDArray[np.float32]:
        """The features in what ``look`` returned."""
        raw = np.frombuffer(bytes(seen), np.uint8)
        found: npt.NDArray[np.float32] = self._tables.take(raw.take(self._places) + self._rows)
        for read, feature, place in self._rest:
            number = read(seen)
            if feature.classes:
                stride = len(feature.sources)
                for k, members in enumerate(feature.classes):
                    found[place + k * stride] = number in members
            else:
                found[place] = min(1.0, number / feature.scale)
        return found


class Meter:
    """What an episode has earned, term by term."""

    def __init__(self, terms: Sequence[Term], weights: Mapping[str, float], sight: Sight) -> None:
        self.names = tuple(term.name for term in terms)
        self.earned = [0.0] * len(terms)
        self._kinds = [term.kind for term in terms]
        self._weights = [weights[term.name] for term in terms]
        self._reads = [
            (i, sight.reader(term.value), [sight.reader(value) for value in term.when]) for i, term in enumerate(terms)
        ]
        self._last = [0] * len(terms)
        self._best = [0] * len(terms)
        self._met: list[set[int]] = [set() for _ in terms]

    def begin(self, seen: Bytes) -> None:
        """An episode begins: what there is now pays nothing, unless it does not count yet."""
        self.earned = [0.0] * len(self.names)
        self._last = [read(seen) for _, read, _ in self._reads]
        self._best = list(self._last)
        self._met = [{last} for last in self._last]
        for i, _, when in self._reads:
            if self._kinds[i] in ("new", "first") and not all(holds(seen) for holds in when):
                self._last[i], self._best[i], self._met[i] = -1, 0, set()

    def pay(self, seen: Bytes) -> float:
        """The reward of a step."""
        reward = 0.0
        last = self._last
        for i, read, when in self._reads:
            now = read(seen)
            if now == last[i] or (when and not all(holds(seen) for holds in when)):
                continue
            paid = self._units(i, now) * self._weights[i]
            last[i] = now
            if paid:
                self.earned[i] += paid
                reward += paid
        return reward

    def save(self) -> dict[str, Any]:
        """Where it is, as plain data."""
        met = [sorted(met) for met in self._met]
        return {"earned": self.earned, "last": self._last, "best": self._best, "met": met}

    def load(self, saved: Mapping[str, Any]) -> None:
        """Go on from there; a ValueError if it does not fit."""
        lists = [saved[key] for key in ("earned", "last", "best", "met")]
        if any(len(found) != len(self.names) for found in lists):
            raise ValueError("it has other reward terms")
        self.earned = [float(number) for number in lists[0]]
        self._last, self._best = ([int(number) for number in found] for found in lists[1:3])
        self._met = [{int(number) for number in met} for met in lists[3]]

    def _units(self, i: int, now: int) -> int:
        kind = self._kinds[i]
        if kind == "loss":
            return max(0, self._last[i] - now)
        if kind == "new":
            if now in self._met[i]:
                return 0
            self._met[i].add(now)
            return 1
        if now <= self._best[i]:
            return 0
        gained = now - self._best[i] if kind == "gain" else int(not self._best[i])
        self._best[i] = now
        return gained


def _addresses_of(values: Iterable[Value]) -> set[int]:
    """Every address that some values need."""
    found: set[int] = set()
    for value in values:
        found |= _addresses_of(value.join) if value.join else set(value.addresses)
    return found


def sight_of(memory_map: MemoryMap, features: bool, banked: bool) -> Sight:
    """What is needed to play by a map, with or without its features; ``banked`` on the Game Boy Color."""
    terms = memory_map.rewards
    values = [value for term in terms for value in (term.value, *term.when)]
    values += [*memory_map.ends, *memory_map.shown]
    if features:
        values += [source for feature in memory_map.features for source in feature.sources]
    return Sight(_addresses_of(values), banked)


def _byte_reader(value: Value, at: int) -> Callable[[Bytes], int]:
    if value.unit == 1 and value.bit is None and not value.equals and not value.ones:
        return lambda seen: seen[at]
    table = [_tested(value, byte) for byte in range(256)]
    return lambda seen: table[seen[at]]


def _joined(seen: Bytes, parts: list[tuple[Callable[[Bytes], int], int]]) -> int:
    number = 0
    for read, span in parts:
        number = number * span + read(seen)
    return number


def _number(value: Value, seen: Bytes, at: int) -> int:
    part = bytes(seen[at : at + value.size])
    if not value.bcd:
        return int.from_bytes(part, "big" if value.big else "little")
    number = 0
    for byte in part if value.big else reversed(part):
        number = number * 100 + _decoded(value, byte)
    return number


def _decoded(value: Value, byte: int) -> int:
    return min(9, byte >> 4) * 10 + min(9, byte & 15) if value.bcd else byte


def _tested(value: Value, number: int) -> int:
    if value.bit is not None:
        return number >> value.bit & 1
    if value.equals:
        return int(number in value.equals)
    return number.bit_count() if value.ones else number // value.unit


def _counted(value: Value, number: int) -> int:
    if value.bit is None and not value.equals and not value.ones:
        return int(number != 0)
    return _tested(value, number)


def _table(feature: Feature, source: Value) -> list[npt.NDArray[np.float32]]:
    """For each class of a feature, or for its only one: what it is by the byte in memory."""
    numbers = [_tested(source, _decoded(source, byte)) for byte in range(256)]
    if not feature.classes:
        return [np.minimum(np.array(numbers, np.float64) / feature.scale, 1.0).astype(np.float32)]
    return [np.array([number in members for number in numbers], np.float32) for members in feature.classes]
