"""Tests the env states of a checkpoint in another process before the training process continues from them.

A damaged state can make an emulator crash or hang. Workers have time-outs for that. The training process, in which the
envs of the backend ``serial`` live, has none.
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
from corral.processes.recovery_config import RecoveryConfig
from corral.rollout import worker
from corral.vec.child_call import Heartbeat, call_in_child
from corral.vec.replay_log import EnvPosition
from corral.vec.serial import SerialVectorEnv

__all__ = ["check_states_in_child"]

_MAX_STEPS, _MAX_SECONDS = 16, 1.0
"""Each env takes this many steps from its state, or fewer if they take too long."""


def check_states_in_child(
    factory: EnvFactory,
    positions: Sequence[EnvPosition],
    seed: int,
    recovery: RecoveryConfig,
    start_method: StartMethod,
) -> None:
    """Raise ``CheckpointError`` if an env crashes or hangs when it continues from its state.

    Exceptions of an env are ignored here: the training process can handle them.
    """
    with_state = {
        i: dataclasses.replace(position, options=None)
        for i, position in enumerate(positions)
        if position.state is not None
    }
    if not with_state or multiprocessing.current_process().daemon:  # a daemonic process cannot have children
        return
    function = functools.partial(_step_from_states, factory=factory, positions=with_state, seed=seed)
    try:
        call_in_child(
            function, "in a test", dataclasses.replace(recovery, env_known_to_work=False), start_method, worker.__name__
        )
    except WorkerDied as error:
        raise CheckpointError(
            f"the envs cannot continue from their states in the checkpoint: {error}; remove that checkpoint to "
            "continue from an older one"
        ) from None


def _step_from_states(
    heartbeat: Heartbeat, factory: EnvFactory, positions: Mapping[int, EnvPosition], seed: int
) -> None:
    """Bring each env to its state and take some random steps. Called in the child process."""
    for i, position in positions.items():
        try:
            with heartbeat.making_envs():
                env = SerialVectorEnv(factory, 1, seed=seed, infos="summed", first_env=i, heartbeat=heartbeat.cells)
        except ENV_EXCEPTIONS:  # perhaps the env can exist only once, and the training process has it
            return
        try:
            with heartbeat.making_envs():
                env.reset_arrays()
            env.restore([position])
            generator, deadline = np.random.default_rng(i), time.perf_counter() + _MAX_SECONDS
            for _ in range(_MAX_STEPS):
                env.codec.decode(env.codec.random(env.masks, 1, generator), env.arrays.actions)
                env.send()
                env.recv()
                if time.perf_counter() > deadline:
                    break
        except ENV_EXCEPTIONS:
            continue
        finally:
            env.close()
