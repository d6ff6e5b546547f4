"""Moving envs from worker to worker between rollouts, with nothing changed for the env.

An env cannot be sent. Its position can. The new owner makes a copy, brings it there, and checks that it sees the very
observation that was seen last; only then does it take over.
"""

from __future__ import annotations

import warnings
from typing import Any

from corral.core.errors import EnvFault, UsageError
from corral.envs.factory import EnvFactory
from corral.envs.lifecycle import build_envs
from corral.rollout.collector import Collector
from corral.vec.api import OpponentSampler
from corral.vec.replay_log import EnvPosition
from corral.vec.serial import SerialVectorEnv

__all__ = ["close_quietly", "prepare_move"]


def prepare_move(
    old: Collector | None,
    envs: range,
    positions: list[EnvPosition],
    factory: EnvFactory,
    seed: int,
    heartbeat: Any,
    opponent_sampler: OpponentSampler | None,
) -> SerialVectorEnv | None:
    """``envs`` together: those of ``old`` as they are, the others replayed; None if one does not come back."""
    mine = {} if old is None else {old.first_env + i: i for i in range(old.env.num_envs)}
    owned: list[Any] = old.env.envs if old is not None and isinstance(old.env, SerialVectorEnv) else []
    made: list[Any] = []
    try:
        for env in envs:
            if env not in mine:
                made += build_envs(factory, env, 1)
    except (EnvFault, UsageError):  # there can be only one, perhaps: a port, a licence
        for copy in made:
            close_quietly(copy)
        return None
    fresh = iter(made)
    copies = [owned[mine[env]] if env in mine else next(fresh) for env in envs]
    how = {"seed": seed, "first_env": envs.start, "heartbeat": heartbeat, "envs": copies}
    new = SerialVectorEnv(factory, len(envs), infos="summed", heal=True, **how)
    new.stepper.opponent_sampler = opponent_sampler
    new.has_masks = positions[0].mask is not None
    if not new.restore(positions, there=[i for i, env in enumerate(envs) if env in mine]):
        return new
    new.closed = True  # some of its envs are still the old one's
    for copy in new.envs:
        if not any(copy is other for other in owned):
            close_quietly(copy)
    return None


def close_quietly(env: Any) -> None:
    """Close an env that is no longer needed; if that fails, nothing depends on it."""
    try:
        env.close()
    except Exception as error:
        warnings.warn(f"closing an env that was moved raised {type(error).__name__}: {error}", stacklevel=2)
