"""Idle rollout workers help the learner: each computes its shares of every minibatch, from memory it already sees.

A minibatch is too short for messages. The trainer writes a number, the helpers see it and compute, and each answers
with the same number: both sides look at shared memory for a moment before they begin to yield the core. The shares of
a helper that dies are computed by the trainer, to the same result; the worker is replaced when it is needed again.
"""

from __future__ import annotations

import time
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import numpy.typing as npt

from corral.core.errors import WorkerDied
from corral.ppo.shares import Shares
from corral.processes.pool import WorkerPool
from corral.processes.pool_worker import PoolWorker
from corral.processes.step_signal import Fence
from corral.processes.worker_bootstrap import ERROR, unpickle_error

__all__ = ["ASSIST", "SIGNALS", "ProcessCrew", "assist"]

ASSIST = b"h"
SIGNALS = "signals"
_LINE = 8  # numbers in a cache line: each writer has its own
_OVER = -1
_SPINS, _YIELDS, _NAP = 2_000, 2_000, 100e-6
_PATIENCE = 60.0  # seconds; a share takes milliseconds
_TIMES_OWN = 20.0  # a helper may take so many times as long as the trainer's own shares took


class ProcessCrew:
    """The trainer and some workers; share ``s`` belongs to member ``s`` modulo their number, the trainer being 0."""

    def __init__(
        self, shares: Shares, signals: npt.NDArray[np.int64], pool: WorkerPool, helpers: int, patience: float | None
    ) -> None:
        self.shares = shares
        self._patience = patience or _PATIENCE
        self._pool = pool
        self._helpers = pool.workers[:helpers]
        self._mine = range(0, shares.setup.shares, helpers + 1)
        signals[...] = 0
        self._signals = memoryview(signals.data).cast("B").cast("q")
        self._sequence = 0
        self._fence = Fence()

    @staticmethod
    def signals(helpers: int) -> tuple[tuple[int, int], str]:
        """Shape and dtype of the memory that the crew talks through."""
        return (helpers + 1, _LINE), "<i8"

    def begin(self) -> None:
        """Call the helpers."""
        self._fence = Fence()  # an update that was cut short may have left the last one in any state
        self._signals[0] = self._sequence
        self._fence()
        self._gone: set[int] = set()
        for worker in self._helpers:
            try:
                self._pool.post(worker, ASSIST + self._sequence.to_bytes(8, "little"))
            except WorkerDied:
                self._gone.add(worker.index)

    def compute(self, minibatch: int) -> None:
        """Tell the helpers which minibatch, compute our own shares, wait for theirs."""
        self._sequence += 1
        self._signals[1] = minibatch
        self._fence()
        self._signals[0] = self._sequence
        started = time.monotonic()
        for share in self._mine:
            self.shares.compute(minibatch, share)
        limit = max(self._patience, _TIMES_OWN * (time.monotonic() - started))
        for member, worker in enumerate(self._helpers, start=1):
            if worker.index not in self._gone and not self._wait(member, worker, limit):
                self._gone.add(worker.index)
            if worker.index in self._gone:
                for share in range(member, self.shares.setup.shares, len(self._helpers) + 1):
                    self.shares.compute(minibatch, share)
        self._fence()

    def end(self) -> None:
        """Send the helpers back to their envs."""
        self._signals[0] = _OVER

    def _wait(self, member: int, worker: PoolWorker, limit: float) -> bool:
        """Until a helper has answered; False if it never will. Then its shares are ours: nobody else writes them."""
        cells, at, value = self._signals, _LINE * member, self._sequence
        for _ in range(_SPINS):
            if cells[at] == value:
                return True
        for _ in range(_YIELDS):
            if cells[at] == value:
                return True
            time.sleep(0)
        waited, last = 0.0, time.monotonic()
        while cells[at] != value:
            if not self._is_alive(worker):
                return False
            time.sleep(_NAP)
            now = time.monotonic()
            waited, last = waited + min(now - last, 1.0), now
            if waited > limit:
                self._pool.kill_hung_worker(worker, limit, "while helping the learner")
                return False
        return True

    def _is_alive(self, worker: PoolWorker) -> bool:
        try:
            if worker.pipe.poll() and (message := worker.pipe.recv_bytes())[:1] == ERROR:
                raise unpickle_error(message[1:])
        except (EOFError, OSError):
            return False
        return bool(worker.process.is_alive())


def assist(pipe: Connection, message: bytes, shares: Shares, signals: npt.NDArray[Any], member: int, size: int) -> None:
    """A helper's part of one update."""
    cells, fence = memoryview(signals.data).cast("B").cast("q"), Fence()
    mine = range(member, shares.setup.shares, size)
    seen = int.from_bytes(message[1:], "little")
    while True:
        now = _wait_for_news(cells, seen, pipe)
        if now == _OVER:
            return
        fence()
        minibatch = cells[1]
        for share in mine:
            shares.compute(minibatch, share)
        fence()
        cells[_LINE * member] = seen = now


def _wait_for_news(cells: Any, seen: int, pipe: Connection) -> int:
    for _ in range(_SPINS):
        if (now := cells[0]) != seen:
            return int(now)
    for _ in range(_YIELDS):
        if (now := cells[0]) != seen:
            return int(now)
        time.sleep(0)
    while (now := cells[0]) == seen:
        if pipe.poll():  # the update was cut short: hear what comes next
            return _OVER
        time.sleep(_NAP)
    return int(now)
