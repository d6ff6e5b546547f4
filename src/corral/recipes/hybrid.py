"""Hybrid self-play: a warm-up against a scripted opponent, then self-play."""

from __future__ import annotations

import os
from typing import Any

from corral.config.values import Stage
from corral.core.errors import UsageError
from corral.recipes.recipe_settings import EnvLike, budget_in_steps, recipe_settings, reference_opponents
from corral.training.api import TrainResult, train

__all__ = ["hybrid"]

_DEFAULT_TIMESTEPS, _DEFAULT_WARMUP = 1_000_000, 200_000
_REFUSED = "this recipe chooses the opponents; use warmup, current_weight and random_weight"


def hybrid(
    env: EnvLike,
    *,
    config: str | os.PathLike[str] | None = None,
    warmup: int | None = None,
    current_weight: float = 0.2,
    random_weight: float = 0.2,
    **settings: Any,
) -> TrainResult:
    """Train ``warmup`` steps against a scripted opponent (``greedy``, or the env's strongest), then by self-play.

    ``warmup`` is 200,000 steps by default, or a fifth of a smaller budget. ``current_weight`` and ``random_weight`` are
    the shares of episodes against the current policy and against the weakest opponent; the other episodes are played
    half against past versions of the policy and half against the scripted opponent. ``timesteps`` is
    1,000,000 if no budget is given. ``config`` and ``settings`` are those of ``corral.train``.
    """
    values = recipe_settings(settings, config, opponent=_REFUSED, stages=_REFUSED)
    timesteps = budget_in_steps(values, _DEFAULT_TIMESTEPS)
    if warmup is None:
        warmup = _DEFAULT_WARMUP if timesteps is None else min(_DEFAULT_WARMUP, timesteps // 5)
    if warmup < 1 or (timesteps is not None and warmup >= timesteps):
        expected = "at least 1" if timesteps is None else f"part of the {timesteps:,} timesteps"
        raise UsageError(f"warmup {warmup:,}: should be {expected}")
    opponents = reference_opponents(env, values)
    stages = [
        Stage(name="warmup", opponent=opponents.strongest_scripted, timesteps=warmup),
        Stage(name="mix", opponent=opponents.selfplay(current_weight, random_weight)),  # until the end of the run
    ]
    save_freq = values.get("checkpoint_freq") or 25_000
    values = {"snapshot_freq": save_freq, "checkpoint_freq": save_freq, **values}
    return train(env, **{**values, "stages": stages, "timesteps": timesteps})
