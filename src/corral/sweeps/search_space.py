"""The search space: texts such as ``log:1e-5:1e-3`` for ``learning_rate`` as ranges and choices, checked in advance.

A value is valid if ``TrainConfig`` accepts it, so that types and limits are defined only there.
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
    "default_search",
    "first_choices",
    "initial_values",
    "parse_space",
]

FORMS = "a range a:b or log:a:b, or values a,b,c"
_LOG, _NET_ARCH = "log:", "net_arch"
_ROLLOUT_SIZES = ("n_envs", "n_steps", "batch_size")
"""Settings that must fit each other: ``n_envs * n_steps`` is a multiple of ``batch_size``. So they have no ranges."""
_OPPONENT_SEPARATOR = re.compile(r",(?!\s*(?!mixed:)[^,=]+=)")
"""A comma between two opponents; a comma within a mix is followed by a name and its weight."""
_SAME_FOR_ALL = ("env", "env_kwargs", "timesteps", "num_episodes", "duration", "seed", "policy", "hooks", "output_dir")
_DEFAULT_SEARCH = {
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
_MIN_ITERATIONS = 5
"""Rollouts that the budget of a trial should allow, so that its settings have an effect."""


@dataclass(frozen=True, slots=True)
class Range:
    """All numbers from ``low`` to ``high``, both included."""

    low: float
    high: float
    log: bool = False
    """Whether values are sampled on a logarithmic scale."""
    is_integer: bool = False
    """Whether values are integers."""

    def contains(self, value: Any) -> bool:
        """Return whether ``value`` is in the range."""
        return isinstance(value, int | float) and self.low <= value <= self.high


@dataclass(frozen=True, slots=True)
class Choices:
    """A list of values; those of ``net_arch`` are texts such as ``64x64``."""

    values: tuple[float | int | bool | str | None, ...]

    def contains(self, value: Any) -> bool:
        """Return whether ``value`` is one of the choices."""
        return value in self.values


Dimension = Range | Choices
Space = dict[str, Dimension]


def parse_space(search: Mapping[str, str], base: Mapping[str, Any]) -> Space:
    """Return the ranges and choices that the texts in ``search`` stand for, by setting.

    Each value is checked together with ``base``, the settings that all trials share; raise a UsageError that names the
    first value that is not valid.
    """
    sizes = {name: _parse(name, str(text).strip(), base) for name, text in search.items() if name in _ROLLOUT_SIZES}
    size_choices = {name: dimension.values for name, dimension in sizes.items() if isinstance(dimension, Choices)}
    for combination in itertools.product(*size_choices.values()):
        values = dict(zip(size_choices, combination, strict=True))
        try:
            parse_config({**base, **values})
        except UsageError as error:
            tried = " ".join(f"{name}={value}" for name, value in values.items())
            raise UsageError(f"search: {tried} cannot be tried together: {error}") from None
    base = {**base, **first_choices(sizes)}
    others = {
        name: _parse(name, str(text).strip(), base) for name, text in search.items() if name not in _ROLLOUT_SIZES
    }
    return {name: sizes.get(name) or others[name] for name in search}


def as_setting(name: str, value: Any) -> Any:
    """Return a value of the search space as ``TrainConfig`` takes it."""
    return value.split("x") if name == _NET_ARCH and isinstance(value, str) else value


def first_choices(space: Space) -> dict[str, Any]:
    """Return the first choice for each setting that has choices; other settings may be valid only with one of them."""
    values = {name: dimension.values[0] for name, dimension in space.items() if isinstance(dimension, Choices)}
    return {name: as_setting(name, value) for name, value in values.items()}


def initial_values(space: Space, base: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that the searched settings have in ``base``, where the space contains them.

    They are the settings of the first trial.
    """
    try:
        config = parse_config(base)
    except UsageError:  # it is valid only with some of the searched settings
        return {}
    values = {name: getattr(config, name) for name in space}
    if _NET_ARCH in values:
        layers = values[_NET_ARCH] or {"pi": DEFAULT_LAYERS, "vf": DEFAULT_LAYERS}
        values[_NET_ARCH] = "x".join(map(str, layers["pi"])) if layers["pi"] == layers["vf"] else None
    return {name: value for name, value in values.items() if space[name].contains(value)}


