"""Tries the states of envs that a checkpoint holds in another process, before this one goes on from them.

Bytes that an emulator believes can make it crash or never return. Workers have time-outs for that; the trainer's own
process, where the envs of backend ``serial`` live, has none.
"""

from __future__ import annotations

import dataclasses
import functools
import multiprocessing
import time
from collections.abc import Mapping, Sequence

import numpy as np

from corral.core.errors import CheckpointError, WorkerDied
from corral.envs.factory import EnvFactory
from corral.envs.lifecycle import ENV_EXCEPTIONS
from corral.processes.pool import StartMethod
from corral.processes.supervision import RecoveryConfig
from corral.rollout import worker
from corral.vec.child_call import Heartbeat, call_in_child
from corral.vec.replay_log import EnvPosition
from corral.vec.serial import SerialVectorEnv

__all__ = ["try_states"]

_SECONDS, _STEPS = 1.0, 16
"""Steps that each env takes from its state, and when they are enough."""


def try_states(
    factory: EnvFactory,
    positions: Sequence[EnvPosition],
    seed: int,
    recovery: RecoveryConfig,
    start_method: StartMethod,
) -> None:
    """Refuse positions with states from which an env hangs or ends its process; what it raises is no concern here."""
    having = {i: dataclasses.replace(at, options=None) for i, at in enumerate(positions) if at.state is not None}
    if not having or multiprocessing.current_process().daemon:  # a daemonic process cannot have children
        return
    function = functools.partial(_go_on, factory=factory, positions=having, seed=seed)
    try:
        call_in_child(
            function, "in a trial", dataclasses.replace(recovery, known_to_work=False), start_method, worker.__name__
        )
    except WorkerDied as error:
        raise CheckpointError(
            f"the envs cannot go on from the states in the checkpoint: {error}; remove that checkpoint to go on from "
            "an older one"
        ) from None


def _go_on(heartbeat: Heartbeat, factory: EnvFactory, positions: Mapping[int, EnvPosition], seed: int) -> None:
    """In the child: bring each env to its state and take a few steps from there."""
    for i, position in positions.items():
        try:
            with heartbeat.making():
                env = SerialVectorEnv(factory, 1, seed=seed, infos="summed", first_env=i, heartbeat=heartbeat.cells)
        except ENV_EXCEPTIONS:  # there can be only one of it, and the trainer has that
            return
        try:
            with heartbeat.making():
                env.reset_arrays()
            env.restore([position])
            random, end = np.random.default_rng(i), time.perf_counter() + _SECONDS
            for _ in range(_STEPS):
                env.codec.decode(env.codec.random(env.masks, 1, random), env.arrays.actions)
                env.send()
                env.recv()
                if time.perf_counter() > end:
                    break
        except ENV_EXCEPTIONS:
            continue
        finally:
            env.close()
