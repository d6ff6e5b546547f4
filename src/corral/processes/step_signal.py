"""Requests for env steps and their completion, through shared memory; a byte in a pipe only wakes a sleeping process.

To wake a sleeping process costs more than a step of a cheap env. So a worker that has completed a step polls its cells
for a moment before it sleeps, and often finds the next request there; and only the last worker to complete a step wakes
the parent. Everything else (resets, infos, errors) travels through the pipe.

No wake-up is lost: each side first writes its own cell, then issues a memory fence, then reads the other side's cell.
When both do this at the same moment, at least one of them sees what the other wrote. A superfluous wake-up byte is
ignored. If one were missing all the same, the parent would notice after a second without events, and send it again.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import numpy.typing as npt

from corral.core.errors import WorkerDied
from corral.processes.hang_detector import NEVER, Deadline
from corral.processes.pool import WorkerPool
from corral.processes.pool_worker import WINDOWS_WAITS, PoolWorker
from corral.processes.worker_bootstrap import ERROR, WAKE, unpickle_error

__all__ = ["CELLS", "Fence", "ParentSignal", "WorkerSignal", "cells_shape"]

CELLS = "cells"
_LINE = 8  # int64 cells in a cache line
_REQUESTED, _ASLEEP = 0, 1  # in a worker's first line: the step requested by the parent, and whether the worker sleeps
# In its second line: the last step that the worker completed, the last step about which it sent a message, its
# heartbeat (three cells), whether it uses too much memory, and the last step that it started.
_COMPLETED, _MESSAGE_SENT, _HEARTBEAT, _OVER_MEMORY, _STARTED = 0, 1, 2, 5, 6
_HEARTBEAT_CELLS = 3
_SPINS = 5_000  # polls before a worker sleeps: about 0.1 ms


def cells_shape(num_workers: int) -> tuple[int, int]:
    """Return the shape of the shared int64 cells: two lines for each worker, and one for the parent."""
    return 2 * num_workers + 1, _LINE


class Fence:
    """A memory fence: what this process wrote before the call is visible to others before what it writes after.

    Python has none, but releasing and then acquiring a lock orders memory in the same way.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def __call__(self) -> None:
        """Order all reads and writes before this call before all that follow."""
        self._lock.release()
        self._lock.acquire()


class ParentSignal:
    """The parent's side: requests steps and waits until all workers have completed them."""

    def __init__(self, pool: WorkerPool, cells: npt.NDArray[np.int64]) -> None:
        cells[...] = 0
        self._pool = pool
        self._cells = memoryview(cells.data).cast("B").cast("q")
        self._fence = Fence()
        self.step = 0
        """How many steps were requested so far."""
        self._messages: dict[int, bytes] = {}  # by worker: what it sent about the current step
        self._woken_again: set[int] = set()  # workers that got a second wake-up byte in the current step
        self._lines = [(w, 2 * i * _LINE, (2 * i + 1) * _LINE) for i, w in enumerate(pool.workers)]
        self._parent_waits = len(self._cells) - _LINE  # the cell that says whether the parent wants to be woken

    def request_step(self) -> None:
        """Request a step from every worker."""
        cells = self._cells
        self.step += 1
        self._messages, self._woken_again = {}, set()
        self._fence()  # the actions must be visible before the request
        for _, line, _ in self._lines:
            cells[line + _REQUESTED] = self.step
        self._fence()
        for worker, line, _ in self._lines:
            if cells[line + _ASLEEP]:
                self._wake(worker)

    def wait_for_step(
        self, on_death: Callable[[PoolWorker, WorkerDied], None], timeout: float | None = None
    ) -> list[bytes | None]:
        """Wait until all workers have completed the step; return each worker's message about it, or None.

        ``on_death`` restarts a worker that died or hung; the new process gets a request for the same step. After
        ``timeout`` seconds a ``TimeoutError`` is raised, and the next call continues to wait.
        """
        deadline = NEVER if timeout is None else Deadline(timeout)
        self._cells[self._parent_waits] = 1
        self._fence()
        while pending := self._pending_workers():
            events = self._pool.events(pending, seconds=deadline.poll_seconds())
            for worker, event in events:
                if isinstance(event, WorkerDied):
                    self._restart(worker, event, on_death)
                elif event[:1] == ERROR:
                    raise unpickle_error(event[1:])
                elif event != WAKE:
                    self._messages[worker.index] = event
            if not events:
                self._wake_again(pending)
        self._cells[self._parent_waits] = 0
        self._fence()
        return [self._messages.get(worker.index) for worker, _, _ in self._lines]

    def heartbeat(self, worker: PoolWorker) -> tuple[int, ...]:
        """Return a worker's heartbeat cells, which ``vec.env_stepper`` describes."""
        start = self._lines[worker.index][2] + _HEARTBEAT
        return tuple(self._cells[start : start + _HEARTBEAT_CELLS])

    def is_stepping(self, worker: PoolWorker) -> bool:
        """Return whether a worker has not completed the requested step."""
        return bool(self._cells[self._lines[worker.index][2] + _COMPLETED] != self.step)

    def has_started(self, worker: PoolWorker) -> bool:
        """Return whether a worker has started the requested step."""
        return bool(self._cells[self._lines[worker.index][2] + _STARTED] == self.step)

    def over_memory(self) -> list[PoolWorker]:
        """Return the workers that use more memory than they may."""
        return [worker for worker, _, line in self._lines if self._cells[line + _OVER_MEMORY]]

    def clear(self, worker: PoolWorker) -> None:
        """Clear the cells of a worker whose process has ended, for the process that takes its place."""
        _, request_line, reply_line = self._lines[worker.index]
        completed = not self.is_stepping(worker)
        for line in (request_line, reply_line):
            for cell in range(line, line + _LINE):
                self._cells[cell] = 0
        if completed:
            self._cells[reply_line + _COMPLETED] = self.step

    def _restart(
        self, worker: PoolWorker, error: WorkerDied, on_death: Callable[[PoolWorker, WorkerDied], None]
    ) -> None:
        """Restart a dead worker; if it had not completed the step, request it from the new process."""
        if self.is_stepping(worker):
            self._messages.pop(worker.index, None)
        on_death(worker, error)
        if self.is_stepping(worker):
            self._fence()
            self._cells[self._lines[worker.index][1] + _REQUESTED] = self.step
            self._fence()
            self._wake(worker)

    def _pending_workers(self) -> list[PoolWorker]:
        """Return workers that have not completed the step, or whose message about it has not arrived yet."""
        cells, step, pending = self._cells, self.step, []
        for worker, _, line in self._lines:
            if cells[line + _COMPLETED] != step or (
                cells[line + _MESSAGE_SENT] == step and worker.index not in self._messages
            ):
                pending.append(worker)
        return pending

    def _wake_again(self, pending: list[PoolWorker]) -> None:
        """Wake workers that still sleep, once in a step: more bytes could fill a pipe that nobody reads."""
        for worker in pending:
            if self._cells[self._lines[worker.index][1] + _ASLEEP] and worker.index not in self._woken_again:
                self._woken_again.add(worker.index)
                self._wake(worker)

    def _wake(self, worker: PoolWorker) -> None:
        try:
            self._pool.post(worker, WAKE)
        except WorkerDied:
            return  # the wait for this worker will see its death


