"""Curriculum: stages that get harder.

An env that names stages itself is trained through those, each for its budget. One that has opponents is trained against
them, the weakest first, each until it is beaten often enough or its budget is used up.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from corral.config.schema import parse_config, parse_env_kwargs
from corral.config.values import Stage
from corral.core.errors import UsageError
from corral.envs.factory import resolve_env
from corral.envs.lifecycle import probe_env
from corral.opponents.presets import ReferenceOpponents
from corral.recipes.recipe_settings import EnvLike, recipe_settings, reference_opponents, steps_of
from corral.training.api import TrainResult, train

__all__ = ["curriculum", "curriculum_stages", "own_stages"]

_FAST = 5
"""``fast`` divides every budget by this."""


def curriculum_stages(roles: ReferenceOpponents, preset: Literal["v1", "v2"] = "v1", fast: bool = False) -> list[Stage]:
    """The stages of a preset. ``v1``: the weakest opponent, then the teacher; ``v2`` mixes the two in between."""
    mixed = f"mixed:{roles.weakest}=1,{roles.strongest_scripted}=1"
    presets = {
        "v1": [
            (roles.weakest, roles.weakest, 50_000, 0.85),
            (roles.strongest_scripted, roles.strongest_scripted, 200_000, 0.55),
        ],
        "v2": [
            (roles.weakest, roles.weakest, 100_000, 0.90),
            ("mixed", mixed, 100_000, 0.70),
            (roles.strongest_scripted, roles.strongest_scripted, 200_000, 0.55),
        ],
    }
    if preset not in presets:
        raise UsageError(f"preset {preset!r}: should be v1 or v2")
    names = _names([name for name, *_ in presets[preset]])
    return [
        Stage(name=name, opponent=opponent, timesteps=steps // (_FAST if fast else 1), win_rate=target)
        for name, (_, opponent, steps, target) in zip(names, presets[preset], strict=True)
    ]


def _names(opponents: list[str]) -> list[str]:
    """What stages may be called after their opponents: names of directories, each another."""
    names: list[str] = []
    for opponent in opponents:
        name = re.sub(r"[^\w.-]", "-", opponent).lstrip(".-") or "stage"
        names.append(name if name not in names else f"{name}-{len(names) + 1}")
    return names


def own_stages(
    stages: Sequence[Stage], kwargs: Mapping[str, Any], settings: Mapping[str, Any], fast: bool, no_curriculum: bool
) -> dict[str, Any]:
    """``timesteps`` and ``stages`` of a run through stages that the env names; see ``curriculum``."""
    shares = [stage.timesteps for stage in stages if stage.timesteps is not None]
    if len(shares) < len(stages):
        raise UsageError("every stage of the env's curriculum needs timesteps")
    if fast and any(settings.get(name) is not None for name in ("timesteps", "num_episodes", "duration")):
        raise UsageError("fast is a fifth of the stages' own budgets, but a budget is given; leave one of them out")
    steps = steps_of(settings, sum(shares) // (_FAST if fast else 1))
    if no_curriculum or any(name in kwargs for stage in stages for name in stage.options):
        return {"timesteps": steps}
    if steps is not None:
        shares = [max(1, round(share * steps / sum(shares))) for share in shares]
    ends = [*shares[:-1], None]  # the last goes on to the end of the run
    return {
        "timesteps": steps,
        "stages": [stage.model_copy(update={"timesteps": end}) for stage, end in zip(stages, ends, strict=True)],
    }


def curriculum(
    env: EnvLike,
    *,
    config: str | os.PathLike[str] | None = None,
    preset: Literal["v1", "v2"] | None = None,
    fast: bool = False,
    no_curriculum: bool = False,
    **settings: Any,
) -> TrainResult:
    """Train through the stages of a curriculum, on an env that names some or that has opponents.

    ``config`` and ``settings`` are those of ``corral.train``; ``stages`` among them take the place of ``preset`` (v1)
    and ``fast``. The next stage takes effect with the next episode of every env. The run ends with the last stage, and
    its summary says how each went.

    Where the env names its stages, ``timesteps`` are shared out among them as their own budgets are. With
    ``no_curriculum``, or ``env_kwargs`` that say what the stages would, the whole budget goes to one stage.
    """
    why = "a curriculum's stages say who the opponents are; give stages in a config file"
    values = recipe_settings(settings, config, opponent=why)
    if values.get("stages"):
        if preset is not None or fast or no_curriculum:
            raise UsageError(
                "preset, fast and no_curriculum choose stages, but there are stages of your own; leave one of them out"
            )
        return train(env, **values)
    factory = resolve_env(env, parse_env_kwargs(values.get("env_kwargs", {})))
    stages = parse_config({"env": factory.name, "stages": probe_env(factory).curriculum}).stages
    if stages:
        if preset is not None:
            raise UsageError(f"preset {preset!r} is for opponents, but {factory.name} names stages of its own")
        return train(env, **{**values, **own_stages(stages, factory.kwargs, values, fast, no_curriculum)})
    if no_curriculum:
        if preset is not None or fast:
            raise UsageError("preset and fast choose stages, but no_curriculum leaves them out")
        return train(env, **values)
    return train(env, **values, stages=curriculum_stages(reference_opponents(env, values), preset or "v1", fast))
