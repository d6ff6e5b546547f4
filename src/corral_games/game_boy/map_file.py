"""Reads the YAML file of a memory map: data, never code. Every mistake is named with the file and the key."""

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
from corral_games.game_boy.emulator import BUTTONS, read_file
from corral_games.game_boy.memory_map import KINDS, LAST, Feature, MemoryMap, Press, Start, Term, Value

__all__ = ["read_map"]

LARGEST_FILE, LARGEST_STATE, MOST, WIDEST = 1 << 20, 1 << 22, 2000, 100_000
"""Bytes of a map and of a state, entries of one of its lists, numbers that features may have together."""
MOST_JOINED, LARGEST = 8, 1e30
"""Values that may be joined to one, the largest weight or scale."""
PRESS_FRAMES, MOST_FRAMES = 4, 36_000
"""How long a button is held if nothing is said; the longest anything may take (ten minutes)."""
_NUMBER = ("at", "size", "order", "bcd", "unit", "bit", "equals", "ones")


def read_map(path: str | os.PathLike[str]) -> MemoryMap:
    """The memory map in a file; a UsageError that names the mistake if there is one."""
    name = str(path)
    if not isinstance(path, str | os.PathLike):
        raise UsageError(f"memory map {path!r:.80} should be the path of a file")
    try:
        read_file(path, LARGEST_FILE)
        data = read_mapping(Path(path).resolve(), "memory map", untrusted=True)
    except UsageError:
        raise
    except (OSError, RecursionError, ValueError) as error:
        raise UsageError(f"cannot read memory map {name!r}: {getattr(error, 'strerror', None) or error}") from None
    return _Reader(name).whole(data)


