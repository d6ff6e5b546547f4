"""Hybrid self-play: first a warm-up against the teacher, then the mix of self-play."""

from __future__ import annotations

import os
from typing import Any

from corral.config.values import Stage
from corral.core.errors import UsageError
from corral.recipes.recipe_settings import EnvLike, recipe_settings, reference_opponents, steps_of
from corral.training.api import TrainResult, train

__all__ = ["hybrid"]

_STEPS, _WARMUP = 1_000_000, 200_000
_DECIDED = "this recipe says who the opponents are; use warmup, current_weight and random_weight"


def hybrid(
    env: EnvLike,
    *,
    config: str | os.PathLike[str] | None = None,
    warmup: int | None = None,
    current_weight: float = 0.2,
    random_weight: float = 0.2,
    **settings: Any,
) -> TrainResult:
    """Train ``warmup`` steps against the teacher (200,000, or a fifth of a smaller budget), then by self-play.

    The weights are shares of episodes against the policy itself and against the weakest opponent; past selves and the
    teacher share the rest. ``timesteps`` is 1,000,000 if no budget is given. See ``corral.train`` for ``config`` and
    the ``settings``.
    """
    values = recipe_settings(settings, config, opponent=_DECIDED, stages=_DECIDED)
    steps = steps_of(values, _STEPS)
    if warmup is None:
        warmup = _WARMUP if steps is None else min(_WARMUP, steps // 5)
    if warmup < 1 or (steps is not None and warmup >= steps):
        whole = "at least 1" if steps is None else f"part of the {steps:,} timesteps"
        raise UsageError(f"warmup {warmup:,}: should be {whole}")
    roles = reference_opponents(env, values)
    stages = [
        Stage(name="warmup", opponent=roles.strongest_scripted, timesteps=warmup),
        Stage(name="mix", opponent=roles.selfplay(current_weight, random_weight)),  # as long as the budget lasts
    ]
    every = values.get("checkpoint_freq") or 25_000
    values = {"snapshot_freq": every, "checkpoint_freq": every, **values}
    return train(env, **{**values, "stages": stages, "timesteps": steps})
