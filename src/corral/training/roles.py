"""Which of an env's opponents plays which part in a recipe."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym

from corral.config.schema import parse_config, parse_env_kwargs
from corral.config.yaml_file import load_yaml
from corral.core.errors import UsageError
from corral.envs.factory import resolve_env
from corral.envs.lifecycle import facts_of

__all__ = ["EnvLike", "Roles", "recipe_settings", "roles_of", "roles_of_names", "steps_of"]

EnvLike = str | Callable[..., gym.Env[Any, Any]]


@dataclass(frozen=True, slots=True)
class Roles:
    """The opponents that recipes are written in terms of."""

    weakest: str
    """``random``, or the first that the env names."""
    teacher: str
    """``greedy``, or the last that the env names."""

    def selfplay(self, current_weight: float, random_weight: float) -> str:
        """The mix of self-play: past selves and the teacher share what the policy itself and the weakest leave.

        By default 30% past selves, 30% the teacher, 20% the policy itself, 20% the weakest.
        """
        rest = 1.0 - current_weight - random_weight
        if min(current_weight, random_weight) < 0 or rest < -1e-9:
            raise UsageError(
                f"current_weight {current_weight:g} and random_weight {random_weight:g}: shares of the episodes, "
                "so neither below 0, and together at most 1"
            )
        half = max(rest, 0.0) / 2
        shares = [
            ("checkpoint", half),
            (self.teacher, half),
            ("current", current_weight),
            (self.weakest, random_weight),
        ]
        return "mixed:" + ",".join(f"{name}={share:g}" for name, share in shares)

    @property
    def both(self) -> tuple[str, ...]:
        """Whom a result is measured against."""
        return tuple(dict.fromkeys((self.weakest, self.teacher)))


def roles_of(env: EnvLike, settings: Mapping[str, Any]) -> Roles:
    """The parts that an env's opponents play; a UsageError if it has none."""
    factory = resolve_env(env, parse_env_kwargs(settings.get("env_kwargs", {})))
    names = facts_of(factory).opponents
    if not names:
        raise UsageError(
            f"{factory.name} has no opponents, and this recipe is about them; docs/opponents.md says how an env "
            "offers them"
        )
    return roles_of_names(names)


def roles_of_names(names: Sequence[str]) -> Roles:
    """The same, of the names that an env gives."""
    return Roles("random" if "random" in names else names[0], "greedy" if "greedy" in names else names[-1])


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