class _Reader:
    """Goes through a file, and knows where it is."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._values: dict[str, Value] = {}

    def whole(self, data: Mapping[str, Any]) -> MemoryMap:
        keys = ("game", "title", "start", "values", "features", "rewards", "ends", "shown")
        self._keys("", data, keys, needed=("title", "features"))
        title = self._text("title", data["title"]) if data["title"] != "" else ""
        for name, given in self._mapping("values", data.get("values")).items():
            self._values[name] = self._value(f"values.{name}", name, given)
        parts = (
            self._start({} if data.get("start") is None else data["start"]),
            self._features(self._list("features", data["features"])),
            tuple(
                self._term(f"rewards.{name}", name, given)
                for name, given in self._mapping("rewards", data.get("rewards")).items()
            ),
            tuple(self._named(f"ends[{i}]", word) for i, word in enumerate(self._list("ends", data.get("ends")))),
            tuple(self._named(f"shown[{i}]", word) for i, word in enumerate(self._list("shown", data.get("shown")))),
        )
        game = self._text("game", data.get("game", title or "a game"))
        return MemoryMap(self._path, hashlib.sha256(repr((title, parts)).encode()).hexdigest(), game, title, *parts)

    # ---- the parts ---------------------------------------------------------------------------------------------

    def _start(self, given: Any) -> Start:
        self._keys("start", given, ("buttons", "state", "seed", "idle"))
        presses = [
            self._press(f"start.buttons[{i}]", w)
            for i, w in enumerate(self._list("start.buttons", given.get("buttons")))
        ]
        if sum(press.frames for press in presses) > MOST_FRAMES:
            raise self._wrong("start.buttons", f"take more than {MOST_FRAMES:,} frames together; save a state instead")
        state = None
        if "state" in given:
            file = Path(self._path).parent / self._text("start.state", given["state"])
            try:
                state = read_file(file, LARGEST_STATE)
            except (OSError, ValueError) as error:
                why = getattr(error, "strerror", None) or error
                raise self._wrong("start.state", f"cannot be read from {str(file)!r}: {why}") from None
        seed = self._whole("start.seed", given["seed"], 0x8000, LAST - 1) if "seed" in given else None
        return Start(tuple(presses), state, seed, self._whole("start.idle", given.get("idle", 0), 0, MOST_FRAMES))

    def _press(self, where: str, given: Any) -> Press:
        words = self._text(where, given).lower().split()
        known = ("wait", *BUTTONS)
        if not words or len(words) > 2 or words[0] not in known:
            guess = did_you_mean(words[0], known) if words else ""
            raise self._wrong(
                where, f"is {_short(given)}{guess}, expected one of {', '.join(known)}, and frames, as in `wait 30`"
            )
        try:
            frames = int(words[1]) if len(words) == 2 else PRESS_FRAMES
        except ValueError:
            frames = 0
        if not 1 <= frames <= MOST_FRAMES:
            raise self._wrong(where, f"is {_short(given)}, expected 1 to {MOST_FRAMES:,} frames after {words[0]!r}")
        return Press(None if words[0] == "wait" else words[0], frames)

    def _value(self, where: str, name: str, given: Any) -> Value:
        self._keys(where, given, (*_NUMBER, "count", "join"))
        if "join" not in given:
            count = self._whole(f"{where}.count", given["count"], 1, LAST + 1) if "count" in given else 0
            return self._number(where, name, given, count)
        if len(given) > 1:
            raise self._wrong(where, "has join, so that it can have nothing else")
        parts: list[Value] = []
        for i, word in enumerate(self._list(f"{where}.join", given["join"])):
            part = self._named(f"{where}.join[{i}]", word)
            parts += part.join or (part,)
            if len(parts) > MOST_JOINED:
                raise self._wrong(f"{where}.join", f"makes one of more than {MOST_JOINED} values")
        if len(parts) < 2:
            raise self._wrong(f"{where}.join", "should name two values or more")
        return Value(name, join=tuple(parts))

    def _number(self, where: str, name: str, given: Mapping[str, Any], count: int = 0, offset: int = 0) -> Value:
        """What the keys that all numbers in memory have say."""
        if "at" not in given:
            raise self._wrong(where, "has no address; say `at: 0xC000` or wherever it is")
        order = given.get("order", "little")
        if order not in ("little", "big"):
            raise self._wrong(f"{where}.order", f"is {_short(order)}, expected little or big")
        size = self._whole(f"{where}.size", given.get("size", 1), 1, 4)
        tests = [key for key in ("unit", "bit", "equals", "ones") if key in given]
        if len(tests) > 1:
            raise self._wrong(where, f"has {' and '.join(tests)}; one of them")
        equals = given.get("equals", [])
        equals = equals if isinstance(equals, list) else [equals]
        if "equals" in given and not 1 <= len(equals) <= MOST:
            raise self._wrong(f"{where}.equals", "should be a number, or a list of some")
        if count and "unit" in given:
            raise self._wrong(where, "has count and unit; one of them")
        value = Value(
            name,
            self._whole(f"{where}.at", given["at"], 0, LAST) + offset,
            size,
            order == "big",
            self._flag(f"{where}.bcd", given.get("bcd", False)),
            self._whole(f"{where}.unit", given.get("unit", 1), 1, LAST),
            self._whole(f"{where}.bit", given["bit"], 0, 8 * size - 1) if "bit" in given else None,
            tuple(self._whole(f"{where}.equals", number, 0, 256**size - 1) for number in equals),
            self._flag(f"{where}.ones", given.get("ones", False)),
            count,
        )
        if value.addresses[-1] > LAST:
            raise self._wrong(where, f"reaches to address 0x{value.addresses[-1]:X}, the last is 0x{LAST:X}")
        return value

    def _features(self, given: list[Any]) -> tuple[Feature, ...]:
        found: list[Feature] = []
        width = 0
        for i, one in enumerate(given):
            found.append(self._feature(f"features[{i}]", one))
            width += found[-1].width
            if width > WIDEST:
                break
        if not 0 < width <= WIDEST:
            raise self._wrong("features", f"are {width:,} numbers together or more, expected 1 to {WIDEST:,}")
        self._distinct("features", [feature.name for feature in found])
        return tuple(found)

    def _feature(self, where: str, given: Any) -> Feature:
        shapes = ("max", "one_hot", "one_hot_of", "bits")
        self._keys(where, given, ("name", "value", *_NUMBER, "count", "every", *shapes), needed=("name",))
        name = self._text(f"{where}.name", given["name"])
        where = f"{where} ({name})"
        shape = [key for key in shapes if key in given]
        if len(shape) > 1:
            raise self._wrong(where, f"has {' and '.join(shape)}; one of them")
        if "bits" in given:
            return Feature(name, self._bits(where, name, given), 1.0)
        sources = self._sources(where, name, given)
        if "one_hot" in given:
            hot = self._whole(f"{where}.one_hot", given["one_hot"], 2, 1000)
            return Feature(name, sources, classes=tuple((number,) for number in range(hot)))
        if "one_hot_of" in given:
            return Feature(name, sources, classes=self._classes(f"{where}.one_hot_of", given["one_hot_of"]))
        scale = self._real(f"{where}.max", given.get("max", sources[0].limit))
        if scale <= 0:
            raise self._wrong(f"{where}.max", f"is {scale}, expected more than 0")
        return Feature(name, sources, scale)

    def _sources(self, where: str, name: str, given: Mapping[str, Any]) -> tuple[Value, ...]:
        if "value" in given:
            other = [key for key in (*_NUMBER, "count", "every") if key in given]
            if other:
                raise self._wrong(where, f"has value and {other[0]}; one of them")
            return (self._named(f"{where}.value", given["value"]),)
        count = self._whole(f"{where}.count", given.get("count", 1), 1, WIDEST)
        size = self._whole(f"{where}.size", given.get("size", 1), 1, 4)
        every = self._whole(f"{where}.every", given.get("every", size), 1, LAST)
        return tuple(self._number(where, name, given, offset=every * i) for i in range(count))

    def _bits(self, where: str, name: str, given: Mapping[str, Any]) -> tuple[Value, ...]:
        other = given.keys() - {"name", "at", "bits"}
        if other:
            raise self._wrong(where, f"has bits, so that it cannot have {sorted(other)[0]}")
        bits = self._whole(f"{where}.bits", given["bits"], 1, WIDEST)
        return tuple(self._number(where, name, {**given, "bit": i % 8}, offset=i // 8) for i in range(bits))

    def _classes(self, where: str, given: Any) -> tuple[tuple[int, ...], ...]:
        classes = self._list(where, given)
        if len(classes) > 256 or not classes:
            raise self._wrong(where, f"has {len(classes)} classes, expected 1 to 256")
        found = []
        for i, members in enumerate(classes):
            members = self._list(f"{where}[{i}]", members if isinstance(members, list) else [members])
            found.append(tuple(self._whole(f"{where}[{i}]", member, 0, 256**4 - 1) for member in members))
        return tuple(found)

    def _term(self, where: str, name: str, given: Any) -> Term:
        self._keys(where, given, ("weight", *KINDS, "when"), needed=("weight",))
        kinds = [kind for kind in KINDS if kind in given]
        if len(kinds) != 1:
            has = " and ".join(kinds) or "none"
            raise self._wrong(
                where, f"should say for which value it pays, with one of {', '.join(KINDS)}; it has {has}"
            )
        value = self._named(f"{where}.{kinds[0]}", given[kinds[0]])
        words = given.get("when", [])
        words = self._list(f"{where}.when", [words] if isinstance(words, str) else words)
        when = tuple(self._named(f"{where}.when", word) for word in words)
        return Term(name, self._real(f"{where}.weight", given["weight"]), kinds[0], value, when)

    # ---- their grammar -----------------------------------------------------------------------------------------

    def _wrong(self, where: str, what: str) -> UsageError:
        return UsageError(f"memory map {self._path!r}: {where}{' ' if where else ''}{what}")

    def _keys(self, where: str, given: Any, known: Collection[str], needed: Collection[str] = ()) -> None:
        if not isinstance(given, dict):
            raise self._wrong(where, f"is {_short(given)}, expected `key: value` pairs")
        for key in given:
            if key not in known:
                guess = did_you_mean(key, known) if isinstance(key, str) else ""
                raise self._wrong(where, f"has an unknown key {_short(key)}{guess}; known: {', '.join(known)}")
        for key in needed:
            if key not in given:
                raise self._wrong(where, f"has no {key!r}; it is needed")

    def _mapping(self, where: str, given: Any) -> dict[str, Any]:
        given = {} if given is None else given
        if not isinstance(given, dict) or len(given) > MOST or not all(isinstance(key, str) for key in given):
            raise self._wrong(where, f"should be up to {MOST:,} names with what they mean, not {_short(given)}")
        return given

    def _list(self, where: str, given: Any) -> list[Any]:
        given = [] if given is None else given
        if not isinstance(given, list) or len(given) > MOST:
            raise self._wrong(where, f"should be a list of up to {MOST:,}, not {_short(given)}")
        return given

    def _named(self, where: str, given: Any) -> Value:
        if not isinstance(given, str) or given not in self._values:
            guess = did_you_mean(str(given), self._values)
            raise self._wrong(where, f"is {_short(given)}{guess}, expected one of the values above")
        return self._values[given]

    def _distinct(self, where: str, names: list[str]) -> None:
        twice = [name for i, name in enumerate(names) if name in names[:i]]
        if twice:
            raise self._wrong(where, f"have {twice[0]!r} twice")

    def _text(self, where: str, given: Any) -> str:
        if not isinstance(given, str) or not given.strip() or len(given) > 200:
            raise self._wrong(where, f"is {_short(given)}, expected a word or some")
        return given.strip()

    def _flag(self, where: str, given: Any) -> bool:
        if not isinstance(given, bool):
            raise self._wrong(where, f"is {_short(given)}, expected true or false")
        return given

    def _whole(self, where: str, given: Any, least: int, most: int) -> int:
        if not isinstance(given, int) or isinstance(given, bool) or not least <= given <= most:
            span = f"0x{least:X} to 0x{most:X}" if most >= 0x8000 else f"{least:,} to {most:,}"
            raise self._wrong(where, f"is {_short(given)}, expected a whole number from {span}")
        return given

    def _real(self, where: str, given: Any) -> float:
        if not isinstance(given, int | float) or isinstance(given, bool) or not abs(given) <= LARGEST:
            raise self._wrong(where, f"is {_short(given)}, expected a number")
        return float(given)


def _short(given: Any) -> str:
    try:
        return reprlib.repr(given)
    except ValueError:  # Python does not write very long numbers
        return "a very large number"
