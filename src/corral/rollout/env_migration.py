"""Moves envs from one worker to another between rollouts, without any change for the env.

An env cannot be sent to another process, but its position can. The new owner makes a new env, replays it to that
position and checks that it shows the same observation as the old one did. Only then is the old one closed.
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
    collector: Collector | None,
    envs: range,
    positions: list[EnvPosition],
    factory: EnvFactory,
    seed: int,
    heartbeat: Any,
    opponent_sampler: OpponentSampler | None,
) -> SerialVectorEnv | None:
    """Return a vector env with exactly ``envs``, or None if one of them cannot be made or restored.

    Envs that ``collector`` has already are taken over as they are. The others are new envs, replayed to their
    positions.
    """
    kept_envs = _envs_by_number(collector)
    new_envs = _make_envs(factory, [number for number in envs if number not in kept_envs])
    if new_envs is None:
        return None
    all_envs = kept_envs | new_envs
    vector_env = SerialVectorEnv(
        factory,
        len(envs),
        seed=seed,
        infos="summed",
        first_env=envs.start,
        recover=True,
        heartbeat=heartbeat,
        envs=[all_envs[number] for number in envs],
    )
    vector_env.stepper.opponent_sampler = opponent_sampler
    vector_env.has_masks = positions[0].mask is not None
    lost = vector_env.restore(positions, already_there=[i for i, number in enumerate(envs) if number in kept_envs])
    if not lost:
        return vector_env
    vector_env.closed = True  # but not its envs: ``collector`` still uses some of them
    for env in vector_env.envs:  # not ``new_envs``: a replay that failed may have replaced some of them
        if not any(env is kept for kept in kept_envs.values()):
            close_quietly(env)
    return None


def _envs_by_number(collector: Collector | None) -> dict[int, Any]:
    """Return the envs of a collector by their numbers in the run."""
    if collector is None:
        return {}
    assert isinstance(collector.env, SerialVectorEnv)
    return dict(enumerate(collector.env.envs, collector.first_env))


def _make_envs(factory: EnvFactory, numbers: list[int]) -> dict[int, Any] | None:
    """Make envs with these numbers; return None if one cannot be made.

    Some envs exist only once, because they hold a port or a licence.
    """
    new_envs: dict[int, Any] = {}
    try:
        for number in numbers:
            (new_envs[number],) = build_envs(factory, number, 1)
    except (EnvFault, UsageError):
        for env in new_envs.values():
            close_quietly(env)
        return None
    return new_envs


def close_quietly(env: Any) -> None:
    """Close an env that is no longer needed; an exception becomes a warning."""
    try:
        env.close()
    except Exception as error:
        warnings.warn(f"closing an env that was moved raised {type(error).__name__}: {error}", stacklevel=2)
