"""Kinds of settings that are more than a number or a word, and the ways in which they may be written."""

from __future__ import annotations

import itertools
import json
import re
import unicodedata
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from corral.config.yaml_values import UNREADABLE, PlainLoader
from corral.core.errors import one_line
from corral.core.suggestions import short_repr

__all__ = ["DEFAULT_LAYERS", "WIDEST_LAYER", "Cnn", "KeyValues", "NetArch", "Recurrent", "Stage", "validation_line"]

Cnn = Literal["auto", "nature", "small", "impala", "none"]
"""Networks that pictures are seen with."""
Recurrent = Literal["none", "gru", "lstm"]
"""Kinds of memory."""
WIDEST_LAYER, MOST_LAYERS, MOST_WEIGHTS = 65_536, 64, 2**28
"""Units of a layer, layers of a tower, and weights between them (1 GB)."""
DEFAULT_LAYERS = (64, 64)
"""Hidden layers of each tower where ``net_arch`` is None and the network sees more than a picture."""

_LONGEST_NAME = 4096
_UNSEEN = ("Cc", "Cf", "Zl", "Zp")
"""Categories of characters that do something rather than show something."""
_JOINERS = "\u200c\u200d"
"""Those of them that words of some languages are written with."""


def check_text(value: Any, printed: bool = False) -> None:
    """Refuse text, in a value or anywhere below it, that no file can hold; and null characters, which names cannot.

    What is ``printed`` is a name of a usual length without control characters, which could make a terminal show
    something else.
    """
    seen: set[int] = set()
    left, names = [value], [value] if isinstance(value, str) else []
    while left:
        item = left.pop()
        if isinstance(item, str):
            try:
                item.encode()
            except UnicodeEncodeError:
                raise ValueError(f"{short_repr(item)}: should be text that UTF-8 can hold") from None
            names += [item] if printed else []
        elif isinstance(item, Mapping | list | tuple | set) and id(item) not in seen:
            seen.add(id(item))  # aliases repeat what they stand for, and may contain themselves
            left += [*item, *item.values()] if isinstance(item, Mapping) else item
    for name in names:
        if "\0" in name:
            raise ValueError(f"{short_repr(name)}: should have no null character in it")
        if printed and len(name) > _LONGEST_NAME:
            raise ValueError(f"{short_repr(name)}: should have at most {_LONGEST_NAME} characters")
        if printed and any(unicodedata.category(c) in _UNSEEN and c not in _JOINERS for c in name):
            raise ValueError(f"{short_repr(name)}: should have no control characters in it")


def _words_to_mapping(given: Any) -> Any:
    """``["key=value", ...]`` as a mapping; values are read as YAML, so numbers and booleans are what they look like."""
    if not isinstance(given, list | tuple):
        return given
    pairs: dict[str, Any] = {}
    for word in given:
        key, equals, value = str(word).partition("=")
        if not equals or not key:
            raise ValueError(f"{short_repr(word)} is not of the form key=value")
        if key in pairs:
            raise ValueError(f"{key} is given twice")
        pairs[key] = _yaml_scalar(value)
    return pairs


def _plain_data(given: dict[str, Any]) -> dict[str, Any]:
    """Refuse what a config file could not hold."""
    for key, value in given.items():
        try:
            if json.loads(json.dumps(value, allow_nan=False)) == (list(value) if isinstance(value, tuple) else value):
                continue
        except (TypeError, ValueError, RecursionError):
            pass
        raise ValueError(
            f"{key} is {type(value).__name__} {short_repr(value)}; a config holds numbers, text and lists of them. "
            "Bind it in the env itself: lambda: make_env(...)"
        )
    return given


def _yaml_scalar(text: str) -> Any:
    try:
        value = PlainLoader(text).get_single_data()
    except UNREADABLE:
        return text
    if isinstance(value, str) and re.fullmatch(r"[-+]?\d+(\.\d+)?[eE][-+]?\d+", value):
        return float(value)  # YAML 1.1 reads 1e-4 as a string
    return value


KeyValues = Annotated[dict[str, Any], BeforeValidator(_words_to_mapping), AfterValidator(_plain_data)]


class Stage(BaseModel):
    """A part of a run: what is played, how long at most, and what has to be reached before the next one begins."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: str = Field(pattern=r"^\w[\w.-]*$")
    opponent: str | None = None
    """As the setting ``opponent``."""
    options: KeyValues = {}
    """Or what the env is reset with: ``{num_bots: 25}``, ``{level: 3}``, whatever it takes."""
    timesteps: int | None = Field(default=None, ge=1)
    """The next stage begins after so many steps, whatever was reached."""
    win_rate: float | None = Field(default=None, gt=0, le=1)
    """The next stage begins once the win rate over the last ``games`` games is this high."""
    games: int = Field(default=100, ge=1)

    @model_validator(mode="after")
    def _one_of_two(self) -> Stage:
        if (self.opponent is None) == (not self.options):
            raise ValueError(f"stage {self.name}: should have either an opponent or options for the env's reset")
        if self.options and self.name in ("current", "checkpoint"):
            raise ValueError(f"stage {self.name}: that is what past selves are called; give it another name")
        return self

    @property
    def told(self) -> str:
        """What is played, for people."""
        given = " ".join(f"{name}={value}" for name, value in self.options.items())
        return f"with {given}" if self.opponent is None else f"against {self.opponent}"


def _net_arch(given: Any) -> Any:
    """``[64, 64]``, ``{pi: [64], vf: [64]}`` or the words ``pi=64,64 vf=32`` as a mapping with pi and vf."""
    if isinstance(given, Mapping):
        return {"pi": given.get("pi", ()), "vf": given.get("vf", ()), **given}
    words = [str(word) for word in given] if isinstance(given, list | tuple) else str(given).split()
    if not any("=" in word for word in words):
        words = [size for word in words for size in word.split(",")]
    else:
        parts = dict(word.split("=", 1) for word in words if "=" in word)
        if len(parts) < len(words):
            raise ValueError("give either sizes for both (64 64) or pi=64,64 vf=64,64")
        return {"pi": (), "vf": (), **{name: sizes.split(",") if sizes else () for name, sizes in parts.items()}}
    return {"pi": tuple(words), "vf": tuple(words)}


def _fits_in_memory(given: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Refuse layers that no machine could train."""
    for name, sizes in given.items():
        weights = sum(a * b for a, b in itertools.pairwise(sizes))
        if len(sizes) > MOST_LAYERS or weights > MOST_WEIGHTS:
            raise ValueError(
                f"{name} has {len(sizes):,} layers with {weights:,} weights between them; at most {MOST_LAYERS} layers "
                f"and {MOST_WEIGHTS:,} weights"
            )
    return given


NetArch = Annotated[
    dict[Literal["pi", "vf"], tuple[Annotated[int, Field(ge=1, le=WIDEST_LAYER)], ...]],
    BeforeValidator(_net_arch),
    AfterValidator(_fits_in_memory),
]


def validation_line(detail: Any, values: Mapping[str, Any]) -> str:
    """One of pydantic's complaints about ``values``, with the setting and what was given for it."""
    message = one_line(detail["msg"].removeprefix("Value error, ").removeprefix("Input "), 500)
    if detail["type"] == "missing":
        return f"{detail['loc'][0]} is missing"
    if not detail["loc"]:
        return str(message)
    name, *inside = (str(part) for part in detail["loc"])
    where = f" ({inside[-1]} of stage {inside[0]})" if name == "stages" and len(inside) > 1 else ""
    return f"{name} {short_repr(values.get(name))}{where}: {message[0].lower()}{message[1:]}"
