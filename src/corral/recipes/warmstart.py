"""Warm start: imitate an expert first, then go on with PPO, held near the imitation until the values can be trusted."""

from __future__ import annotations

import os
from typing import Any, Literal

from corral.config.rules import DEFAULT_TIMESTEPS
from corral.config.schema import parse_config
from corral.core.errors import UsageError
from corral.recipes.recipe_settings import EnvLike, recipe_settings, reference_opponents, steps_of
from corral.training.api import TrainResult, train

__all__ = ["warmstart"]

_PRESETS: dict[str, dict[str, Any]] = {
    "v1": {"kl_ref_coef": 0.5},
    "v2": {"kl_ref_coef": 0.5, "expert_values": True, "ent_coef": 0.02},
}


def warmstart(
    env: EnvLike,
    *,
    config: str | os.PathLike[str] | None = None,
    preset: Literal["v1", "v2"] = "v1",
    **settings: Any,
) -> TrainResult:
    """Train on an env that has opponents, beginning with what ``expert`` (the teacher, by default) does.

    PPO would soon forget it: its first advantages come from values that know nothing. So at first only the value
    function learns (``critic_warmup``, a twentieth of the budget), and a penalty on the distance from the imitator
    (``kl_ref_coef``) falls to zero over the first half; without a budget of steps, these are 5,000 and 50,000 steps.
    ``v2`` fits the value function to the expert's games too, and keeps more entropy. See ``corral.train`` for
    ``config`` and the ``settings``.
    """
    if preset not in _PRESETS:
        raise UsageError(f"preset {preset!r}: should be v1 or v2")
    given = recipe_settings(settings, config)
    steps = steps_of(given, DEFAULT_TIMESTEPS)
    roles = reference_opponents(env, given)
    usual = DEFAULT_TIMESTEPS if steps is None else steps
    values = {"critic_warmup": usual // 20, **_PRESETS[preset], **given}
    if not given.get("stages"):
        values.setdefault("opponent", roles.strongest_scripted)
    if parse_config({"env": "", "kl_ref_coef": values["kl_ref_coef"]}).kl_ref_coef:
        values.setdefault("kl_ref_steps", max(1, usual // 2))
    return train(env, **{**values, "expert": values.get("expert") or roles.strongest_scripted, "timesteps": steps})
