"""Self-play: the opponent of each episode is drawn from past policies, the current one and the env's own opponents."""

from __future__ import annotations

import os
from typing import Any

from corral.recipes.recipe_settings import EnvLike, recipe_settings, reference_opponents
from corral.training.api import TrainResult, train

__all__ = ["selfplay"]

_REFUSED = "self-play chooses the opponents; use current_weight and random_weight"


def selfplay(
    env: EnvLike,
    *,
    config: str | os.PathLike[str] | None = None,
    current_weight: float = 0.2,
    random_weight: float = 0.2,
    **settings: Any,
) -> TrainResult:
    """Train by self-play on an env that has opponents.

    ``current_weight`` and ``random_weight`` are the shares of episodes against the current policy and against the
    weakest opponent; the other episodes are played half against past versions of the policy and half against the
    scripted opponent (``greedy``, or the strongest). Every ``checkpoint_freq`` steps (25,000 by default) a copy of the
    policy is added to the past versions, and a checkpoint is saved. ``config`` and ``settings`` are those of
    ``corral.train``.
    """
    values = recipe_settings(settings, config, opponent=_REFUSED, stages=_REFUSED)
    mix = reference_opponents(env, values).selfplay(current_weight, random_weight)
    save_freq = values.get("checkpoint_freq") or 25_000
    return train(env, **{"snapshot_freq": save_freq, "checkpoint_freq": save_freq, **values, "opponent": mix})
