"""What a run asks of the machine, estimated from its spaces and its network before anything is computed."""

from __future__ import annotations

import math

from torch.nn.parameter import is_lazy

from corral.config.schema import TrainConfig
from corral.core.actions import ActionCodec
from corral.core.machine import available_cores, available_memory
from corral.core.spaces import Layout
from corral.policy.policy import Policy
from corral.rollout.buffers import named_columns
from corral.vec.api import EnvInfo

__all__ = ["large_run_warning"]

_OPERATIONS_PER_WEIGHT = 6  # of a row in a gradient step: one product and one sum forwards, two of each backwards
_OPERATIONS_PER_SECOND = 1e10  # of one core, roughly
_LONG_SECONDS = 60.0
_COPIES = 3  # of a rollout, at most: while it is learned from, and while it is prepared


def large_run_warning(config: TrainConfig, env_info: EnvInfo, policy: Policy, masked: bool) -> str | None:
    """Say in one line what is too large and what to change; None if nothing is."""
    layout, codec = Layout(env_info.observation_space), ActionCodec(env_info.action_space)
    named = named_columns(layout, codec, config.n_steps, config.n_envs, masked, env_info.stacks, policy.n_state)
    rollout = sum(math.prod(shape) * dtype.itemsize for shape, dtype in named.values()) * (2 if config.overlap else 1)
    weights = sum(parameter.numel() for parameter in policy.parameters() if not is_lazy(parameter))
    work = _OPERATIONS_PER_WEIGHT * weights * config.rollout_size * config.n_epochs
    seconds = work / (_OPERATIONS_PER_SECOND * available_cores())
    free = available_memory()
    if seconds <= _LONG_SECONDS and rollout * _COPIES <= free:
        return None
    observed = sum(math.prod(leaf.shape) for leaf in layout.leaves)
    return (
        f"{observed:,} numbers in an observation and {codec.n_params:,} outputs for actions make {weights:,} weights: "
        f"an update may take about {_told(seconds)}, and a rollout {rollout / 2**30:.1f} GB of the "
        f"{free / 2**30:.1f} GB that are free; give a smaller --n-steps, --n-envs, --n-epochs or --net-arch, or an env "
        "with smaller observations or fewer actions"
    )


def _told(seconds: float) -> str:
    return f"{seconds / 60:,.0f} minutes" if seconds >= 120 else f"{max(seconds, 1):.0f} s"
