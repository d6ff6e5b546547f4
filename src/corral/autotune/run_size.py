"""Estimates the time and memory that a run needs from its spaces and its network, before anything is computed."""

from __future__ import annotations

import math

from torch.nn.parameter import is_lazy

from corral.config.schema import TrainConfig
from corral.core.actions import ActionCodec
from corral.core.machine import available_cores, available_memory
from corral.core.spaces import Layout
from corral.policy.policy import Policy
from corral.rollout.buffers import column_specs
from corral.vec.api import EnvInfo

__all__ = ["large_run_warning"]

_OPERATIONS_PER_WEIGHT = 6
"""For one row of a gradient step: a product and a sum in the forward pass, two of each in the backward pass."""
_OPERATIONS_PER_SECOND = 1e10
"""Of one core, roughly."""
_LONG_UPDATE_SECONDS = 60.0
_ROLLOUT_COPIES = 3
"""The most copies of a rollout at a time: while it is prepared, and while it is learned from."""


def large_run_warning(config: TrainConfig, env_info: EnvInfo, policy: Policy, masked: bool) -> str | None:
    """Return one line that says what is too large and what to change; None if nothing is.

    ``masked``: whether the env masks actions.
    """
    layout, codec = Layout(env_info.observation_space), ActionCodec(env_info.action_space)
    columns = column_specs(layout, codec, config.n_steps, config.n_envs, masked, env_info.stacks, policy.n_state)
    rollout_bytes = sum(math.prod(shape) * dtype.itemsize for shape, dtype in columns.values())
    if config.overlap:  # one rollout is collected while another one is learned from
        rollout_bytes *= 2
    n_weights = sum(parameter.numel() for parameter in policy.parameters() if not is_lazy(parameter))
    operations = _OPERATIONS_PER_WEIGHT * n_weights * config.rollout_size * config.n_epochs
    seconds = operations / (_OPERATIONS_PER_SECOND * available_cores())
    free_bytes = available_memory()
    if seconds <= _LONG_UPDATE_SECONDS and rollout_bytes * _ROLLOUT_COPIES <= free_bytes:
        return None
    observation_size = sum(math.prod(leaf.shape) for leaf in layout.leaves)
    return (
        f"{observation_size:,} numbers in an observation and {codec.n_params:,} outputs for actions make "
        f"{n_weights:,} weights: an update may take about {_format_duration(seconds)}, and a rollout "
        f"{rollout_bytes / 2**30:.1f} GB of the {free_bytes / 2**30:.1f} GB that are free; give a smaller --n-steps, "
        "--n-envs, --n-epochs or --net-arch, or an env with smaller observations or fewer actions"
    )


def _format_duration(seconds: float) -> str:
    return f"{seconds / 60:,.0f} minutes" if seconds >= 120 else f"{max(seconds, 1):.0f} s"
