"""Calls a function in a process of its own: for envs that have not run yet, which may end the process or hang.

The child is a worker process like any other: it ends with this one, and so does what its env starts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any, TypeVar

import cloudpickle

from corral.core.errors import WorkerDied
from corral.processes import shared_memory
from corral.processes.pool import StartMethod, WorkerPool
from corral.processes.supervision import RecoveryConfig
from corral.processes.worker_bootstrap import ERROR, VALUE, error_from, pickle_error
from corral.vec.supervisor import HostDied, Stop, Supervisor

__all__ = ["Heartbeat", "call_in_child"]

T = TypeVar("T")
_HEARTBEAT, _CELLS = "heartbeat", 8
_WORKING = 3  # the cell after those of a stepper: 0 while envs are being made


class Heartbeat:
    """Where a function shows that it makes progress."""

    def __init__(self, cells: Any) -> None:
        self.cells: Any = memoryview(cells.data).cast("B").cast("q")
        """Signs of life, for a stepper to write to."""

    @contextlib.contextmanager
    def making(self) -> Iterator[None]:
        """Mark a block that makes and resets envs, which may take longer than a step."""
        self.cells[_WORKING] = 0
        try:
            yield
        finally:
            self.cells[_WORKING] = 1


def call_in_child(
    function: Callable[[Heartbeat], T],
    what: str,
    recovery: RecoveryConfig,
    start_method: StartMethod = "auto",
    preload: str | None = None,
) -> T:
    """Return what ``function(heartbeat)`` returns, called in another process; raise what it raises.

    If the process ends without an answer or hangs, that is a wrong set-up (``WorkerDied``, exit code 2), and the
    message begins with ``what``. A process that a signal ends is tried again, within the usual bounds. ``preload``
    names a module that later workers will need, because the fork server loads modules only when it starts.
    """
    supervisor = Supervisor(recovery)
    while True:
        try:
            return _call(function, recovery, start_method, preload)
        except WorkerDied as error:
            decision = supervisor.decide(HostDied(0, error, heartbeat=what))
            if isinstance(decision, Stop):
                refused = WorkerDied(f"{what}: {decision.error}")
                refused.exit_code = 2
                raise refused from None
            recovery.warn(decision.message)


def _call(
    function: Callable[[Heartbeat], T], recovery: RecoveryConfig, start_method: StartMethod, preload: str | None
) -> T:
    shared = shared_memory.create([shared_memory.ArraySpec(_HEARTBEAT, (_CELLS,), "<i8")])
    cells = shared.arrays[_HEARTBEAT]
    cells[...] = 0
    pool = WorkerPool(_serve, [range(1)], lambda index, envs: function, start_method, 0, recovery, preload)
    try:
        pool.heartbeat_of = lambda worker: cells.tobytes()
        pool.send_shared_memory(pool.workers[0], shared)
        reply = _reply(pool, cells, recovery)
        if reply[:1] == ERROR:
            raise error_from(reply[1:])
        result: T = cloudpickle.loads(reply[1:])
        return result
    finally:
        pool.close()
        shared.close()


def _reply(pool: WorkerPool, cells: Any, recovery: RecoveryConfig) -> bytes:
    """Wait for the child's reply: with one time-out while it makes envs, and with another while it steps them."""
    while True:
        working = int(cells[_WORKING])
        with pool.watching(None if working else recovery.start_timeout):
            while cells[_WORKING] == working:
                for _, said in pool.events(pool.workers):
                    if isinstance(said, WorkerDied):
                        raise said
                    return said


def _serve(pipe: Connection, function: Callable[[Heartbeat], Any]) -> None:
    """In the child: call the function and send what comes of it."""
    heartbeat = Heartbeat(shared_memory.attach(pipe).arrays[_HEARTBEAT])
    try:
        reply = VALUE + bytes(cloudpickle.dumps(function(heartbeat)))
    except (Exception, SystemExit) as error:
        reply = ERROR + pickle_error(error)
    pipe.send_bytes(reply)
