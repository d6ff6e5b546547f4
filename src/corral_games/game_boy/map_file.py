"""Reads a memory map from a YAML file, which holds data and never code. An error names the file and the key."""

from __future__ import annotations

import hashlib
import os
import reprlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from corral.config.yaml_file import read_mapping
from corral.core.errors import UsageError
from corral.core.suggestions import did_you_mean
from corral_games.game_boy.emulator import BUTTONS, read_limited
from corral_games.game_boy.memory_map import KINDS, LAST_ADDRESS, Feature, MemoryMap, Press, Start, Term, Value

__all__ = ["read_map"]

MAX_FILE_BYTES, MAX_STATE_BYTES = 1 << 20, 1 << 22
"""The largest map file, and the largest file of a start state."""
MAX_ENTRIES, MAX_WIDTH = 2000, 100_000
"""The largest number of entries in a list or mapping of a file, and of numbers in all features together."""
MAX_JOINED, MAX_REAL = 8, 1e30
"""The largest number of values that are joined into one, and the largest weight or scale."""
PRESS_FRAMES, MAX_FRAMES = 4, 36_000
"""Frames for which a button is held by default, and the largest number of frames for anything (ten minutes)."""
_TRANSFORMS = ("unit", "bit", "equals", "ones")
_NUMBER_KEYS = ("at", "size", "order", "bcd", *_TRANSFORMS)
"""Keys that describe how a number is read from memory."""


def read_map(path: str | os.PathLike[str]) -> MemoryMap:
    """Read a memory map from a file; raise a UsageError that names the file and the key if something is wrong."""
    name = str(path)
    if not isinstance(path, str | os.PathLike):
        raise UsageError(f"memory map {path!r:.80} should be the path of a file")
    try:
        read_limited(path, MAX_FILE_BYTES)  # checks that it is a file, and its size
        data = read_mapping(Path(path).resolve(), "memory map", untrusted=True)
    except UsageError:
        raise
    except (OSError, RecursionError, ValueError) as error:
        raise UsageError(f"cannot read memory map {name!r}: {getattr(error, 'strerror', None) or error}") from None
    return _MapParser(name).parse(data)


class _Checker:
    """Checks the types and limits of single entries. ``where`` is the entry's key, for the error."""

    def __init__(self, path: str) -> None:
        self._path = path

    def error(self, where: str, problem: str) -> UsageError:
        """Return the error for an entry."""
        return UsageError(f"memory map {self._path!r}: {where}{' ' if where else ''}{problem}")

    def keys(self, where: str, entry: Any, allowed: Collection[str], required: Collection[str] = ()) -> None:
        """Check that an entry is a mapping with allowed keys only and all required ones."""
        if not isinstance(entry, dict):
            raise self.error(where, f"is {_shorten(entry)}, expected `key: value` pairs")
        for key in entry:
            if key not in allowed:
                guess = did_you_mean(key, allowed) if isinstance(key, str) else ""
                raise self.error(where, f"has an unknown key {_shorten(key)}{guess}; known: {', '.join(allowed)}")
        for key in required:
            if key not in entry:
                raise self.error(where, f"has no {key!r}; it is needed")

    def mapping(self, where: str, entry: Any) -> dict[str, Any]:
        """Return a mapping from names to anything; an empty one for None."""
        entry = {} if entry is None else entry
        if not isinstance(entry, dict) or len(entry) > MAX_ENTRIES or not all(isinstance(key, str) for key in entry):
            raise self.error(where, f"should be up to {MAX_ENTRIES:,} names with what they mean, not {_shorten(entry)}")
        return entry

    def entries(self, where: str, entry: Any) -> list[Any]:
        """Return a list of anything; an empty one for None."""
        entry = [] if entry is None else entry
        if not isinstance(entry, list) or len(entry) > MAX_ENTRIES:
            raise self.error(where, f"should be a list of up to {MAX_ENTRIES:,} entries, not {_shorten(entry)}")
        return entry

    def text(self, where: str, entry: Any) -> str:
        """Return a text that is not empty, without spaces at its ends."""
        if not isinstance(entry, str) or not entry.strip() or len(entry) > 200:
            raise self.error(where, f"is {_shorten(entry)}, expected a text of 1 to 200 characters")
        return entry.strip()

    def boolean(self, where: str, entry: Any) -> bool:
        """Return true or false."""
        if not isinstance(entry, bool):
            raise self.error(where, f"is {_shorten(entry)}, expected true or false")
        return entry

    def integer(self, where: str, entry: Any, least: int, most: int) -> int:
        """Return an integer from ``least`` to ``most``."""
        if not isinstance(entry, int) or isinstance(entry, bool) or not least <= entry <= most:
            limits = f"0x{least:X} to 0x{most:X}" if most >= 0x8000 else f"{least:,} to {most:,}"
            raise self.error(where, f"is {_shorten(entry)}, expected a whole number from {limits}")
        return entry

    def real(self, where: str, entry: Any) -> float:
        """Return a finite number."""
        if not isinstance(entry, int | float) or isinstance(entry, bool) or not abs(entry) <= MAX_REAL:
            raise self.error(where, f"is {_shorten(entry)}, expected a number")
        return float(entry)


