"""Hybrid self-play: first a warm-up against the teacher, then the mix of self-play."""

from __future__ import annotations

from typing import Any

from corral.core.config import parse_config
from corral.core.config_values import Stage
from corral.core.errors import UsageError
from corral.training.api import TrainResult, train
from corral.training.roles import EnvLike, roles_of

__all__ = ["hybrid"]


def hybrid(
    env: EnvLike,
    *,
    timesteps: int = 1_000_000,
    warmup: int | None = None,
    current_weight: float = 0.2,
    random_weight: float = 0.2,
    checkpoint_freq: int = 25_000,
    **settings: Any,
) -> TrainResult:
    """Train ``warmup`` steps against the teacher (200,000, or a fifth of a smaller budget), then by self-play.

    The weights are shares of episodes against the policy itself and against the weakest opponent; past selves and the
    teacher share the rest. See ``corral.train`` for the ``settings``.
    """
    if "opponent" in settings:
        raise UsageError("opponent: this recipe says who the opponents are; use current_weight and random_weight")
    steps = parse_config({"env": "", "timesteps": timesteps}).timesteps
    assert steps is not None
    warmup = min(200_000, steps // 5) if warmup is None else warmup
    if not 0 < warmup < steps:
        raise UsageError(f"warmup {warmup:,}: should be part of the {steps:,} timesteps")
    roles = roles_of(env, settings)
    mix = roles.selfplay(current_weight, random_weight)
    stages = [
        Stage(name="warmup", opponent=roles.teacher, timesteps=warmup),
        Stage(name="mix", opponent=mix, timesteps=steps - warmup),
    ]
    values = {"snapshot_freq": checkpoint_freq, "checkpoint_freq": checkpoint_freq, **settings}
    return train(env, stages=stages, timesteps=steps, **values)
