"""Types of settings that are more than a number or a word, and the forms in which they can be written."""

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

__all__ = ["DEFAULT_LAYERS", "MAX_LAYER_WIDTH", "Cnn", "KeyValues", "NetArch", "Recurrent", "Stage", "validation_line"]

Cnn = Literal["auto", "nature", "small", "impala", "none"]
"""Convolutional networks for images."""
Recurrent = Literal["none", "gru", "lstm"]
"""Kinds of recurrent layers."""
MAX_LAYER_WIDTH = 65_536
"""Most units of a hidden layer."""
_MAX_LAYERS = 64
"""Most hidden layers of the policy or the value network."""
_MAX_WEIGHTS = 2**28
"""Most weights between the hidden layers of the policy or the value network (1 GB)."""
DEFAULT_LAYERS = (64, 64)
"""Sizes of the hidden layers if ``net_arch`` is None and not all observations are images."""

_MAX_NAME_LENGTH = 4096
_INVISIBLE_CATEGORIES = ("Cc", "Cf", "Zl", "Zp")
"""Unicode categories of control, format and line-separator characters."""
_JOINERS = "\u200c\u200d"
"""Format characters that are allowed, because words of some languages and some emoji contain them."""


def check_text(value: Any, printed: bool = False) -> None:
    """Raise a ValueError if text in ``value`` or nested in it is not valid Unicode, or has null characters in a name.

    A name is ``value`` itself and, if it is ``printed``, every text in it. A ``printed`` name may have at most 4,096
    characters and no control characters, with which it could make a terminal show something else.
    """
    visited: set[int] = set()
    pending, names = [value], [value] if isinstance(value, str) else []
    while pending:
        item = pending.pop()
        if isinstance(item, str):
            try:
                item.encode()
            except UnicodeEncodeError:
                raise ValueError(f"{short_repr(item)}: should be text that UTF-8 can hold") from None
            names += [item] if printed else []
        elif isinstance(item, Mapping | list | tuple | set) and id(item) not in visited:
            visited.add(id(item))  # YAML aliases repeat an object, and may nest it in itself
            pending += [*item, *item.values()] if isinstance(item, Mapping) else item
    for name in names:
        if "\0" in name:
            raise ValueError(f"{short_repr(name)}: should have no null character in it")
        if printed and len(name) > _MAX_NAME_LENGTH:
            raise ValueError(f"{short_repr(name)}: should have at most {_MAX_NAME_LENGTH} characters")
        if printed and any(unicodedata.category(c) in _INVISIBLE_CATEGORIES and c not in _JOINERS for c in name):
            raise ValueError(f"{short_repr(name)}: should have no control characters in it")


def _words_to_mapping(given: Any) -> Any:
    """Return ``["key=value", ...]`` as a mapping, with values parsed as YAML; anything but a list is unchanged."""
    if not isinstance(given, list | tuple):
        return given
    pairs: dict[str, Any] = {}
    for word in given:
        key, equals, value = str(word).partition("=")
        if not equals or not key:
            raise ValueError(f"{short_repr(word)} is not of the form key=value")
        if key in pairs:
            raise ValueError(f"{key} is given twice")
        pairs[key] = _parse_yaml_value(value)
    return pairs


def _check_plain_data(given: dict[str, Any]) -> dict[str, Any]:
    """Return the mapping; raise a ValueError if it has a value that a config file cannot represent."""
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


def _parse_yaml_value(text: str) -> Any:
    """Return the value of a YAML text; text that is not valid YAML is returned unchanged."""
    try:
        value = PlainLoader(text).get_single_data()
    except UNREADABLE:
        return text
    if isinstance(value, str) and re.fullmatch(r"[-+]?\d+(\.\d+)?[eE][-+]?\d+", value):
        return float(value)  # YAML 1.1 reads 1e-4 as a string
    return value


KeyValues = Annotated[dict[str, Any], BeforeValidator(_words_to_mapping), AfterValidator(_check_plain_data)]
"""A mapping of plain data, which can also be given as ``key=value`` words."""


