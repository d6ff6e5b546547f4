"""The first moments of a worker process, whatever it will work at, and how its errors travel home."""

from __future__ import annotations

import contextlib
import os
import pickle
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle
import numpy as np

from corral.core.errors import CorralError
from corral.core.machine import limit_compute_threads
from corral.core.seeding import seed_global_generators
from corral.core.stdio import tolerate_closed_stdout
from corral.processes import orphan_reaper
from corral.processes.parent_watch import name_process, tie_to_parent

__all__ = ["CLOSE", "ERROR", "OK", "RING", "VALUE", "BootstrapArgs", "error_from", "pickle_error", "run"]

CLOSE = b"x"
OK, VALUE, ERROR = b"k", b"v", b"e"
"""First byte of a worker's reply."""
RING = b"!"
"""Wakes whoever sleeps, and means nothing else."""


@dataclass(frozen=True, slots=True)
class BootstrapArgs:
    """What a worker is told at birth."""

    serve: Callable[[Connection, Any], None]
    setup: Any
    seed: int | None
    first_env: int
    parent_pid: int
    use_death_signal: bool
    environ: dict[str, str]
    """The parent's environment variables: a fork server has those of the day it was started."""


def run(pipe: Connection, others: list[Connection], pickled_args: bytes) -> None:
    """Main function of a worker. ``others`` are pipe ends inherited by ``fork`` that belong to somebody else."""
    orphan_reaper.start_process_group()
    tolerate_closed_stdout()
    for other in others:
        other.close()
    args: BootstrapArgs = cloudpickle.loads(pickled_args)
    tie_to_parent(args.parent_pid, args.use_death_signal)
    os.environ.update(args.environ)
    orphan_reaper.tag_children()
    name_process(f"corral-w{args.first_env}")
    limit_compute_threads()
    _let_the_parent_finish()
    _seed_global_generators(args)
    try:
        with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):  # the parent left: so do we
            args.serve(pipe, args.setup)
    finally:
        pipe.close()


def _let_the_parent_finish() -> None:
    """Ask Linux not to put the parent aside the moment it wakes this worker: it has the other workers to wake."""
    if hasattr(os, "SCHED_BATCH"):
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def _seed_global_generators(args: BootstrapArgs) -> None:
    """Forked workers would share the state of ``random`` and ``numpy.random``; envs that use them would be clones."""
    entropy = None if args.seed is None else (args.seed, args.first_env)
    seed_global_generators(int(np.random.SeedSequence(entropy).generate_state(1)[0]))


def pickle_error(error: BaseException) -> bytes:
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
