"""The worker process: a stepper at the end of a pipe. Only commands travel through it; data lies in shared memory.

A step is one byte each way. Anything longer (infos that have something in them, results of ``apply``) is pickled.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import random
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle
import numpy as np

from corral.core.actions import ActionCodec
from corral.core.envs import EnvFactory
from corral.core.errors import CorralError
from corral.core.machine import limit_compute_threads
from corral.core.spaces import Layout
from corral.vec import shared_memory
from corral.vec.api import EnvFacts, InfoMode, InfoRow, StepArrays
from corral.vec.lifeline import tie_to_parent
from corral.vec.stepper import Stepper, build_envs

__all__ = ["ERROR", "OK", "VALUE", "WorkerSetup", "error_from", "run"]

STEP, RESET, APPLY, DRAIN, CLOSE = b"s", b"r", b"a", b"d", b"x"
OK, VALUE, ERROR = b"k", b"v", b"e"


@dataclass(frozen=True, slots=True)
class WorkerSetup:
    """What a worker is told at birth."""

    factory: EnvFactory
    first_env: int
    n: int
    seed: int | None
    infos: InfoMode
    parent_pid: int
    use_death_signal: bool
    environ: dict[str, str]
    """The parent's environment variables: a fork server has those of the day it was started."""


@dataclass(frozen=True, slots=True)
class ResetRequest:
    """Seeds and options, one for each of the worker's envs."""

    seeds: list[int | None]
    options: list[dict[str, Any] | None]


@dataclass(frozen=True, slots=True)
class ApplyRequest:
    """A function, and the worker's envs (counted from 0) to call it on."""

    function: Callable[[Any], Any]
    envs: list[int]


@dataclass(frozen=True, slots=True)
class ResetReply:
    """The answer to a reset."""

    has_masks: bool
    rows: list[InfoRow]


def run(pipe: Connection, others: list[Connection], setup_bytes: bytes) -> None:
    """Main function of a worker. ``others`` are pipe ends inherited by ``fork`` that belong to somebody else."""
    for other in others:
        other.close()
    setup: WorkerSetup = cloudpickle.loads(setup_bytes)
    tie_to_parent(setup.parent_pid, setup.use_death_signal)
    os.environ.update(setup.environ)
    limit_compute_threads()
    _seed_global_generators(setup)
    try:
        with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):  # the parent left: so do we
            _serve(pipe, setup)
    finally:
        pipe.close()


def _serve(pipe: Connection, setup: WorkerSetup) -> None:
    try:
        envs = build_envs(setup.factory, setup.first_env, setup.n)
        facts = EnvFacts.of(envs[0])
        Layout(facts.observation_space), ActionCodec(facts.action_space)  # refuse odd spaces here, with their name
    except BaseException as error:
        pipe.send_bytes(ERROR + _pickle_error(error))
        return
    pipe.send_bytes(VALUE + cloudpickle.dumps(facts))
    shared = shared_memory.attach(pipe)
    arrays = StepArrays.of(shared.arrays).rows(setup.first_env, setup.first_env + setup.n)
    stepper = Stepper(envs, arrays, first_env=setup.first_env, seed=setup.seed, infos=setup.infos)
    pipe.send_bytes(OK)
    try:
        while (message := pipe.recv_bytes()) != CLOSE:
            try:
                reply = _answer(stepper, message)
            except (Exception, SystemExit) as error:
                reply = ERROR + _pickle_error(error)
            pipe.send_bytes(reply)
    finally:
        stepper.close()


def _answer(stepper: Stepper, message: bytes) -> bytes:
    if message == STEP:
        rows = stepper.step()
        return VALUE + _dump(stepper, rows) if rows else OK
    command, payload = message[:1], message[1:]
    if command == RESET:
        reset: ResetRequest = pickle.loads(payload)
        rows = stepper.reset(reset.seeds, reset.options)
        return VALUE + _dump(stepper, ResetReply(bool(stepper.has_masks), rows))
    if command == APPLY:
        call: ApplyRequest = cloudpickle.loads(payload)
        return VALUE + bytes(cloudpickle.dumps([call.function(stepper.envs[i]) for i in call.envs]))
    assert command == DRAIN, command
    return VALUE + pickle.dumps(stepper.drain_infos())


def _seed_global_generators(setup: WorkerSetup) -> None:
    """Forked workers would share the state of ``random`` and ``numpy.random``; envs that use them would be clones."""
    entropy = None if setup.seed is None else (setup.seed, setup.first_env)
    state = np.random.SeedSequence(entropy).generate_state(8)
    np.random.seed(state)  # noqa: NPY002 - it is the legacy generator that needs it
    random.seed(state.tobytes())


def _dump(stepper: Stepper, reply: Any) -> bytes:
    try:
        return pickle.dumps(reply)
    except Exception:  # a local class or a lambda, perhaps
        try:
            return bytes(cloudpickle.dumps(reply))
        except Exception as error:
            envs = f"{stepper.first_env} to {stepper.first_env + len(stepper.envs) - 1}"
            raise CorralError(
                f"an info of envs {envs} cannot leave its process: {type(error).__name__}: {error}; "
                "put numbers, text and arrays in info"
            ) from error


def _pickle_error(error: BaseException) -> bytes:
    """The exception itself where it survives the journey, else its name and words; with its traceback as a note."""
    text = "".join(traceback.format_exception(error))
    if not isinstance(error, CorralError):
        error.add_note(f"In the worker:\n{text}")
    error.__cause__ = error.__context__ = error.__traceback__ = None
    try:
        data = cloudpickle.dumps(error)
        cloudpickle.loads(data)
        return bytes(data)
    except Exception:
        return pickle.dumps(CorralError(f"{type(error).__name__}: {error}\n{text}"))


def error_from(payload: bytes) -> BaseException:
    """The exception in an ERROR reply."""
    error: Any = pickle.loads(payload)
    assert isinstance(error, BaseException)
    return error
