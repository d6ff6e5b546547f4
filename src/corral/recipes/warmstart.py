"""Warm start: imitate an expert, then train with PPO, at first with a penalty on the distance from the imitation."""

from __future__ import annotations

import os
from typing import Any, Literal

from corral.config.rules import DEFAULT_TIMESTEPS
from corral.config.schema import parse_config
from corral.core.errors import UsageError
from corral.recipes.recipe_settings import EnvLike, budget_in_steps, recipe_settings, reference_opponents
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
    """Train on an env that has opponents, from a policy that imitates ``expert``.

    The default expert is ``greedy``, or the env's strongest opponent. PPO would soon forget what it imitates, because
    its first advantages come from an untrained value function. Therefore only the value function learns at first
    (``critic_warmup``, a twentieth of the budget), and a penalty on the KL divergence from the imitation
    (``kl_ref_coef``) falls to zero over the first half of the budget. Without a budget in steps, these are 5,000 and
    50,000 steps. The preset ``v2`` also fits the value function to the expert's returns, and has an entropy bonus.
    ``config`` and ``settings`` are those of ``corral.train``.
    """
    if preset not in _PRESETS:
        raise UsageError(f"preset {preset!r}: should be v1 or v2")
    given = recipe_settings(settings, config)
    timesteps = budget_in_steps(given, DEFAULT_TIMESTEPS)
    strongest = reference_opponents(env, given).strongest_scripted
    assumed_timesteps = DEFAULT_TIMESTEPS if timesteps is None else timesteps
    values = {"critic_warmup": assumed_timesteps // 20, **_PRESETS[preset], **given}
    if not given.get("stages"):
        values.setdefault("opponent", strongest)
    if parse_config({"env": "", "kl_ref_coef": values["kl_ref_coef"]}).kl_ref_coef:
        values.setdefault("kl_ref_steps", max(1, assumed_timesteps // 2))
    return train(env, **{**values, "expert": values.get("expert") or strongest, "timesteps": timesteps})