def default_search(base: Mapping[str, Any], given: Container[str]) -> dict[str, str]:
    """Return the default search, without settings that are ``given`` and without values that do not fit ``base``."""
    config = parse_config(base)
    search = {name: text for name, text in _DEFAULT_SEARCH.items() if name not in given}
    if config.policy is not None:
        search.pop(_NET_ARCH, None)
    for name in ("n_steps", "batch_size"):
        if name in search:
            sizes = {size: search[size].split(",") for size in _ROLLOUT_SIZES if size in search}
            fitting = [value for value in search[name].split(",") if _all_fit({**sizes, name: [value]}, base)]
            search[name] = ",".join(fitting)
            if len(fitting) < 2:
                del search[name]
    if not search:
        raise UsageError(f"every setting that is searched by default is set; say what to search, as {FORMS}")
    return search


def _all_fit(sizes: Mapping[str, Sequence[str]], base: Mapping[str, Any]) -> bool:
    """Return whether every combination of these sizes is valid and leaves enough rollouts in the budget."""
    for combination in itertools.product(*sizes.values()):
        try:
            config = parse_config({**base, **dict(zip(sizes, combination, strict=True))})
        except UsageError:
            return False
        if "n_steps" in sizes and config.timesteps and config.timesteps < _MIN_ITERATIONS * config.rollout_size:
            return False
    return True


def _parse(name: str, text: str, base: Mapping[str, Any]) -> Dimension:
    """Return the range or the choices that ``text`` stands for; raise a UsageError if it is not valid."""
    _check_name(name)
    source = f"search {name}={text}"
    if name != "opponent" and ":" in text:
        return _parse_range(name, text, source, base)
    texts = _OPPONENT_SEPARATOR.split(text) if name == "opponent" else text.split(",")
    values = tuple(_parse_value(name, value, source, base) for value in texts)
    if len(set(values)) < max(2, len(values)):
        raise UsageError(
            f"{source}: should be {FORMS}, with at least two different values; give a single one as a flag"
        )
    return Choices(values)


def _check_name(name: str) -> None:
    """Raise a UsageError for a setting that cannot be searched."""
    if name in _SAME_FOR_ALL:
        raise UsageError(f"search: {name} is the same for every trial; give it as a flag")
    searchable = [field for field in TrainConfig.model_fields if _changes_learning(field)]
    if name in TrainConfig.model_fields and name not in searchable:
        raise UsageError(f"search: {name} does not change what is learned, so it cannot be searched")
    if name not in searchable:
        raise UsageError(f"search: unknown setting {name!r}{did_you_mean(name, searchable)}")


def _changes_learning(name: str) -> bool:
    extra = TrainConfig.model_fields[name].json_schema_extra
    group = extra.get("group") if isinstance(extra, dict) else None
    return name != "stages" and (group in ("ppo", "policy", "opponents", "expert") or name in ("n_envs", "overlap"))


def _parse_range(name: str, text: str, source: str, base: Mapping[str, Any]) -> Range:
    annotation = TrainConfig.model_fields[name].annotation
    types = {annotation, *get_args(annotation)}
    if not types & {int, float}:
        raise UsageError(f"{source}: a range is for numbers; list the values: {name}=a,b")
    if name in _ROLLOUT_SIZES:
        sizes = ", ".join(_ROLLOUT_SIZES)
        raise UsageError(f"{source}: {sizes} must fit each other, so list the values: {name}=128,256")
    ends = text.removeprefix(_LOG).split(":")
    if len(ends) != 2:
        raise UsageError(f"{source}: should be {FORMS}")
    low, high = (_parse_value(name, end, source, base) for end in ends)
    if low is None or high is None or not low < high:
        raise UsageError(f"{source}: the range should begin below its end")
    log = text.startswith(_LOG)
    if log and low <= 0:
        raise UsageError(f"{source}: a logarithmic range should begin above 0")
    return Range(low, high, log, is_integer=int in types)


def _parse_value(name: str, text: str, source: str, base: Mapping[str, Any]) -> Any:
    """Return one value as ``TrainConfig`` reads it; those of ``net_arch`` stay text, because Optuna has no lists."""
    text = text.strip()
    value = None if text == "none" else as_setting(name, text)
    if name in _ROLLOUT_SIZES:  # parse_space checks all combinations of them
        base = {"env": base["env"], **{size: 1 for size in _ROLLOUT_SIZES if size != name}}
    try:
        config = parse_config({**base, name: value})
    except UsageError as error:
        raise UsageError(f"{source}: {error}") from None
    return text if name == _NET_ARCH else getattr(config, name)
