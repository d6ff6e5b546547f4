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
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import numpy.typing as npt

from corral.vec.birth import ERROR, RING, error_from
from corral.vec.pool import WINDOWS_WAITS, PoolWorker, WorkerPool, died

__all__ = ["CELLS", "Fence", "StepBell", "StepCaller", "cells_shape"]

CELLS = "cells"
_LINE = 8  # numbers in a cache line
_ASKED, _ASLEEP = 0, 1  # in a worker's first line, which the parent reads and writes
_ANSWERED, _SPOKE = 0, 1  # in its second
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


class StepCaller:
    """The parent's side."""

    def __init__(self, pool: WorkerPool, cells: npt.NDArray[np.int64]) -> None:
        cells[...] = 0
        self._pool = pool
        self._cells = memoryview(cells.data).cast("B").cast("q")
        self._fence = Fence()
        self._step = 0
        self._lines = [(w, 2 * i * _LINE, (2 * i + 1) * _LINE) for i, w in enumerate(pool.workers)]
        self._line = {worker.pid: line for worker, line, _ in self._lines}
        self._waiting = len(self._cells) - _LINE

    def ask(self) -> None:
        """Ask every worker for a step."""
        cells = self._cells
        self._step += 1
        self._fence()  # the actions first
        for _, line, _ in self._lines:
            cells[line + _ASKED] = self._step
        self._fence()
        for worker, line, _ in self._lines:
            if cells[line + _ASLEEP]:
                self._pool.post(worker, RING)

    def answers(self) -> list[bytes | None]:
        """Wait until all have stepped; what those said that had anything to say."""
        cells, step = self._cells, self._step
        said: dict[int, bytes] = {}
        cells[self._waiting] = 1
        self._fence()
        while any(cells[line + _ANSWERED] != step for _, _, line in self._lines):
            pending = [worker for worker, _, line in self._lines if cells[line + _ANSWERED] != step]
            for worker, speaks in self._pool.woken(pending):
                if speaks or worker.pipe.poll():
                    self._hear(worker, said)
                elif not worker.process.is_alive():
                    raise died(worker)
                elif cells[self._line[worker.pid] + _ASLEEP]:  # and nothing happened for a while: was a bell lost?
                    self._pool.post(worker, RING)
        cells[self._waiting] = 0
        self._fence()
        for worker, _, line in self._lines:
            while cells[line + _SPOKE] == step and worker.pid not in said:
                self._hear(worker, said)
        return [said.get(worker.pid) for worker, _, _ in self._lines]

    def _hear(self, worker: PoolWorker, said: dict[int, bytes]) -> None:
        try:
            message = worker.pipe.recv_bytes()
        except (EOFError, OSError):
            raise died(worker) from None
        if message[:1] == ERROR:
            raise error_from(message[1:])
        if message != RING:
            said[worker.pid] = message


class StepBell:
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
        self._seen = cells[asked]
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