class Stage(BaseModel):
    """A stage of a curriculum: an opponent or reset options, and when the next stage begins."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: str = Field(pattern=r"^\w[\w.-]*$")
    """Name of the stage in messages, and of its directory."""
    opponent: str | None = None
    """Opponent of the stage, in the same form as the setting ``opponent``; None if ``options`` are given."""
    options: KeyValues = {}
    """Options that the env is reset with, such as ``{num_bots: 25}`` or ``{level: 3}``, instead of an opponent."""
    timesteps: int | None = Field(default=None, ge=1)
    """Number of steps after which the next stage begins at the latest."""
    win_rate: float | None = Field(default=None, gt=0, le=1)
    """Win rate over the last ``games`` games at which the next stage begins."""
    games: int = Field(default=100, ge=1)
    """Number of games over which ``win_rate`` is measured."""

    @model_validator(mode="after")
    def _check_opponent_or_options(self) -> Stage:
        if (self.opponent is None) == (not self.options):
            raise ValueError(f"stage {self.name}: should have either an opponent or options for the env's reset")
        if self.options and self.name in ("current", "checkpoint"):
            raise ValueError(f"stage {self.name}: this is the name of an opponent; give it another name")
        return self

    @property
    def description(self) -> str:
        """Opponent or options of the stage as text for the console."""
        options = " ".join(f"{name}={value}" for name, value in self.options.items())
        return f"with {options}" if self.opponent is None else f"against {self.opponent}"


def _parse_net_arch(given: Any) -> Any:
    """Return ``[64, 64]``, ``{pi: [64], vf: [64]}`` or ``pi=64,64 vf=32`` as a mapping with the keys pi and vf."""
    if isinstance(given, Mapping):
        return {"pi": given.get("pi", ()), "vf": given.get("vf", ()), **given}
    words = [str(word) for word in given] if isinstance(given, list | tuple) else str(given).split()
    if not any("=" in word for word in words):
        sizes = tuple(size for word in words for size in word.split(","))
        return {"pi": sizes, "vf": sizes}
    networks = dict(word.split("=", 1) for word in words if "=" in word)
    if len(networks) < len(words):
        raise ValueError("give either sizes for both (64 64) or pi=64,64 vf=64,64")
    return {"pi": (), "vf": (), **{name: sizes.split(",") if sizes else () for name, sizes in networks.items()}}


def _check_network_size(given: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Return the sizes of layers; raise a ValueError if there are more layers or weights than can be trained."""
    for name, sizes in given.items():
        weights = sum(a * b for a, b in itertools.pairwise(sizes))
        if len(sizes) > _MAX_LAYERS or weights > _MAX_WEIGHTS:
            raise ValueError(
                f"{name} has {len(sizes):,} layers with {weights:,} weights between them; expected at most "
                f"{_MAX_LAYERS} layers and {_MAX_WEIGHTS:,} weights"
            )
    return given


NetArch = Annotated[
    dict[Literal["pi", "vf"], tuple[Annotated[int, Field(ge=1, le=MAX_LAYER_WIDTH)], ...]],
    BeforeValidator(_parse_net_arch),
    AfterValidator(_check_network_size),
]
"""Sizes of the hidden layers of the policy network (pi) and the value network (vf)."""


def validation_line(detail: Any, values: Mapping[str, Any]) -> str:
    """Return one of pydantic's errors as a line that names the setting and the value that was given for it."""
    message = one_line(detail["msg"].removeprefix("Value error, ").removeprefix("Input "), 500)
    if detail["type"] == "missing":
        return f"{detail['loc'][0]} is missing"
    if not detail["loc"]:
        return str(message)
    name, *keys = (str(key) for key in detail["loc"])
    where = f" ({keys[-1]} of stage {keys[0]})" if name == "stages" and len(keys) > 1 else ""
    return f"{name} {short_repr(values.get(name))}{where}: {message[0].lower()}{message[1:]}"
