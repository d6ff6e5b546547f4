"""What every worker process does first, and how it sends exceptions to its parent."""

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

__all__ = ["CLOSE", "ERROR", "OK", "VALUE", "WAKE", "BootstrapArgs", "pickle_error", "run", "unpickle_error"]

CLOSE = b"x"
"""The request to end the worker."""
OK, VALUE, ERROR = b"k", b"v", b"e"
"""The first byte of a worker's reply; after VALUE and ERROR the pickled value or exception follows."""
WAKE = b"!"
"""A message that only wakes the process that waits for the pipe."""


@dataclass(frozen=True, slots=True)
class BootstrapArgs:
    """The arguments with which a worker process starts."""

    serve: Callable[[Connection, Any], None]
    """The worker's main loop, called as ``serve(pipe, setup)``."""
    setup: Any
    seed: int | None
    first_env: int
    """The index of the worker's first env in the run."""
    parent_pid: int
    use_death_signal: bool
    """Whether Linux should kill the worker when the thread that forked it ends (with ``forkserver``: the server's)."""
    environ: dict[str, str]
    """The parent's environment variables. A fork server has those from when it was started."""


def run(pipe: Connection, others: list[Connection], pickled_args: bytes) -> None:
    """Prepare a worker process and run its main loop; ``others`` are inherited pipe ends of other workers."""
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
    _use_batch_scheduling()
    _seed_global_generators(args)
    try:
        with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):  # the parent has ended
            args.serve(pipe, args.setup)
    finally:
        pipe.close()


def _use_batch_scheduling() -> None:
    """Ask Linux not to preempt the parent when it wakes this worker, because it still has to wake other workers."""
    if hasattr(os, "SCHED_BATCH"):
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def _seed_global_generators(args: BootstrapArgs) -> None:
    """Seed ``random`` and ``numpy.random`` for this worker: forked workers would all have the parent's state."""
    entropy = None if args.seed is None else (args.seed, args.first_env)
    seed_global_generators(int(np.random.SeedSequence(entropy).generate_state(1)[0]))


def pickle_error(error: BaseException) -> bytes:
    """Return a pickled exception, with its traceback as a note; if it cannot be pickled, a ``CorralError`` as text."""
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


def unpickle_error(payload: bytes) -> BaseException:
    """Return the exception in an ERROR reply, without its first byte."""
    error: Any = pickle.loads(payload)
    assert isinstance(error, BaseException)
    return error
