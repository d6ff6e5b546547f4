"""What recipes have in common: the opponents that they need, and the settings that they start from."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym

from corral.config.schema import parse_config, parse_env_kwargs
from corral.config.yaml_file import load_yaml
from corral.core.errors import UsageError
from corral.envs.factory import resolve_env
from corral.envs.lifecycle import probe_env
from corral.opponents.presets import ReferenceOpponents, reference_opponents_of_names

__all__ = ["EnvLike", "recipe_settings", "reference_opponents", "steps_of"]


EnvLike = str | Callable[..., gym.Env[Any, Any]]


def reference_opponents(env: EnvLike, settings: Mapping[str, Any]) -> ReferenceOpponents:
    """The parts that an env's opponents play; a UsageError if it has none."""
    factory = resolve_env(env, parse_env_kwargs(settings.get("env_kwargs", {})))
    names = probe_env(factory).opponents
    if not names:
        raise UsageError(
            f"{factory.name} has no opponents, and this recipe is about them; docs/opponents.md says how an env "
            "offers them"
        )
    return reference_opponents_of_names(names)


def recipe_settings(
    settings: Mapping[str, Any], config: str | os.PathLike[str] | None, **decided: str
) -> dict[str, Any]:
    """``settings`` over those of a YAML file; what the recipe has ``decided`` itself is refused, with the reason."""
    values = {**(load_yaml(config) if config is not None else {}), **settings}
    values.pop("env", None)
    for name, why in decided.items():
        if values.pop(name, None):
            raise UsageError(f"{name}: {why}")
    return values


def steps_of(settings: Mapping[str, Any], default: int) -> int | None:
    """The budget of steps: as given; none, if only another budget is; else the recipe's own."""
    given = {name: settings.get(name) for name in ("timesteps", "num_episodes", "duration")}
    if all(value is None for value in given.values()):
        return default
    return parse_config({"env": "", **given}).timesteps
