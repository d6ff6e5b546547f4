"""The main loop of a worker process of ``ProcessVectorEnv``: it owns a stepper and executes the parent's requests.

The pipe between parent and worker carries requests and replies; observations, actions and rewards are in shared memory.
A step needs no message in the pipe (see ``processes.step_signal``). Infos that are not empty and the results of
``apply`` are pickled.
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
from corral.processes.recovery_config import RecoveryConfig
from corral.processes.rss_limit import RssLimit
from corral.processes.step_signal import CELLS, WorkerSignal
from corral.processes.worker_bootstrap import CLOSE, ERROR, OK, VALUE, pickle_error
from corral.vec import stepper_factory
from corral.vec.api import InfoMode, InfoRow, OpponentSamplerSpec, StepArrays
from corral.vec.replay_log import EnvPosition
from corral.vec.stepper_factory import AnyStepper
from corral.vec.stepper_options import StepperOptions

__all__ = ["ApplyRequest", "ResetReply", "ResetRequest", "RestoreRequest", "WorkerReady", "WorkerSetup", "serve"]

RESET, APPLY, TAKE_REPORT, RESTORE, OPPONENTS = b"r", b"a", b"d", b"p", b"s"
"""The first byte of a request; the pickled request, if there is one, follows."""


@dataclass(frozen=True, slots=True)
class WorkerSetup:
    """What a worker process needs to know when it starts."""

    factory: EnvFactory
    """Makes the worker's envs."""
    first_env: int
    """The index of the worker's first env among all envs of the vector env."""
    n_envs: int
    """How many envs this worker has."""
    seed: int | None
    """The root seed of the vector env."""
    infos: InfoMode
    index: int
    """The index of this worker among all workers of the vector env."""
    may_spin: bool
    """Whether the worker may poll for the next step before it sleeps, which pays only if every worker has a core."""
    recovery: RecoveryConfig


@dataclass(frozen=True, slots=True)
class WorkerReady:
    """A worker's first message: the spaces and metadata of its envs, and the memory in MB that it uses with them."""

    env_info: EnvInfo
    rss_mb: float


@dataclass(frozen=True, slots=True)
class ResetRequest:
    """A request to reset envs: a seed, options and whether to reset it, for each of the worker's envs."""

    seeds: list[int | None]
    options: list[dict[str, Any] | None]
    reset_mask: list[bool]


@dataclass(frozen=True, slots=True)
class ApplyRequest:
    """A request to call a function with each of ``envs``, which are counted from 0 within the worker."""

    function: Callable[[Any], Any]
    envs: list[int]


@dataclass(frozen=True, slots=True)
class RestoreRequest:
    """A request to bring each of the worker's envs to a position; ``has_masks``: whether the envs mask actions."""

    positions: list[EnvPosition]
    has_masks: bool


@dataclass(frozen=True, slots=True)
class ResetReply:
    """The reply to a ``ResetRequest``."""

    has_masks: bool
    mask_dtype: np.dtype[Any] | None
    rows: list[InfoRow]


def serve(pipe: Connection, setup: WorkerSetup) -> None:
    """Make the worker's envs, then execute the parent's requests until it sends ``CLOSE``."""
    try:
        envs = stepper_factory.make_envs(setup.factory, setup.first_env, setup.n_envs, setup.seed, seed_globals=True)
        env_info = stepper_factory.read_env_info(envs)
        Layout(env_info.observation_space)  # raises an error that names the space, if Corral does not support it
        ActionCodec(env_info.action_space)  # likewise
    except BaseException as error:
        pipe.send_bytes(ERROR + pickle_error(error))
        return
    stepper: AnyStepper | None = None
    try:
        pipe.send_bytes(VALUE + cloudpickle.dumps(WorkerReady(env_info, RssLimit.current_mb())))
        shared = shared_memory.attach(pipe)
        signal = WorkerSignal(pipe, shared.arrays.pop(CELLS), setup.index, setup.may_spin)
        arrays = StepArrays.from_arrays(shared.arrays).rows(setup.first_env, setup.first_env + setup.n_envs)
        options = StepperOptions(
            factory=setup.factory,
            first_env=setup.first_env,
            seed=setup.seed,
            infos=setup.infos,
            recover=setup.recovery.recover,
            env_known_to_work=setup.recovery.env_known_to_work,
            heartbeat=signal.heartbeat,
            seed_globals=True,
        )
        stepper = stepper_factory.make_stepper(envs, arrays, options)
        pipe.send_bytes(OK)
        _execute_requests(pipe, signal, stepper, setup.recovery.max_rss)
    finally:
        if stepper is not None:
            stepper.close()
        else:
            stepper_factory.close_envs(envs, setup.first_env)


def _execute_requests(pipe: Connection, signal: WorkerSignal, stepper: AnyStepper, max_rss: float | None) -> None:
    """Execute one request after another, and reply to each, until the parent sends ``CLOSE``."""
    arrays, rss_limit = stepper.arrays, RssLimit(max_rss)
    while (message := signal.next()) != CLOSE:
        is_step = message is None
        reply: bytes | None
        try:
            reply = _step(stepper) if message is None else _handle(stepper, message, pipe)
        except (Exception, SystemExit) as error:
            reply = ERROR + pickle_error(error)
        if is_step:
            # A worker that uses too much memory is replaced only after a step that ended an episode.
            if max_rss is not None and (arrays.terminated | arrays.truncated).any() and rss_limit.is_exceeded():
                signal.report_over_memory()
            signal.answer(reply)
        else:
            assert reply is not None
            pipe.send_bytes(reply)


def _step(stepper: AnyStepper) -> bytes | None:
    """Step the envs; return their infos as a reply, or None if all infos are empty."""
    rows = stepper.step()
    return VALUE + _dump(stepper, rows) if rows else None


def _handle(stepper: AnyStepper, message: bytes, pipe: Connection) -> bytes:
    """Execute one request that is not a step, and return the reply."""
    command, payload = message[:1], message[1:]
    if command == OPPONENTS:
        spec: OpponentSamplerSpec = cloudpickle.loads(payload)
        stepper.opponent_sampler = spec.build(shared_memory.attach(pipe).arrays)
        return OK
    if command == RESET:
        reset: ResetRequest = pickle.loads(payload)
        rows = stepper.reset(reset.seeds, reset.options, reset.reset_mask)
        return VALUE + _dump(stepper, ResetReply(bool(stepper.has_masks), stepper.row_writer.mask_dtype, rows))
    if command == APPLY:
        call: ApplyRequest = cloudpickle.loads(payload)
        return VALUE + bytes(cloudpickle.dumps([call.function(stepper.envs[i]) for i in call.envs]))
    if command == RESTORE:
        restore: RestoreRequest = pickle.loads(payload)
        return VALUE + pickle.dumps(stepper.restore(restore.positions, restore.has_masks))
    assert command == TAKE_REPORT, command
    return VALUE + pickle.dumps(stepper.take_report())


def _dump(stepper: AnyStepper, reply: Any) -> bytes:
    """Pickle a reply; raise an error that names the worker's envs if an info cannot be pickled."""
    try:
        return pickle.dumps(reply)
    except Exception:  # pickle refuses local classes and lambdas, cloudpickle does not
        try:
            return bytes(cloudpickle.dumps(reply))
        except Exception as error:
            envs = f"{stepper.first_env} to {stepper.first_env + len(stepper.arrays.rewards) - 1}"
            raise CorralError(
                f"an info of envs {envs} cannot be sent to the parent process: {type(error).__name__}: {error}; "
                "put only numbers, text and arrays into infos"
            ) from error
