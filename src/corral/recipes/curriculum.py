"""Curriculum: opponents that get stronger, each until it is beaten often enough or its budget is used up."""

from __future__ import annotations

import os
import re
from typing import Any, Literal

from corral.core.config_values import Stage
from corral.core.errors import UsageError
from corral.training.api import TrainResult, train
from corral.training.roles import EnvLike, Roles, recipe_settings, roles_of

__all__ = ["curriculum", "curriculum_stages"]

_FAST = 5
"""``fast`` divides every budget by this."""


def curriculum_stages(roles: Roles, preset: Literal["v1", "v2"] = "v1", fast: bool = False) -> list[Stage]:
    """The stages of a preset. ``v1``: the weakest opponent, then the teacher; ``v2`` mixes the two in between."""
    mixed = f"mixed:{roles.weakest}=1,{roles.teacher}=1"
    presets = {
        "v1": [(roles.weakest, roles.weakest, 50_000, 0.85), (roles.teacher, roles.teacher, 200_000, 0.55)],
        "v2": [
            (roles.weakest, roles.weakest, 100_000, 0.90),
            ("mixed", mixed, 100_000, 0.70),
            (roles.teacher, roles.teacher, 200_000, 0.55),
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


def curriculum(
    env: EnvLike,
    *,
    config: str | os.PathLike[str] | None = None,
    preset: Literal["v1", "v2"] | None = None,
    fast: bool = False,
    **settings: Any,
) -> TrainResult:
    """Train through the stages of a curriculum on an env that has opponents.

    ``config`` and ``settings`` are those of ``corral.train``; ``stages`` among them take the place of ``preset`` (v1)
    and ``fast``. Promotion takes effect with the next episode of every env. The run ends with the last stage, and its
    summary says which targets were met.
    """
    why = "a curriculum's stages say who the opponents are; give stages in a config file"
    values = recipe_settings(settings, config, opponent=why)
    if values.get("stages"):
        if preset is not None or fast:
            raise UsageError("preset and fast choose stages, but there are stages of your own; leave one of them out")
    else:
        values["stages"] = curriculum_stages(roles_of(env, values), preset or "v1", fast)
    return train(env, **values)
