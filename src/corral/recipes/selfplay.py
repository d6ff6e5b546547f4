"""Self-play: against past selves, the policy as it is, and the env's own opponents, drawn anew for every episode."""

from __future__ import annotations

import os
from typing import Any

from corral.recipes.recipe_settings import EnvLike, recipe_settings, reference_opponents
from corral.training.api import TrainResult, train

__all__ = ["selfplay"]

_DECIDED = "self-play says who the opponents are; use current_weight and random_weight"


def selfplay(
    env: EnvLike,
    *,
    config: str | os.PathLike[str] | None = None,
    current_weight: float = 0.2,
    random_weight: float = 0.2,
    **settings: Any,
) -> TrainResult:
    """Train by self-play on an env that has opponents; see ``corral.train`` for ``config`` and the ``settings``.

    ``current_weight`` and ``random_weight`` are the shares of episodes against the policy itself and against the
    weakest opponent; past selves and the teacher share the rest. Every ``checkpoint_freq`` steps (25,000) the policy
    joins the pool of past selves, and the run is saved.
    """
    values = recipe_settings(settings, config, opponent=_DECIDED, stages=_DECIDED)
    mix = reference_opponents(env, values).selfplay(current_weight, random_weight)
    every = values.get("checkpoint_freq") or 25_000
    return train(env, **{"snapshot_freq": every, "checkpoint_freq": every, **values, "opponent": mix})
