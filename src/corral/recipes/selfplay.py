"""Self-play: against past selves, the policy as it is, and the env's own opponents, drawn anew for every episode."""

from __future__ import annotations

from typing import Any

from corral.core.errors import UsageError
from corral.training.api import TrainResult, train
from corral.training.roles import EnvLike, roles_of

__all__ = ["selfplay"]


def selfplay(
    env: EnvLike,
    *,
    current_weight: float = 0.2,
    random_weight: float = 0.2,
    checkpoint_freq: int = 25_000,
    **settings: Any,
) -> TrainResult:
    """Train by self-play on an env that has opponents; see ``corral.train`` for the ``settings``.

    ``current_weight`` and ``random_weight`` are the shares of episodes against the policy itself and against the
    weakest opponent; past selves and the teacher share the rest. Every ``checkpoint_freq`` steps the policy joins the
    pool of past selves, and the run is saved.
    """
    if "opponent" in settings:
        raise UsageError("opponent: self-play says who the opponents are; use current_weight and random_weight")
    mix = roles_of(env, settings).selfplay(current_weight, random_weight)
    values = {"snapshot_freq": checkpoint_freq, "checkpoint_freq": checkpoint_freq, **settings}
    return train(env, opponent=mix, **values)
