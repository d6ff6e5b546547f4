"""``n_steps`` for a small budget, so that a run ends near the steps or episodes that were asked for."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from corral.config.schema import TrainConfig, parse_config
from corral.core.errors import UsageError

__all__ = ["fit_n_steps"]

_MOST_OVER = 0.15
"""How far whole rollouts may exceed ``timesteps``, as a share of them."""
_STEPS_PER_EPISODE = 16
"""A rollout has at most so many steps for each episode of ``num_episodes``."""
_FEWEST = 16


def fit_n_steps(values: Mapping[str, Any], note: Callable[[str], object]) -> TrainConfig:
    """The config of ``values``, in which ``n_steps`` was not chosen by the user, with rollouts that suit the budget.

    ``n_steps`` is halved until the run would end near its budget, as far as the other settings allow.
    """
    usual = parse_config(values)
    candidates, n_steps = [usual], usual.n_steps // 2
    while n_steps >= _FEWEST:
        with contextlib.suppress(UsageError):  # for example a batch_size that does not divide the rollout
            candidates.append(parse_config({**values, "n_steps": n_steps}))
        n_steps //= 2
    near = [config for config in candidates if _excess(config) <= _MOST_OVER]
    fitted = near[0] if near else min(candidates, key=_excess)
    if fitted.n_steps == usual.n_steps:
        return usual
    budget = f"timesteps {usual.timesteps:,}" if usual.num_episodes is None else f"num_episodes {usual.num_episodes:,}"
    note(f"n_steps {fitted.n_steps} instead of {usual.n_steps}, to end near {budget}; --n-steps overrides it")
    return fitted


def _excess(config: TrainConfig) -> float:
    """How far a run of whole rollouts may go beyond its budget, as a share of that budget."""
    excess = 0.0
    if config.timesteps is not None:
        rollouts = -(-config.timesteps // config.rollout_size)
        excess = rollouts * config.rollout_size / config.timesteps - 1
    if config.num_episodes is not None:
        rollout_episodes = config.rollout_size / _STEPS_PER_EPISODE
        excess = max(excess, rollout_episodes / config.num_episodes - 1)
    return excess
