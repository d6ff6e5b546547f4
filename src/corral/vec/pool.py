"""Worker processes and the pipes to them: started, asked, watched and stopped here, whatever they work at.

The parent sleeps until a worker answers or dies, whichever comes first: it waits on pipes and process sentinels
together, so a dead worker is an error at once and never a hang.
"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import selectors
import signal
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.util import Finalize
from typing import Any, Literal

import cloudpickle

from corral.core.errors import UsageError, WorkerDied
from corral.core.output import occupy_descriptors
from corral.vec import birth, guardian

__all__ = ["PoolWorker", "StartMethod", "WorkerPool", "descriptors_needed", "died", "split_envs"]

StartMethod = Literal["auto", "spawn", "forkserver", "fork"]
_CLOSE_SECONDS = 3.0
_DESCRIPTORS, _DESCRIPTORS_PER_WORKER = 64, 8
_LOOK_SECONDS = 1.0
WINDOWS_WAITS = 30  # workers that one wait can watch: Windows allows 63 handles, and each has two


@dataclass(slots=True, eq=False)
class PoolWorker:
    """A worker process, the pipe to it, and the envs it owns."""

    process: Any  # BaseProcess; its sentinel is a descriptor on POSIX, a handle on Windows
    pid: int
    pipe: connection.Connection
    envs: range

    def __str__(self) -> str:
        return f"worker of envs {self.envs.start} to {self.envs.stop - 1}" if self.envs else "worker without envs"


class WorkerPool:
    """Processes that run ``serve(pipe, setup)``, one for each share of the envs; ``setup_of`` tells each its own."""

    def __init__(
        self,
        serve: Callable[[connection.Connection, Any], None],
        shares: Sequence[range],
        setup_of: Callable[[range], Any],
        start_method: StartMethod = "auto",
        seed: int | None = None,
    ) -> None:
        _check_descriptors(len(shares))
        self.workers: list[PoolWorker] = []
        self._waiter: _Waiter | None = None
        self._finalizer = Finalize(self, _stop_workers, (self.workers,), exitpriority=100)
        try:
            context = multiprocessing.get_context(_start_method(start_method))
            in_main_thread = threading.current_thread() is threading.main_thread()
            with _bare_main(context, serve.__module__):
                for envs in shares:
                    born = birth.Birth(
                        serve,
                        setup_of(envs),
                        seed,
                        envs.start,
                        os.getpid(),
                        in_main_thread,
                        os.environ | guardian.family(),
                    )
                    self._start(context, envs, cloudpickle.dumps(born))
            self._waiter = _Waiter(self.workers)
        except BaseException:
            self.close()
            raise

    def _start(self, context: Any, envs: range, born: bytes) -> None:
        occupy_descriptors()
        ours, theirs = context.Pipe()
        inherited = [w.pipe for w in self.workers] + [ours] if context.get_start_method() == "fork" else []
        process = context.Process(target=birth.run, args=(theirs, inherited, born), name=f"corral-{envs.start}")
        process.start()
        theirs.close()
        self.workers.append(PoolWorker(process, process.pid, ours, envs))
        guardian.watch(process.pid)

    @property
    def pids(self) -> list[int]:
        """The workers' process ids."""
        return [w.pid for w in self.workers]

    def post(self, worker: PoolWorker, message: bytes) -> None:
        """Send a message, or say who died."""
        try:
            worker.pipe.send_bytes(message)
        except OSError:
            raise died(worker) from None

    def replies(self, workers: Sequence[PoolWorker] | None = None, all_first: bool = False) -> list[bytes]:
        """One reply of each worker. An error is raised as soon as it is seen; with ``all_first``, it is a reply too."""
        workers = self.workers if workers is None else workers
        replies: dict[int, bytes] = {}
        while len(replies) < len(workers):
            for w, speaks in self.woken([w for w in workers if w.pid not in replies]):
                if w.pid in replies:
                    if not w.process.is_alive():
                        raise died(w)
                    continue
                try:
                    if speaks or w.pipe.poll():
                        reply = w.pipe.recv_bytes()
                        if reply != birth.RING:
                            replies[w.pid] = reply
                        if not all_first and reply[:1] == birth.ERROR:
                            raise birth.error_from(reply[1:])
                    elif not w.process.is_alive():
                        raise died(w)
                except (EOFError, OSError):
                    raise died(w) from None
        return [replies[w.pid] for w in workers]

    def woken(self, pending: list[PoolWorker]) -> list[tuple[PoolWorker, bool]]:
        """Sleep until something happens: workers that said something (True) or may have ended."""
        assert self._waiter is not None
        return self._waiter.woken(pending)

    def close(self) -> None:
        """Stop the workers: ask, wait a little, then kill. May be called twice."""
        if self._waiter is not None:
            self._waiter.close()
            self._waiter = None
        self._finalizer()


