"""Warm start: imitate an expert first, then go on with PPO, held near the imitation until the values can be trusted."""

from __future__ import annotations

from typing import Any, Literal

from corral.core.config import DEFAULT_TIMESTEPS, parse_config
from corral.core.errors import UsageError
from corral.training.api import TrainResult, train
from corral.training.roles import EnvLike, roles_of

__all__ = ["warmstart"]

_PRESETS: dict[str, dict[str, Any]] = {
    "v1": {"kl_ref_coef": 0.5},
    "v2": {"kl_ref_coef": 0.5, "expert_values": True, "ent_coef": 0.02},
}


def warmstart(
    env: EnvLike,
    *,
    preset: Literal["v1", "v2"] = "v1",
    expert: str | None = None,
    timesteps: int = DEFAULT_TIMESTEPS,
    **settings: Any,
) -> TrainResult:
    """Train on an env that has opponents, beginning with what ``expert`` (the teacher, by default) does.

    PPO would soon forget it: its first advantages come from values that know nothing. So at first only the value
    function learns (``critic_warmup``, a twentieth of the budget), and a penalty on the distance from the imitator
    (``kl_ref_coef``) falls to zero over the first half. ``v2`` fits the value function to the expert's games too, and
    keeps more entropy. See ``corral.train`` for the ``settings``.
    """
    if preset not in _PRESETS:
        raise UsageError(f"preset {preset!r}: should be v1 or v2")
    steps = parse_config({"env": "", "timesteps": timesteps}).timesteps
    assert steps is not None
    roles = roles_of(env, settings)
    values = {
        "opponent": roles.teacher,
        "critic_warmup": steps // 20,
        "kl_ref_steps": max(1, steps // 2),
        **_PRESETS[preset],
        **settings,
    }
    if not float(values["kl_ref_coef"]):
        del values["kl_ref_steps"]
    return train(env, expert=expert or roles.teacher, timesteps=steps, **values)
