"""A worker process of a pool: how to wait for several, how to kill them, and the error that describes a death."""

from __future__ import annotations

import contextlib
import selectors
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import connection
from typing import Any

from corral.core.errors import WorkerDied
from corral.processes import orphan_reaper

__all__ = ["CLOSE_SECONDS", "WINDOWS_WAITS", "PoolWorker", "Waiter", "death_error", "kill"]

CLOSE_SECONDS = 3.0
"""Seconds that workers have to end by themselves, and that the pool waits for one that it killed."""
_UNKNOWN_CODE = 255  # exit code of a worker whose fork server was killed, and all its workers with it
WINDOWS_WAITS = 30
"""Workers that one wait can watch on Windows, which allows 63 handles; each worker has two."""


@dataclass(slots=True, eq=False)
class PoolWorker:
    """A worker and the range of envs that it owns. A restart gives it another process and another pipe."""

    index: int
    process: Any  # BaseProcess; its sentinel is a descriptor on POSIX, a handle on Windows
    pid: int
    pipe: connection.Connection
    envs: range
    end: WorkerDied | None = None
    """Why the pool killed the process; None as long as it has not."""

    def __str__(self) -> str:
        if not self.envs:
            return "worker without envs"
        first, last = self.envs[0], self.envs[-1]
        return f"worker of env {first}" if first == last else f"worker of envs {first} to {last}"


class Waiter:
    """Waits until a pipe can be read or a process has ended."""

    def __init__(self) -> None:
        self._selector = None if sys.platform == "win32" else selectors.DefaultSelector()
        self._watched: dict[int, tuple[Any, Any]] = {}

    def add(self, w: PoolWorker) -> None:
        """Watch a worker from now on."""
        self._watched[w.index] = w.pipe, w.process.sentinel
        if self._selector is not None:
            self._selector.register(w.pipe, selectors.EVENT_READ, (w, True))
            self._selector.register(w.process.sentinel, selectors.EVENT_READ, (w, False))

    def forget(self, w: PoolWorker) -> None:
        """Watch a worker no longer."""
        for watched in self._watched.pop(w.index, ()):
            if self._selector is not None:
                self._selector.unregister(watched)

    def close(self) -> None:
        """Release the selector."""
        if self._selector is not None:
            self._selector.close()

    def wait(self, pending: list[PoolWorker], only_pending: bool, seconds: float) -> list[tuple[PoolWorker, bool]]:
        """Return workers whose pipe can be read (True) or that may have ended (False).

        After ``seconds`` without either, return all ``pending``, because the death of a worker goes unnoticed if a
        child process of its env holds its descriptors.
        """
        if self._selector is not None and not only_pending:
            ready = [key.data for key, _ in self._selector.select(seconds)]
        else:  # any subset will do, because all of them must reply
            watched = [w for w in pending if w.index in self._watched][:WINDOWS_WAITS]
            objects = connection.wait([o for w in watched for o in (w.pipe, w.process.sentinel)], seconds)
            ready = [(w, w.pipe in objects) for w in watched if w.pipe in objects or w.process.sentinel in objects]
        return ready or [(w, False) for w in pending]


def kill(workers: Sequence[PoolWorker]) -> None:
    """Kill worker processes at once, whatever their state. They may have ended before."""
    workers = [w for w in workers if w.end is None]
    orphan_reaper.end(w.pid for w in workers)  # before the join, after which the system may give their pids to others
    for w in workers:
        if w.process.is_alive():
            w.process.kill()
    for w in workers:
        w.end = WorkerDied(f"the {w} (pid {w.pid}) was ended")
        w.process.join(CLOSE_SECONDS)
        w.pipe.close()
        with contextlib.suppress(ValueError):  # still alive: nothing more can be done
            w.process.close()


def death_error(w: PoolWorker) -> WorkerDied:
    """Return the error that describes the death of a worker that the pool did not kill."""
    if w.end is not None:
        return w.end
    w.process.join(1.0)
    code = w.process.exitcode
    orphan_reaper.end([w.pid])
    ending = f"exited with code {code}"
    if code is not None and code < 0:
        signal_names = {number.value: number.name for number in signal.Signals}
        ending = f"was killed by {signal_names.get(-code, f'signal {-code}')}"
    memory = ", or the system did because memory ran out" if code == -getattr(signal, "SIGKILL", 9) else ""
    summary = f"the {w} (pid {w.pid}) {ending}"
    error = WorkerDied(
        f"{summary}: the env, or a library that it uses, ended the process{memory}. "
        "To see where: python -X faulthandler -m corral ... --backend serial --n-envs 1"
    )
    error.summary = summary
    error.by_signal = code is None or code < 0 or code == _UNKNOWN_CODE
    return error
