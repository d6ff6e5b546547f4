"""What a search may vary: words such as ``learning_rate=log:1e-5:1e-3`` as ranges and choices, checked at once.

A value is right if the config takes it, so types and limits are written once, in ``TrainConfig``.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from corral.config.schema import TrainConfig, parse_config
from corral.config.values import DEFAULT_LAYERS
from corral.core.errors import UsageError
from corral.core.suggestions import did_you_mean

__all__ = [
    "Choices",
    "Dimension",
    "Range",
    "Space",
    "as_setting",
    "default_words",
    "first_values",
    "parse_space",
    "some_settings",
]

FORMS = "a range a:b or log:a:b, or values a,b,c"
_LOG, _SIZES = "log:", "net_arch"
_FIT = ("n_envs", "n_steps", "batch_size")
"""A rollout is the product of the first two and a multiple of the third, so their values are listed."""
_ANOTHER_OPPONENT = re.compile(r",(?!\s*(?!mixed:)[^,=]+=)")
"""The commas between opponents; those within a mix stand before a name and its weight."""
_SAME_FOR_ALL = ("env", "env_kwargs", "timesteps", "num_episodes", "duration", "seed", "policy", "hooks", "output_dir")
_DEFAULT = {
    "learning_rate": "log:3e-5:3e-3",
    "n_steps": "128,512,2048",
    "batch_size": "64,256",
    "n_epochs": "4,10,20",
    "gamma": "0.95,0.98,0.99,0.995,0.999",
    "gae_lambda": "0.8:1",
    "ent_coef": "0:0.05",
    "net_arch": "64x64,256x256",
}
"""Where good settings of PPO are found for most envs."""
_LEAST_ITERATIONS = 5
"""Rollouts that a trial should have, for its settings to matter."""


@dataclass(frozen=True, slots=True)
class Range:
    """Any number from ``low`` to ``high``, both included."""

    low: float
    high: float
    log: bool = False
    """Whether factors count rather than differences."""
    whole: bool = False

    def has(self, value: Any) -> bool:
        """Whether ``value`` lies within."""
        return isinstance(value, int | float) and self.low <= value <= self.high


@dataclass(frozen=True, slots=True)
class Choices:
    """One of these; sizes of layers are text, as in ``64x64``."""

    values: tuple[float | int | bool | str | None, ...]

    def has(self, value: Any) -> bool:
        """Whether ``value`` is one of them."""
        return value in self.values


Dimension = Range | Choices
Space = dict[str, Dimension]


def parse_space(words: Mapping[str, str], base: Mapping[str, Any]) -> Space:
    """The ranges and choices in ``words``, for trials whose other settings are ``base``.

    Every value that could be tried is tried on the config first; a UsageError says which one cannot be.
    """
    space = {name: _parse(name, str(text).strip(), base) for name, text in words.items() if name in _FIT}
    lists = {name: d.values for name, d in space.items() if isinstance(d, Choices)}
    for together in itertools.product(*lists.values()):
        values = dict(zip(lists, together, strict=True))
        try:
            parse_config({**base, **values})
        except UsageError as error:
            tried = " ".join(f"{name}={value}" for name, value in values.items())
            raise UsageError(f"search: {tried} cannot be tried together: {error}") from None
    base = {**base, **some_settings(space)}
    others = {name: _parse(name, str(text).strip(), base) for name, text in words.items() if name not in _FIT}
    return {name: space.get(name) or others[name] for name in words}


def as_setting(name: str, value: Any) -> Any:
    """A value of the space as the config wants it."""
    return value.split("x") if name == _SIZES and isinstance(value, str) else value


def some_settings(space: Space) -> dict[str, Any]:
    """One of the choices for each setting that has some: with these, settings that need them are whole."""
    firsts = {name: d.values[0] for name, d in space.items() if isinstance(d, Choices)}
    return {name: as_setting(name, value) for name, value in firsts.items()}


def first_values(space: Space, base: Mapping[str, Any]) -> dict[str, Any]:
    """What ``base`` itself has for what is searched, where the space has it too: a good place to begin."""
    try:
        config = parse_config(base)
    except UsageError:  # what is searched makes it whole
        return {}
    found = {name: getattr(config, name) for name in space}
    if _SIZES in found:
        sizes = found[_SIZES] or {"pi": DEFAULT_LAYERS, "vf": DEFAULT_LAYERS}
        found[_SIZES] = "x".join(map(str, sizes["pi"])) if sizes["pi"] == sizes["vf"] else None
    return {name: value for name, value in found.items() if space[name].has(value)}


def default_words(base: Mapping[str, Any], given: Container[str]) -> dict[str, str]:
    """A space for any env, without what was ``given``, and only with values that fit ``base``."""
    config = parse_config(base)
    words = {name: text for name, text in _DEFAULT.items() if name not in given}
    if config.policy is not None:
        words.pop(_SIZES, None)
    for name in ("n_steps", "batch_size"):
        if name in words:
            lists = {other: words[other].split(",") for other in _FIT if other in words}
            fitting = [value for value in words[name].split(",") if _fits({**lists, name: [value]}, base)]
            words[name] = ",".join(fitting)
            if len(fitting) < 2:
                del words[name]
    if not words:
        raise UsageError(f"every setting that is searched by default is set; say what to search, as {FORMS}")
    return words


def _fits(lists: Mapping[str, Sequence[str]], base: Mapping[str, Any]) -> bool:
    """Whether all of these can be combined, with enough rollouts in the budget."""
    for together in itertools.product(*lists.values()):
        try:
            config = parse_config({**base, **dict(zip(lists, together, strict=True))})
        except UsageError:
            return False
        if "n_steps" in lists and config.timesteps and config.timesteps < _LEAST_ITERATIONS * config.rollout_size:
            return False
    return True


def _parse(name: str, text: str, base: Mapping[str, Any]) -> Dimension:
    _check_name(name)
    given = f"search {name}={text}"
    if name != "opponent" and ":" in text:
        return _range(name, text, given, base)
    listed = _ANOTHER_OPPONENT.split(text) if name == "opponent" else text.split(",")
    values = tuple(_value(name, value, given, base) for value in listed)
    if len(set(values)) < max(2, len(values)):
        raise UsageError(f"{given}: should be {FORMS}, with at least two different ones; one is a flag's business")
    return Choices(values)


def _check_name(name: str) -> None:
    if name in _SAME_FOR_ALL:
        raise UsageError(f"search: {name} is the same for every trial; give it as a flag")
    known = [field for field in TrainConfig.model_fields if _changes_learning(field)]
    if name in TrainConfig.model_fields and name not in known:
        raise UsageError(f"search: {name} does not change what is learned, so there is nothing to find")
    if name not in known:
        raise UsageError(f"search: unknown setting {name!r}{did_you_mean(name, known)}")


def _changes_learning(name: str) -> bool:
    extra = TrainConfig.model_fields[name].json_schema_extra
    group = extra.get("group") if isinstance(extra, dict) else None
    return name != "stages" and (group in ("ppo", "policy", "opponents", "expert") or name in ("n_envs", "overlap"))


def _range(name: str, text: str, given: str, base: Mapping[str, Any]) -> Range:
    annotation = TrainConfig.model_fields[name].annotation
    kinds = {annotation, *get_args(annotation)}
    if not kinds & {int, float}:
        raise UsageError(f"{given}: a range is for numbers; list the values: {name}=a,b")
    if name in _FIT:
        raise UsageError(f"{given}: {', '.join(_FIT)} must fit each other, so list the values: {name}=128,256")
    ends = text.removeprefix(_LOG).split(":")
    if len(ends) != 2:
        raise UsageError(f"{given}: should be {FORMS}")
    low, high = (_value(name, end, given, base) for end in ends)
    if low is None or high is None or not low < high:
        raise UsageError(f"{given}: the range should begin below its end")
    log = text.startswith(_LOG)
    if log and low <= 0:
        raise UsageError(f"{given}: a logarithmic range should begin above 0")
    return Range(low, high, log, whole=int in kinds)


def _value(name: str, text: str, given: str, base: Mapping[str, Any]) -> Any:
    """One value as the config reads it; sizes of layers stay text, because they name a choice."""
    text = text.strip()
    value = None if text == "none" else as_setting(name, text)
    if name in _FIT:  # whether they fit each other is looked at for all of them together
        base = {"env": base["env"], **{other: 1 for other in _FIT if other != name}}
    try:
        config = parse_config({**base, name: value})
    except UsageError as error:
        raise UsageError(f"{given}: {error}") from None
    return text if name == _SIZES else getattr(config, name)
