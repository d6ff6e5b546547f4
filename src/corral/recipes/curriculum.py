"""Curriculum learning: training through stages of increasing difficulty.

An env that defines stages itself is trained through these, each for its budget. An env with opponents is trained
against them, the weakest first, each until the policy wins often enough or the budget of the stage is used up.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from corral.config.schema import parse_config, parse_env_kwargs
from corral.config.values import Stage
from corral.core.errors import UsageError
from corral.envs.factory import resolve_env
from corral.envs.lifecycle import probe_env
from corral.opponents.presets import ReferenceOpponents
from corral.recipes.recipe_settings import EnvLike, budget_in_steps, recipe_settings, reference_opponents
from corral.training.api import TrainResult, train

__all__ = ["curriculum", "curriculum_stages"]

_FAST_DIVISOR = 5
"""``fast`` divides every budget by this."""


class _PresetStage(NamedTuple):
    name: str
    opponent: str
    timesteps: int
    win_rate: float


def curriculum_stages(
    opponents: ReferenceOpponents, preset: Literal["v1", "v2"] = "v1", fast: bool = False
) -> list[Stage]:
    """Return the stages of a preset.

    ``v1`` has the weakest and then the scripted opponent (``greedy``, or the strongest); ``v2`` has a mix of both
    between them.
    """
    weakest, strongest = opponents.weakest, opponents.strongest_scripted
    presets = {
        "v1": [
            _PresetStage(weakest, weakest, timesteps=50_000, win_rate=0.85),
            _PresetStage(strongest, strongest, timesteps=200_000, win_rate=0.55),
        ],
        "v2": [
            _PresetStage(weakest, weakest, timesteps=100_000, win_rate=0.90),
            _PresetStage("mixed", f"mixed:{weakest}=1,{strongest}=1", timesteps=100_000, win_rate=0.70),
            _PresetStage(strongest, strongest, timesteps=200_000, win_rate=0.55),
        ],
    }
    if preset not in presets:
        raise UsageError(f"preset {preset!r}: should be v1 or v2")
    stages = presets[preset]
    divisor = _FAST_DIVISOR if fast else 1
    return [
        Stage(name=name, opponent=stage.opponent, timesteps=stage.timesteps // divisor, win_rate=stage.win_rate)
        for name, stage in zip(_directory_names([stage.name for stage in stages]), stages, strict=True)
    ]


def _directory_names(names: list[str]) -> list[str]:
    """Return the names changed so that each is a valid name of a directory and no two are the same."""
    valid: list[str] = []
    for name in names:
        valid_name = re.sub(r"[^\w.-]", "-", name).lstrip(".-") or "stage"
        valid.append(valid_name if valid_name not in valid else f"{valid_name}-{len(valid) + 1}")
    return valid


def _scale_env_stages(stages: Sequence[Stage], settings: Mapping[str, Any], fast: bool) -> dict[str, Any]:
    """Return ``timesteps`` and ``stages`` of a run through the stages of an env, scaled to the budget of the run."""
    stage_steps = [stage.timesteps for stage in stages if stage.timesteps is not None]
    if len(stage_steps) < len(stages):
        raise UsageError("every stage of the env's curriculum needs timesteps")
    if fast and any(settings.get(name) is not None for name in ("timesteps", "num_episodes", "duration")):
        raise UsageError("fast divides the budgets of the stages by 5, but a budget is given; leave one of them out")
    total = budget_in_steps(settings, sum(stage_steps) // (_FAST_DIVISOR if fast else 1))
    if total is not None:
        stage_steps = [max(1, round(steps * total / sum(stage_steps))) for steps in stage_steps]
    scaled = [*stage_steps[:-1], None]  # the last stage lasts until the end of the run
    return {
        "timesteps": total,
        "stages": [stage.model_copy(update={"timesteps": steps}) for stage, steps in zip(stages, scaled, strict=True)],
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
    """Train through the stages of a curriculum, on an env that defines stages or has opponents.

    ``config`` and ``settings`` are those of ``corral.train``; ``stages`` among them replace ``preset`` (v1 by default)
    and ``fast``, which divides the budgets of the stages by 5. A new stage takes effect in each env with its next
    episode. The run ends with the last stage, and its summary has the result of each.

    If the env defines the stages, ``timesteps`` are divided among them in proportion to their budgets. With
    ``no_curriculum``, or with ``env_kwargs`` that set an option of the stages, the run has no stages.
    """
    reason = "the stages of a curriculum decide the opponents; give stages in a config file"
    values = recipe_settings(settings, config, opponent=reason)
    if values.get("stages"):
        if preset is not None or fast or no_curriculum:
            raise UsageError(
                "preset, fast and no_curriculum choose stages, but stages are given; leave one of them out"
            )
        return train(env, **values)
    factory = resolve_env(env, parse_env_kwargs(values.get("env_kwargs", {})))
    stages = parse_config({"env": factory.name, "stages": probe_env(factory).curriculum}).stages
    if stages:
        if preset is not None:
            raise UsageError(f"preset {preset!r} is for opponents, but {factory.name} defines its stages itself")
        stage_settings = _scale_env_stages(stages, values, fast)
        if no_curriculum or any(name in factory.kwargs for stage in stages for name in stage.options):
            del stage_settings["stages"]
        return train(env, **{**values, **stage_settings})
    if no_curriculum:
        if preset is not None or fast:
            raise UsageError("preset and fast choose stages, but no_curriculum is given; leave one of them out")
        return train(env, **values)
    return train(env, **values, stages=curriculum_stages(reference_opponents(env, values), preset or "v1", fast))
