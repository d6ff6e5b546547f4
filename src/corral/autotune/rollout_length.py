"""Chooses ``n_steps`` for a run with a small budget, so that whole rollouts end near that budget."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from corral.config.schema import TrainConfig, parse_config
from corral.core.errors import UsageError

__all__ = ["fit_n_steps"]

_MAX_EXCESS = 0.15
"""How far whole rollouts may exceed the budget, as a fraction of it."""
_STEPS_PER_EPISODE = 16
"""Assumed length of an episode: a rollout has at most so many steps for each episode of ``num_episodes``."""
_MIN_STEPS = 16


def fit_n_steps(values: Mapping[str, Any], note: Callable[[str], object]) -> TrainConfig:
    """Return the config of ``values``, in which the user gave no ``n_steps``, with rollouts that suit the budget.

    ``n_steps`` is halved until the run would end near its budget, as far as the other settings allow.
    """
    default = parse_config(values)
    candidates, n_steps = [default], default.n_steps // 2
    while n_steps >= _MIN_STEPS:
        with contextlib.suppress(UsageError):  # for example a batch_size that does not divide the rollout
            candidates.append(parse_config({**values, "n_steps": n_steps}))
        n_steps //= 2
    fitting = [config for config in candidates if _excess(config) <= _MAX_EXCESS]
    chosen = fitting[0] if fitting else min(candidates, key=_excess)
    if chosen.n_steps == default.n_steps:
        return default
    if default.num_episodes is None:
        budget = f"timesteps {default.timesteps:,}"
    else:
        budget = f"num_episodes {default.num_episodes:,}"
    note(f"n_steps {chosen.n_steps} instead of {default.n_steps}, to end near {budget}; --n-steps overrides it")
    return chosen


def _excess(config: TrainConfig) -> float:
    """Return how far a run of whole rollouts may exceed its budget, as a fraction of the budget."""
    excess = 0.0
    if config.timesteps is not None:
        rollouts = -(-config.timesteps // config.rollout_size)
        excess = rollouts * config.rollout_size / config.timesteps - 1
    if config.num_episodes is not None:
        rollout_episodes = config.rollout_size / _STEPS_PER_EPISODE
        excess = max(excess, rollout_episodes / config.num_episodes - 1)
    return excess
