"""Functions that recipes share: their settings, their budget and the opponents that they refer to."""

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

__all__ = ["EnvLike", "budget_in_steps", "recipe_settings", "reference_opponents"]

EnvLike = str | Callable[..., gym.Env[Any, Any]]
"""The name of an env, as on the command line, or a callable that constructs it."""


def reference_opponents(env: EnvLike, settings: Mapping[str, Any]) -> ReferenceOpponents:
    """Return the opponents of an env that recipes refer to; raise a UsageError if it has no opponents."""
    factory = resolve_env(env, parse_env_kwargs(settings.get("env_kwargs", {})))
    names = probe_env(factory).opponents
    if not names:
        raise UsageError(
            f"{factory.name} has no opponents, which this recipe needs; docs/opponents.md explains how an env offers "
            "them"
        )
    return reference_opponents_of_names(names)


def recipe_settings(
    settings: Mapping[str, Any], config: str | os.PathLike[str] | None, **refused: str
) -> dict[str, Any]:
    """Return the settings of the YAML file ``config``, updated with ``settings``.

    Raise a UsageError if one of the ``refused`` settings is given, which the recipe chooses itself; its value is the
    reason.
    """
    values = {**(load_yaml(config) if config is not None else {}), **settings}
    values.pop("env", None)
    for name, reason in refused.items():
        if values.pop(name, None):
            raise UsageError(f"{name}: {reason}")
    return values


def budget_in_steps(settings: Mapping[str, Any], default: int) -> int | None:
    """Return ``timesteps`` of ``settings``; None if they have only another budget; ``default`` if they have none."""
    given = {name: settings.get(name) for name in ("timesteps", "num_episodes", "duration")}
    if all(value is None for value in given.values()):
        return default
    return parse_config({"env": "", **given}).timesteps
