"""How a step is asked for and answered: through shared memory, with a byte in the pipe only to wake who sleeps.

Waking a sleeping process costs more than a cheap env's step. So a worker that has answered looks at its cell for a
moment before it goes to sleep, and often sees the next step there; and only the last worker to answer wakes the
parent. Everything else (resets, infos, errors) travels through the pipe as ever.

Both sides write their own cell first and look at the other's after, with a fence between: so of two that meet at the
same moment at least one sees the other. A bell too many is ignored; one too few would cost a second, not the run.
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
from corral.processes.pool import WINDOWS_WAITS, PoolWorker, WorkerPool
from corral.processes.supervision import NEVER, Deadline
from corral.processes.worker_bootstrap import ERROR, RING, error_from

__all__ = ["CELLS", "Fence", "ParentSignal", "WorkerSignal", "cells_shape"]

CELLS = "cells"
_LINE = 8  # numbers in a cache line
_ASKED, _ASLEEP = 0, 1  # in a worker's first line, which the parent reads and writes
_ANSWERED, _SPOKE, _HEARTBEAT, _OUTGROWN, _STARTED = 0, 1, 2, 5, 6  # in its second; a pulse is three numbers
_SPINS = 5_000  # about a tenth of a millisecond


def cells_shape(num_workers: int) -> tuple[int, int]:
    """Two lines for each worker, and one for the parent; int64."""
    return 2 * num_workers + 1, _LINE


class Fence:
    """Orders memory between processes: what was written before is seen before what is written after.

    Python has none, but a lock that is released and then acquired orders what came before and what comes after.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def __call__(self) -> None:
        """Let nothing pass."""
        self._lock.release()
        self._lock.acquire()


class ParentSignal:
    """The parent's side."""

    def __init__(self, pool: WorkerPool, cells: npt.NDArray[np.int64]) -> None:
        cells[...] = 0
        self._pool = pool
        self._cells = memoryview(cells.data).cast("B").cast("q")
        self._fence = Fence()
        self.step = 0
        """How many steps were asked for."""
        self._said: dict[int, bytes] = {}  # by worker, in this step
        self._rung: set[int] = set()  # workers for which a bell may have been lost in this step
        self._lines = [(w, 2 * i * _LINE, (2 * i + 1) * _LINE) for i, w in enumerate(pool.workers)]
        self._waiting = len(self._cells) - _LINE

    def ask(self) -> None:
        """Ask every worker for a step."""
        cells = self._cells
        self.step += 1
        self._said, self._rung = {}, set()
        self._fence()  # the actions first
        for _, line, _ in self._lines:
            cells[line + _ASKED] = self.step
        self._fence()
        for worker, line, _ in self._lines:
            if cells[line + _ASLEEP]:
                self._ring(worker)

    def answers(
        self, on_death: Callable[[PoolWorker, WorkerDied], None], timeout: float | None = None
    ) -> list[bytes | None]:
        """Wait until all have stepped; what those said that had anything to say.

        ``on_death`` is called for a worker that died or hung; once it has another, that one is asked for the same step.
        After ``timeout`` seconds, ``TimeoutError`` is raised; the next call goes on from there.
        """
        cells, said, rung = self._cells, self._said, self._rung
        deadline = NEVER if timeout is None else Deadline(timeout)
        cells[self._waiting] = 1
        self._fence()
        while pending := self._missing(said):
            events = self._pool.events(pending, seconds=deadline.look_seconds())
            for worker, message in events:
                if isinstance(message, WorkerDied):
                    if self.is_stepping(worker):
                        said.pop(worker.index, None)
                    self._mend(worker, message, on_death)
                elif message[:1] == ERROR:
                    raise error_from(message[1:])
                elif message != RING:
                    said[worker.index] = message
            if not events:  # for a while: was a bell lost?
                for worker in pending:
                    if cells[self._lines[worker.index][1] + _ASLEEP] and worker.index not in rung:
                        rung.add(worker.index)  # once: a pipe that nobody reads is full one day
                        self._ring(worker)
        cells[self._waiting] = 0
        self._fence()
        return [said.get(worker.index) for worker, _, _ in self._lines]

    def heartbeat(self, worker: PoolWorker) -> tuple[int, ...]:
        """A worker's signs of life (see ``vec.env_stepper``)."""
        line = self._lines[worker.index][2] + _HEARTBEAT
        return tuple(self._cells[line : line + 3])

    def is_stepping(self, worker: PoolWorker) -> bool:
        """Whether a worker was asked for a step and has not finished it."""
        return bool(self._cells[self._lines[worker.index][2] + _ANSWERED] != self.step)

    def has_started(self, worker: PoolWorker) -> bool:
        """Whether it has begun with it."""
        return bool(self._cells[self._lines[worker.index][2] + _STARTED] == self.step)

    def outgrown(self) -> list[PoolWorker]:
        """Workers that use more memory than they may."""
        return [worker for worker, _, line in self._lines if self._cells[line + _OUTGROWN]]

    def forget(self, worker: PoolWorker) -> None:
        """A worker is about to be replaced: the next one starts from nothing."""
        _, mine, answer = self._lines[worker.index]
        done = not self.is_stepping(worker)
        for line in (mine, answer):
            for cell in range(line, line + _LINE):
                self._cells[cell] = 0
        if done:
            self._cells[answer + _ANSWERED] = self.step

    def _mend(self, worker: PoolWorker, error: WorkerDied, on_death: Callable[[PoolWorker, WorkerDied], None]) -> None:
        on_death(worker, error)
        if self.is_stepping(worker):
            self._fence()
            self._cells[self._lines[worker.index][1] + _ASKED] = self.step
            self._fence()
            self._ring(worker)

    def _missing(self, said: dict[int, bytes]) -> list[PoolWorker]:
        """Workers that have not finished the step, or said something about it which has not arrived yet."""
        cells, step, missing = self._cells, self.step, []
        for worker, _, line in self._lines:
            if cells[line] != step or (cells[line + _SPOKE] == step and worker.index not in said):
                missing.append(worker)
        return missing

    def _ring(self, worker: PoolWorker) -> None:
        try:
            self._pool.post(worker, RING)
        except WorkerDied:
            return  # whoever waits for it will hear


