"""The worker process: a stepper at the end of a pipe. Only commands travel through it; data lies in shared memory.

A step needs no message at all (see ``processes.step_signal``). Infos with something in them and results of ``apply``
are pickled.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle
import numpy as np

from corral.core.actions import ActionCodec
from corral.core.errors import CorralError
from corral.core.spaces import Layout
from corral.envs.env_info import EnvInfo
from corral.envs.factory import EnvFactory
from corral.processes import shared_memory
from corral.processes.rss_limit import RssLimit
from corral.processes.step_signal import CELLS, WorkerSignal
from corral.processes.supervision import RecoveryConfig
from corral.processes.worker_bootstrap import CLOSE, ERROR, OK, VALUE, pickle_error
from corral.vec import stepper_factory
from corral.vec.api import InfoMode, InfoRow, OpponentSamplerSpec, StepArrays
from corral.vec.replay_log import EnvPosition
from corral.vec.stepper_factory import AnyStepper, StepperOptions

__all__ = ["ApplyRequest", "ResetReply", "ResetRequest", "RestoreRequest", "WorkerReady", "WorkerSetup", "serve"]

RESET, APPLY, DRAIN, RESTORE, OPPONENTS = b"r", b"a", b"d", b"p", b"s"


@dataclass(frozen=True, slots=True)
class WorkerSetup:
    """Which envs a worker has."""

    factory: EnvFactory
    first_env: int
    n: int
    seed: int | None
    infos: InfoMode
    index: int
    """Of this worker among them all."""
    patient: bool
    """Whether there is a core for every worker, so that it may look out for a step before it sleeps."""
    care: RecoveryConfig


@dataclass(frozen=True, slots=True)
class WorkerReady:
    """A worker's first words: what its envs are like, and how much memory it uses with them, in MB."""

    env_info: EnvInfo
    memory: float


@dataclass(frozen=True, slots=True)
class ResetRequest:
    """Seeds and options, one for each of the worker's envs, and which of them to reset."""

    seeds: list[int | None]
    options: list[dict[str, Any] | None]
    chosen: list[bool]


@dataclass(frozen=True, slots=True)
class ApplyRequest:
    """A function, and the worker's envs (counted from 0) to call it on."""

    function: Callable[[Any], Any]
    envs: list[int]


@dataclass(frozen=True, slots=True)
class RestoreRequest:
    """Where the worker's envs should be, and whether they mask their actions."""

    positions: list[EnvPosition]
    masked: bool


@dataclass(frozen=True, slots=True)
class ResetReply:
    """The answer to a reset."""

    has_masks: bool
    mask_dtype: np.dtype[Any] | None
    rows: list[InfoRow]


def serve(pipe: Connection, setup: WorkerSetup) -> None:
    """Make the envs, then do as the pipe says until it says close."""
    try:
        made = stepper_factory.build(setup.factory, setup.first_env, setup.n, setup.seed, seed_globals=True)
        env_info = stepper_factory.read_env_info(made)
        (
            Layout(env_info.observation_space),
            ActionCodec(env_info.action_space),
        )  # refuse odd spaces here, with their name
    except BaseException as error:
        pipe.send_bytes(ERROR + pickle_error(error))
        return
    stepper: AnyStepper | None = None
    try:
        pipe.send_bytes(VALUE + cloudpickle.dumps(WorkerReady(env_info, RssLimit.now())))
        shared = shared_memory.attach(pipe)
        signal = WorkerSignal(pipe, shared.arrays.pop(CELLS), setup.index, setup.patient)
        arrays = StepArrays.from_arrays(shared.arrays).rows(setup.first_env, setup.first_env + setup.n)
        care = setup.care.heal, setup.care.known_to_work
        options = StepperOptions(
            setup.factory, setup.first_env, setup.seed, setup.infos, *care, signal.heartbeat, seed_globals=True
        )
        stepper = stepper_factory.stepper_of(made, arrays, options)
        memory, limited = RssLimit(setup.care.max_rss), setup.care.max_rss is not None
        pipe.send_bytes(OK)
        while (message := signal.next()) != CLOSE:
            reply: bytes | None
            try:
                reply = _step(stepper) if message is None else _answer(stepper, message, pipe)
            except (Exception, SystemExit) as error:
                reply = ERROR + pickle_error(error)
            if message is None:
                if limited and (arrays.terminated | arrays.truncated).any() and memory.outgrown():
                    signal.outgrow()
                signal.answer(reply)
            else:
                assert reply is not None
                pipe.send_bytes(reply)
    finally:
        if stepper is not None:
            stepper.close()
        else:
            stepper_factory.close_all(made, setup.first_env)


def _step(stepper: AnyStepper) -> bytes | None:
    rows = stepper.step()
    return VALUE + _dump(stepper, rows) if rows else None


def _answer(stepper: AnyStepper, message: bytes, pipe: Connection) -> bytes:
    command, payload = message[:1], message[1:]
    if command == OPPONENTS:
        opponent_sampler: OpponentSamplerSpec = cloudpickle.loads(payload)
        stepper.opponent_sampler = opponent_sampler.build(shared_memory.attach(pipe).arrays)
        return OK
    if command == RESET:
        reset: ResetRequest = pickle.loads(payload)
        rows = stepper.reset(reset.seeds, reset.options, reset.chosen)
        return VALUE + _dump(stepper, ResetReply(bool(stepper.has_masks), stepper.row_writer.mask_dtype, rows))
    if command == APPLY:
        call: ApplyRequest = cloudpickle.loads(payload)
        return VALUE + bytes(cloudpickle.dumps([call.function(stepper.envs[i]) for i in call.envs]))
    if command == RESTORE:
        restore: RestoreRequest = pickle.loads(payload)
        return VALUE + pickle.dumps(stepper.restore(restore.positions, restore.masked))
    assert command == DRAIN, command
    return VALUE + pickle.dumps(stepper.drain())


def _dump(stepper: AnyStepper, reply: Any) -> bytes:
    try:
        return pickle.dumps(reply)
    except Exception:  # a local class or a lambda, perhaps
        try:
            return bytes(cloudpickle.dumps(reply))
        except Exception as error:
            envs = f"{stepper.first_env} to {stepper.first_env + len(stepper.arrays.rewards) - 1}"
            raise CorralError(
                f"an info of envs {envs} cannot leave its process: {type(error).__name__}: {error}; "
                "put numbers, text and arrays in info"
            ) from error