class _Waiter:
    """Sleeps until a pipe has something to read or a process has ended."""

    def __init__(self, workers: list[PoolWorker]) -> None:
        self._selector: selectors.BaseSelector | None = None
        if sys.platform != "win32":
            self._selector = selectors.DefaultSelector()
            for w in workers:
                self._selector.register(w.pipe, selectors.EVENT_READ, (w, True))
                self._selector.register(w.process.sentinel, selectors.EVENT_READ, (w, False))

    def close(self) -> None:
        if self._selector is not None:
            self._selector.close()

    def woken(self, pending: list[PoolWorker]) -> list[tuple[PoolWorker, bool]]:
        """Workers that said something (True) or may have ended; those in ``pending`` if nothing happened for a while.

        A worker's death can go unnoticed if a child of its env holds its descriptors: hence the while.
        """
        if self._selector is not None:
            found = [key.data for key, _ in self._selector.select(_LOOK_SECONDS)]
            return found or [(w, False) for w in pending]
        some = pending[:WINDOWS_WAITS]  # all must answer, so any subset will do
        objects = connection.wait([o for w in some for o in (w.pipe, w.process.sentinel)], _LOOK_SECONDS)
        return [(w, w.pipe in objects) for w in some if w.pipe in objects or w.process.sentinel in objects] or [
            (w, False) for w in pending
        ]


def split_envs(n_envs: int, num_workers: int) -> list[range]:
    """Contiguous shares of the envs, as even as they can be."""
    base, extra = divmod(n_envs, num_workers)
    bounds = [0]
    for i in range(num_workers):
        bounds.append(bounds[-1] + base + (i < extra))
    return [range(a, b) for a, b in itertools.pairwise(bounds) if b > a]


def _stop_workers(workers: list[PoolWorker]) -> None:
    """Ask nicely, then kill, whatever interrupts: ``terminate`` would never end a stopped process."""
    deadline = time.monotonic() + _CLOSE_SECONDS
    try:
        for w in workers:
            with contextlib.suppress(OSError):
                if sys.platform != "win32":
                    os.set_blocking(w.pipe.fileno(), False)  # one that reads no more must not hold us up
                w.pipe.send_bytes(birth.CLOSE)
        for w in workers:
            connection.wait([w.process.sentinel], max(0.0, deadline - time.monotonic()))
    finally:
        guardian.end(w.pid for w in workers)  # now: their numbers are nobody else's until they are joined
        for w in workers:
            if w.process.is_alive():
                w.process.kill()
        for w in workers:
            w.process.join(_CLOSE_SECONDS)
            w.pipe.close()
            with contextlib.suppress(ValueError):  # still alive: nothing more can be done
                w.process.close()


def died(w: PoolWorker) -> WorkerDied:
    """What to say about a worker that ended by itself."""
    w.process.join(1.0)
    code = w.process.exitcode
    guardian.end([w.pid])
    how = f"exited with code {code}"
    if code is not None and code < 0:
        known = {number.value: number.name for number in signal.Signals}
        how = f"was killed by {known.get(-code, f'signal {-code}')}"
    memory = ", or the system did for want of memory" if code == -getattr(signal, "SIGKILL", 9) else ""
    return WorkerDied(
        f"the {w} (pid {w.pid}) {how} without a word: the env, or a library under it, ended the process{memory}. "
        "To see where: python -X faulthandler -m corral ... --backend serial --n-envs 1"
    )


def _start_method(wanted: StartMethod) -> str:
    available = multiprocessing.get_all_start_methods()
    if wanted == "auto":
        return "forkserver" if "forkserver" in available else "spawn"
    if wanted not in available:
        raise UsageError(f"parallel_start_method {wanted!r} does not exist on this platform; there is {available}")
    return wanted


def descriptors_needed(num_workers: int) -> int:
    """About how many files a process with so many workers has open."""
    return _DESCRIPTORS + _DESCRIPTORS_PER_WORKER * num_workers


def _check_descriptors(num_workers: int) -> None:
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = descriptors_needed(num_workers)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard == resource.RLIM_INFINITY or hard >= needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
        return
    raise UsageError(
        f"num_workers {num_workers} needs about {needed} open files, but the limit is {hard}; "
        f"raise it (ulimit -n) or use --num-workers {max(1, (hard - _DESCRIPTORS) // _DESCRIPTORS_PER_WORKER)}"
    )


@contextlib.contextmanager
def _bare_main(context: Any, preload: str) -> Iterator[None]:
    """Start workers without the user's ``__main__``.

    The factory travels by value, so no worker needs to import the script that started it: scripts without a
    ``__main__`` guard and notebooks just work. The fork server is told to load what every worker needs.
    """
    if context.get_start_method() == "forkserver":
        context.set_forkserver_preload([preload])
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
