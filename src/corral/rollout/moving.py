"""Moving envs from worker to worker between rollouts, with nothing changed for the env.

An env cannot be sent. Its position can: the seed of its episode and the actions since. The new owner makes a copy,
plays those actions, and checks that it sees the very observation that the old owner saw; only then does it take over.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from corral.core.envs import EnvFactory
from corral.core.errors import EnvFault, UsageError
from corral.core.types import Leaves
from corral.rollout.collector import Collector, SoFar
from corral.vec.serial import SerialVectorEnv
from corral.vec.stepper import EnvPosition, build_envs

__all__ = ["MovingEnv", "close_quietly", "give", "take"]


@dataclass(frozen=True, slots=True)
class MovingEnv:
    """An env on its way: its position, what it showed last, and its episode so far."""

    position: EnvPosition
    observation: Leaves
    masks: npt.NDArray[np.bool_]
    reward: float
    length: int


def give(collector: Collector, envs: list[int]) -> dict[int, MovingEnv] | None:
    """The positions of some of a collector's envs; None if one has come too far to be replayed."""
    assert isinstance(collector.env, SerialVectorEnv)
    found, arrays = {}, collector.env.arrays
    for env in envs:
        i = env - collector.first_env
        observation = {path: leaf[i].copy() for path, leaf in arrays.observations.items()}
        position, so_far = collector.env.stepper.position(i), collector.so_far(i)
        if position is None:
            return None
        found[env] = MovingEnv(position, observation, arrays.masks[i].copy(), so_far.reward, so_far.length)
    return found


def take(
    old: Collector | None,
    envs: range,
    moving: dict[int, MovingEnv],
    factory: EnvFactory,
    actor: Any,
    n_steps: int,
    seed: int,
) -> Collector | None:
    """A collector for ``envs``: those of ``old`` as they are, the others replayed; None if one does not come back."""
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
    copies, fresh = [], iter(made)
    for env in envs:
        copies.append(owned[mine[env]] if env in mine else next(fresh))
    new = SerialVectorEnv(
        factory, len(envs), seed=seed, infos="summed", first_env=envs.start, keep_actions=True, envs=copies
    )
    collector = Collector(new, actor, n_steps, seed, envs.start)
    for i, env in enumerate(envs):
        if env in mine:
            assert old is not None and isinstance(old.env, SerialVectorEnv)
            new.stepper.adopt(i, old.env.stepper, mine[env])
            collector.go_on(i, old.so_far(mine[env]))
    new.has_masks = new.stepper.has_masks
    try:
        arrived = all(_arrive(new, collector, i, moving[env]) for i, env in enumerate(envs) if env not in mine)
    except EnvFault:
        arrived = False
    new.has_masks = new.stepper.has_masks
    if arrived:
        return collector
    new.closed = True  # some of its envs are still the old one's
    for copy in made:
        close_quietly(copy)
    return None


def close_quietly(env: Any) -> None:
    """Close an env that is no longer needed; if that fails, nothing depends on it."""
    try:
        env.close()
    except Exception as error:
        warnings.warn(f"closing an env that was moved raised {type(error).__name__}: {error}", stacklevel=2)


def _arrive(new: SerialVectorEnv, collector: Collector, i: int, moving: MovingEnv) -> bool:
    new.stepper.replay(i, moving.position)
    collector.go_on(i, SoFar(moving.reward, moving.length))
    same = all(np.array_equal(new.arrays.observations[path][i], leaf) for path, leaf in moving.observation.items())
    return same and (not new.stepper.has_masks or np.array_equal(new.arrays.masks[i], moving.masks))
