"""Call a function in a child process: for envs that have not run yet, which may crash their process or hang.

The child is a worker process like any other: it, and all processes that its env starts, end with this process.
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
from corral.processes.recovery_config import RecoveryConfig
from corral.processes.worker_bootstrap import ERROR, VALUE, pickle_error, unpickle_error
from corral.vec.supervisor import Stop, Supervisor, WorkerDeath

__all__ = ["Heartbeat", "call_in_child"]

T = TypeVar("T")
_HEARTBEAT, _CELLS = "heartbeat", 8
_IS_STEPPING = 3  # a cell after those that a stepper uses: 0 while envs are made and reset, 1 while they are stepped


class Heartbeat:
    """Cells in shared memory by which a function in a child process shows that it makes progress."""

    def __init__(self, cells: Any) -> None:
        self.cells: Any = memoryview(cells.data).cast("B").cast("q")
        """Integers that change while the function makes progress; a stepper can use them as its ``heartbeat``."""

    @contextlib.contextmanager
    def making_envs(self) -> Iterator[None]:
        """Apply the time-out for starting, not that for steps, to a block that makes and resets envs."""
        self.cells[_IS_STEPPING] = 0
        try:
            yield
        finally:
            self.cells[_IS_STEPPING] = 1


def call_in_child(
    function: Callable[[Heartbeat], T],
    what: str,
    recovery: RecoveryConfig,
    start_method: StartMethod = "auto",
    preload: str | None = None,
) -> T:
    """Return what ``function(heartbeat)`` returns in a child process; raise what it raises there.

    If the process hangs or exits without a reply, the set-up is wrong: ``WorkerDied`` is raised, with exit code 2 and a
    message that begins with ``what``. If a signal killed the process, the call is repeated, as often as ``recovery``
    allows. ``preload`` names a module that later workers will need: a fork server imports modules only when it starts.
    """
    supervisor = Supervisor(recovery)
    while True:
        try:
            return _call(function, recovery, start_method, preload)
        except WorkerDied as error:
            decision = supervisor.decide(WorkerDeath(0, error, progress_outside_steps=what))
            if isinstance(decision, Stop):
                stopped = WorkerDied(f"{what}: {decision.error}")
                stopped.exit_code = 2
                raise stopped from None
            recovery.warn(decision.message)


def _call(
    function: Callable[[Heartbeat], T], recovery: RecoveryConfig, start_method: StartMethod, preload: str | None
) -> T:
    """Start a child process, return what the function returns there, and stop the process."""
    shared = shared_memory.create([shared_memory.ArraySpec(_HEARTBEAT, (_CELLS,), "<i8")])
    cells = shared.arrays[_HEARTBEAT]
    cells[...] = 0
    pool = WorkerPool(
        _serve,
        shares=[range(1)],
        setup_of=lambda index, envs: function,
        start_method=start_method,
        seed=0,
        recovery=recovery,
        preload=preload,
    )
    try:
        pool.heartbeat_of = lambda worker: cells.tobytes()
        pool.send_shared_memory(pool.workers[0], shared)
        reply = _wait_for_reply(pool, cells, recovery)
        if reply[:1] == ERROR:
            raise unpickle_error(reply[1:])
        result: T = cloudpickle.loads(reply[1:])
        return result
    finally:
        pool.close()
        shared.close()


def _wait_for_reply(pool: WorkerPool, cells: Any, recovery: RecoveryConfig) -> bytes:
    """Return the child's reply. While it makes envs, the time-out for starting applies; otherwise, that for steps."""
    while True:
        is_stepping = int(cells[_IS_STEPPING])
        with pool.watching(None if is_stepping else recovery.start_timeout):
            while cells[_IS_STEPPING] == is_stepping:
                for _, event in pool.events(pool.workers):
                    if isinstance(event, WorkerDied):
                        raise event
                    return event


def _serve(pipe: Connection, function: Callable[[Heartbeat], Any]) -> None:
    """Call the function, in the child process, and send its result or exception to the parent."""
    heartbeat = Heartbeat(shared_memory.attach(pipe).arrays[_HEARTBEAT])
    try:
        reply = VALUE + bytes(cloudpickle.dumps(function(heartbeat)))
    except (Exception, SystemExit) as error:
        reply = ERROR + pickle_error(error)
    pipe.send_bytes(reply)