class _MapParser:
    """Builds a memory map from the data of a YAML file."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._check = _Checker(path)
        self._values: dict[str, Value] = {}

    def parse(self, data: Mapping[str, Any]) -> MemoryMap:
        """Return the memory map; raise a UsageError at the first mistake."""
        check = self._check
        keys = ("game", "title", "start", "values", "features", "rewards", "ends", "shown")
        check.keys("", data, keys, required=("title", "features"))
        title = check.text("title", data["title"]) if data["title"] != "" else ""
        for name, entry in check.mapping("values", data.get("values")).items():
            self._values[name] = self._value(f"values.{name}", name, entry)
        start = self._start({} if data.get("start") is None else data["start"])
        features = self._features(check.entries("features", data["features"]))
        terms = check.mapping("rewards", data.get("rewards"))
        rewards = tuple(self._term(f"rewards.{name}", name, entry) for name, entry in terms.items())
        ends = self._named_values("ends", data.get("ends"))
        shown = self._named_values("shown", data.get("shown"))
        game = check.text("game", data.get("game", title or "a game"))
        contents = repr((title, (start, features, rewards, ends, shown)))  # saved states depend on this text
        return MemoryMap(
            path=self._path,
            digest=hashlib.sha256(contents.encode()).hexdigest(),
            game=game,
            title=title,
            start=start,
            features=features,
            rewards=rewards,
            ends=ends,
            shown=shown,
        )

    # ---- start -------------------------------------------------------------------------------------------------

    def _start(self, entry: Any) -> Start:
        check = self._check
        check.keys("start", entry, ("buttons", "state", "seed", "idle"))
        buttons = check.entries("start.buttons", entry.get("buttons"))
        presses = [self._press(f"start.buttons[{i}]", press) for i, press in enumerate(buttons)]
        if sum(press.frames for press in presses) > MAX_FRAMES:
            raise check.error("start.buttons", f"take more than {MAX_FRAMES:,} frames together; save a state instead")
        return Start(
            buttons=tuple(presses),
            state=self._start_state(entry["state"]) if "state" in entry else None,
            seed=check.integer("start.seed", entry["seed"], 0x8000, LAST_ADDRESS - 1) if "seed" in entry else None,
            idle=check.integer("start.idle", entry.get("idle", 0), 0, MAX_FRAMES),
        )

    def _start_state(self, entry: Any) -> bytes:
        """Return the content of the file that ``start.state`` names, relative to the map file."""
        file = Path(self._path).parent / self._check.text("start.state", entry)
        try:
            return read_limited(file, MAX_STATE_BYTES)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise self._check.error("start.state", f"cannot be read from {str(file)!r}: {reason}") from None

    def _press(self, where: str, entry: Any) -> Press:
        """Return a press that is written as ``BUTTON [FRAMES]`` or ``wait [FRAMES]``."""
        words = self._check.text(where, entry).lower().split()
        actions = ("wait", *BUTTONS)
        if not words or len(words) > 2 or words[0] not in actions:
            guess = did_you_mean(words[0], actions) if words else ""
            problem = f"is {_shorten(entry)}{guess}, expected one of {', '.join(actions)}, and frames, as in `wait 30`"
            raise self._check.error(where, problem)
        try:
            frames = int(words[1]) if len(words) == 2 else PRESS_FRAMES
        except ValueError:
            frames = 0
        if not 1 <= frames <= MAX_FRAMES:
            problem = f"is {_shorten(entry)}, expected 1 to {MAX_FRAMES:,} frames after {words[0]!r}"
            raise self._check.error(where, problem)
        return Press(button=None if words[0] == "wait" else words[0], frames=frames)

    # ---- values ------------------------------------------------------------------------------------------------

    def _value(self, where: str, name: str, entry: Any) -> Value:
        check = self._check
        check.keys(where, entry, (*_NUMBER_KEYS, "count", "join"))
        if "join" not in entry:
            count = check.integer(f"{where}.count", entry["count"], 1, LAST_ADDRESS + 1) if "count" in entry else 0
            return self._number(where, name, entry, count)
        if len(entry) > 1:
            raise check.error(where, "has join, so that it can have no other key")
        parts: list[Value] = []
        for i, part_name in enumerate(check.entries(f"{where}.join", entry["join"])):
            part = self._named_value(f"{where}.join[{i}]", part_name)
            parts += part.join or (part,)
            if len(parts) > MAX_JOINED:
                raise check.error(f"{where}.join", f"joins more than {MAX_JOINED} values")
        if len(parts) < 2:
            raise check.error(f"{where}.join", "should name two values or more")
        return Value(name, join=tuple(parts))

    def _number(self, where: str, name: str, entry: Mapping[str, Any], count: int = 0, offset: int = 0) -> Value:
        """Return the value that the ``_NUMBER_KEYS`` of an entry describe, ``offset`` bytes after its address."""
        check = self._check
        if "at" not in entry:
            raise check.error(where, "has no address; give it as in `at: 0xC000`")
        order = entry.get("order", "little")
        if order not in ("little", "big"):
            raise check.error(f"{where}.order", f"is {_shorten(order)}, expected little or big")
        size = check.integer(f"{where}.size", entry.get("size", 1), 1, 4)
        transforms = [key for key in _TRANSFORMS if key in entry]
        if len(transforms) > 1:
            raise check.error(where, f"has {' and '.join(transforms)}; only one of them is possible")
        members = entry.get("equals", [])
        members = members if isinstance(members, list) else [members]
        if "equals" in entry and not 1 <= len(members) <= MAX_ENTRIES:
            raise check.error(f"{where}.equals", "should be a number or a list of numbers")
        if count and "unit" in entry:
            raise check.error(where, "has count and unit; only one of them is possible")
        value = Value(
            name=name,
            at=check.integer(f"{where}.at", entry["at"], 0, LAST_ADDRESS) + offset,
            size=size,
            big=order == "big",
            bcd=check.boolean(f"{where}.bcd", entry.get("bcd", False)),
            unit=check.integer(f"{where}.unit", entry.get("unit", 1), 1, LAST_ADDRESS),
            bit=check.integer(f"{where}.bit", entry["bit"], 0, 8 * size - 1) if "bit" in entry else None,
            equals=tuple(check.integer(f"{where}.equals", member, 0, 256**size - 1) for member in members),
            ones=check.boolean(f"{where}.ones", entry.get("ones", False)),
            count=count,
        )
        if value.addresses[-1] > LAST_ADDRESS:
            problem = f"reaches to address 0x{value.addresses[-1]:X}, the last is 0x{LAST_ADDRESS:X}"
            raise check.error(where, problem)
        return value

    def _named_value(self, where: str, name: Any) -> Value:
        """Return a value that was defined before, by its name."""
        if not isinstance(name, str) or name not in self._values:
            guess = did_you_mean(str(name), self._values)
            raise self._check.error(where, f"is {_shorten(name)}{guess}, expected one of the values above")
        return self._values[name]

    def _named_values(self, where: str, entry: Any) -> tuple[Value, ...]:
        names = self._check.entries(where, entry)
        return tuple(self._named_value(f"{where}[{i}]", name) for i, name in enumerate(names))

    # ---- features ----------------------------------------------------------------------------------------------

    def _features(self, entries: list[Any]) -> tuple[Feature, ...]:
        features: list[Feature] = []
        width = 0
        for i, entry in enumerate(entries):
            features.append(self._feature(f"features[{i}]", entry))
            width += features[-1].width
            if width > MAX_WIDTH:
                break
        if not 0 < width <= MAX_WIDTH:
            problem = f"are {width:,} numbers together or more, expected 1 to {MAX_WIDTH:,}"
            raise self._check.error("features", problem)
        names = [feature.name for feature in features]
        duplicates = [name for i, name in enumerate(names) if name in names[:i]]
        if duplicates:
            raise self._check.error("features", f"have {duplicates[0]!r} twice")
        return tuple(features)

    def _feature(self, where: str, entry: Any) -> Feature:
        check = self._check
        shape_keys = ("max", "one_hot", "one_hot_of", "bits")
        check.keys(where, entry, ("name", "value", *_NUMBER_KEYS, "count", "every", *shape_keys), required=("name",))
        name = check.text(f"{where}.name", entry["name"])
        where = f"{where} ({name})"
        shapes = [key for key in shape_keys if key in entry]
        if len(shapes) > 1:
            raise check.error(where, f"has {' and '.join(shapes)}; only one of them is possible")
        if "bits" in entry:
            return Feature(name, self._bit_sources(where, name, entry), scale=1.0)
        sources = self._sources(where, name, entry)
        if "one_hot" in entry:
            size = check.integer(f"{where}.one_hot", entry["one_hot"], 2, 1000)
            return Feature(name, sources, classes=tuple((number,) for number in range(size)))
        if "one_hot_of" in entry:
            return Feature(name, sources, classes=self._classes(f"{where}.one_hot_of", entry["one_hot_of"]))
        scale = check.real(f"{where}.max", entry.get("max", sources[0].limit))
        if scale <= 0:
            raise check.error(f"{where}.max", f"is {scale}, expected more than 0")
        return Feature(name, sources, scale=scale)

    def _sources(self, where: str, name: str, entry: Mapping[str, Any]) -> tuple[Value, ...]:
        """Return the value that a feature names, or the ``count`` numbers that it describes, ``every`` bytes apart."""
        check = self._check
        if "value" in entry:
            number_keys = [key for key in (*_NUMBER_KEYS, "count", "every") if key in entry]
            if number_keys:
                raise check.error(where, f"has value and {number_keys[0]}; only one of them is possible")
            return (self._named_value(f"{where}.value", entry["value"]),)
        count = check.integer(f"{where}.count", entry.get("count", 1), 1, MAX_WIDTH)
        size = check.integer(f"{where}.size", entry.get("size", 1), 1, 4)
        every = check.integer(f"{where}.every", entry.get("every", size), 1, LAST_ADDRESS)
        return tuple(self._number(where, name, entry, offset=every * i) for i in range(count))

    def _bit_sources(self, where: str, name: str, entry: Mapping[str, Any]) -> tuple[Value, ...]:
        """Return one value for each bit of the bytes from an address on, lowest bit first."""
        other_keys = entry.keys() - {"name", "at", "bits"}
        if other_keys:
            raise self._check.error(where, f"has bits, so that it cannot have {sorted(other_keys)[0]}")
        bits = self._check.integer(f"{where}.bits", entry["bits"], 1, MAX_WIDTH)
        return tuple(self._number(where, name, {**entry, "bit": i % 8}, offset=i // 8) for i in range(bits))

    def _classes(self, where: str, entry: Any) -> tuple[tuple[int, ...], ...]:
        """Return the values of each class; an entry that is not a list is a class of one value."""
        check = self._check
        groups = check.entries(where, entry)
        if len(groups) > 256 or not groups:
            raise check.error(where, f"has {len(groups)} classes, expected 1 to 256")
        classes = []
        for i, members in enumerate(groups):
            members = check.entries(f"{where}[{i}]", members if isinstance(members, list) else [members])
            classes.append(tuple(check.integer(f"{where}[{i}]", member, 0, 256**4 - 1) for member in members))
        return tuple(classes)

    # ---- rewards -----------------------------------------------------------------------------------------------

    def _term(self, where: str, name: str, entry: Any) -> Term:
        check = self._check
        check.keys(where, entry, ("weight", *KINDS, "when"), required=("weight",))
        kinds = [kind for kind in KINDS if kind in entry]
        if len(kinds) != 1:
            given = " and ".join(kinds) or "none"
            problem = f"should name the value that it pays for with one of {', '.join(KINDS)}; it has {given}"
            raise check.error(where, problem)
        value = self._named_value(f"{where}.{kinds[0]}", entry[kinds[0]])
        when = entry.get("when", [])
        names = check.entries(f"{where}.when", [when] if isinstance(when, str) else when)
        conditions = tuple(self._named_value(f"{where}.when", condition) for condition in names)
        weight = check.real(f"{where}.weight", entry["weight"])
        return Term(name=name, weight=weight, kind=kinds[0], value=value, when=conditions)


def _shorten(entry: Any) -> str:
    """Return an entry as short text for an error."""
    try:
        return reprlib.repr(entry)
    except ValueError:  # Python refuses to convert very large integers to decimal text
        return "a very large number"