class WorkerSignal:
    """A worker's side: waits for requests and reports completed steps.

    ``may_spin``: poll for a moment before sleeping, which pays only if every worker has a core.
    """

    def __init__(self, pipe: Connection, cells: npt.NDArray[Any], index: int, may_spin: bool) -> None:
        self._pipe = pipe
        self._cells = memoryview(cells.data).cast("B").cast("q")
        self._fence = Fence()
        self._spins = _SPINS if may_spin else 0
        self._request_line, self._reply_line = 2 * index * _LINE, (2 * index + 1) * _LINE
        self._parent_waits = len(self._cells) - _LINE
        self._reply_lines: Sequence[int] = range(_LINE, self._parent_waits, 2 * _LINE)
        # On Windows the parent waits for a limited number of pipes, perhaps not that of the last worker: all wake it.
        self._always_wakes = sys.platform == "win32" and len(self._reply_lines) > WINDOWS_WAITS
        self._step = 0

    @property
    def heartbeat(self) -> Any:
        """The cells that the worker's stepper changes while it makes progress."""
        start = self._reply_line + _HEARTBEAT
        return self._cells[start : start + _HEARTBEAT_CELLS]

    def report_over_memory(self) -> None:
        """Report that this process uses too much memory."""
        self._cells[self._reply_line + _OVER_MEMORY] = 1

    def next(self) -> bytes | None:
        """Wait for the next message and return it, or None for a request to step."""
        cells, requested, asleep = self._cells, self._request_line + _REQUESTED, self._request_line + _ASLEEP
        for _ in range(self._spins):
            if cells[requested] != self._step:
                break
        while cells[requested] == self._step:
            cells[asleep] = 1
            self._fence()
            message = WAKE if cells[requested] != self._step else self._pipe.recv_bytes()
            cells[asleep] = 0
            if message != WAKE:
                return message
        self._step = cells[self._reply_line + _STARTED] = cells[requested]
        self._fence()
        return None

    def answer(self, message: bytes | None) -> None:
        """Report the step as completed, after sending ``message`` if there is one."""
        cells = self._cells
        if message is not None:
            cells[self._reply_line + _MESSAGE_SENT] = self._step
            self._pipe.send_bytes(message)
        self._fence()
        cells[self._reply_line + _COMPLETED] = self._step
        self._fence()
        is_last = all(cells[line + _COMPLETED] == self._step for line in self._reply_lines)
        if (is_last or self._always_wakes) and cells[self._parent_waits]:
            self._pipe.send_bytes(WAKE)