class WorkerSignal:
    """A worker's side."""

    def __init__(self, pipe: Connection, cells: npt.NDArray[Any], index: int, patient: bool) -> None:
        self._pipe = pipe
        self._cells = memoryview(cells.data).cast("B").cast("q")
        self._fence = Fence()
        self._spins = _SPINS if patient else 0
        self._mine, self._answer = 2 * index * _LINE, (2 * index + 1) * _LINE
        self._waiting = len(self._cells) - _LINE
        self._answers: Sequence[int] = range(_LINE, self._waiting, 2 * _LINE)
        self._always = sys.platform == "win32" and len(self._answers) > WINDOWS_WAITS  # nobody may listen to the last
        self._seen = 0

    @property
    def heartbeat(self) -> Any:
        """Where the worker shows that it is alive."""
        return self._cells[self._answer + _HEARTBEAT : self._answer + _HEARTBEAT + 3]

    def outgrow(self) -> None:
        """Ask to be replaced."""
        self._cells[self._answer + _OUTGROWN] = 1

    def next(self) -> bytes | None:
        """The next message, or None for a step."""
        cells, asked = self._cells, self._mine + _ASKED
        for _ in range(self._spins):
            if cells[asked] != self._seen:
                break
        while cells[asked] == self._seen:
            cells[self._mine + _ASLEEP] = 1
            self._fence()
            message = RING if cells[asked] != self._seen else self._pipe.recv_bytes()
            cells[self._mine + _ASLEEP] = 0
            if message != RING:
                return message
        self._seen = cells[self._answer + _STARTED] = cells[asked]
        self._fence()
        return None

    def answer(self, message: bytes | None) -> None:
        """The step is done; ``message`` if there is anything to say about it."""
        cells = self._cells
        if message is not None:
            cells[self._answer + _SPOKE] = self._seen
            self._pipe.send_bytes(message)
        self._fence()
        cells[self._answer + _ANSWERED] = self._seen
        self._fence()
        last = all(cells[line + _ANSWERED] == self._seen for line in self._answers)
        if (last or self._always) and cells[self._waiting]:
            self._pipe.send_bytes(RING)
