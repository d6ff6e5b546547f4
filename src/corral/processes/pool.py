"""Worker processes and the pipes to them: started, asked, watched and stopped here, whatever they work at.

The parent sleeps until a worker answers or dies, whichever comes first: it waits on pipes and process sentinels
together, so a dead worker is an error at once and never a hang.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import multiprocessing
import os
import selectors
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.util import Finalize
from typing import Any

import cloudpickle

from corral.core.errors import UsageError, WorkerDied
from corral.core.stdio import reserve_standard_descriptors
from corral.processes import orphan_reaper, pipes, shared_memory, worker_bootstrap
from corral.processes.start_methods import StartMethod, bare_main, usable_start_method
from corral.processes.supervision import LOOK_SECONDS, NEVER, Deadline, HangDetector, RecoveryConfig

__all__ = [
    "Event",
    "OnDeath",
    "PoolWorker",
    "StartMethod",
    "WorkerPool",
    "death_error",
    "descriptors_needed",
    "split_envs",
]

_CLOSE_SECONDS = 3.0
_LEAST_START, _TIMES_SLOWEST = 5.0, 10.0  # seconds until a worker that replaces another is taken for hung
_DESCRIPTORS, _DESCRIPTORS_PER_WORKER = 64, 8
_UNKNOWN_CODE = 255  # of a worker whose fork server was killed, and all its workers with it
_START_ATTEMPTS, _START_PAUSE = 5, 0.05  # seconds before the second attempt, and twice as many before each next one
WINDOWS_WAITS = 30  # workers that one wait can watch: Windows allows 63 handles, and each has two


@dataclass(slots=True, eq=False)
class PoolWorker:
    """A worker, and the envs it owns. Its process and the pipe to it change when it is replaced."""

    index: int
    process: Any  # BaseProcess; its sentinel is a descriptor on POSIX, a handle on Windows
    pid: int
    pipe: connection.Connection
    envs: range
    end: WorkerDied | None = None
    """Why its process was ended by us, if it was."""

    def __str__(self) -> str:
        return f"worker of envs {self.envs.start} to {self.envs.stop - 1}" if self.envs else "worker without envs"


Event = tuple[PoolWorker, bytes | WorkerDied]
"""Something a worker said, or its end."""

OnDeath = Callable[[PoolWorker, WorkerDied], bytes | None]
"""Replaces a worker that died or hung. Returns the new one's reply, or None if the reply is still to come."""


class WorkerPool:
    """Processes that run ``serve(pipe, setup)``, one for each share of the envs; ``setup_of`` tells each its own.

    ``heartbeat_of`` gives a worker's sign of life, which changes as long as it gets on: see ``HangDetector``. A fork server that
    is not running yet loads ``preload`` (the module of ``serve``) once for all of them.
    """

    def __init__(
        self,
        serve: Callable[[connection.Connection, Any], None],
        shares: Sequence[range],
        setup_of: Callable[[int, range], Any],
        start_method: StartMethod = "auto",
        seed: int | None = None,
        recovery: RecoveryConfig | None = None,
        preload: str | None = None,
    ) -> None:
        reserve_standard_descriptors()  # before we open anything
        _check_descriptors(len(shares))
        self.workers: list[PoolWorker] = []
        self.heartbeat_of: Callable[[PoolWorker], Any] | None = None
        self._serve, self._setup_of, self._seed = serve, setup_of, seed
        self._preload = preload or serve.__module__
        self._recovery = recovery or RecoveryConfig()
        self._hang_detector = HangDetector(self._recovery.step_timeout, "--step-timeout")
        self._slowest_start: dict[str, float] = {}
        self._waiter = _Waiter()
        self._finalizer = Finalize(self, _stop_workers, (self.workers,), exitpriority=100)
        try:
            self._context: Any = multiprocessing.get_context(usable_start_method(start_method))
            with bare_main(self._context, self._preload):
                for index, envs in enumerate(shares):
                    self.workers.append(PoolWorker(index, *self._start(index, envs), envs))
                    self._waiter.add(self.workers[-1])
        except BaseException as error:
            self.close()
            if isinstance(error, WorkerDied):
                error.exit_code = 2
            raise

    def _start(self, index: int, envs: range) -> tuple[Any, int, connection.Connection]:
        in_main_thread = threading.current_thread() is threading.main_thread()
        setup, environ = self._setup_of(index, envs), os.environ | orphan_reaper.process_tag()
        first = envs.start if envs else 0
        born = worker_bootstrap.BootstrapArgs(
            self._serve, setup, self._seed, first, os.getpid(), in_main_thread, environ
        )
        try:
            ours, theirs = self._context.Pipe()
        except OSError as error:
            raise WorkerDied(f"a worker could not be started: {error}") from None
        inherited = []
        if self._context.get_start_method() == "fork":
            inherited = [*(w.pipe for w in self.workers if not w.pipe.closed), ours]
        try:
            process = self._start_process((theirs, inherited, cloudpickle.dumps(born)), f"corral-{first}")
        except WorkerDied:
            ours.close()
            raise
        finally:
            theirs.close()
        orphan_reaper.watch(process.pid)
        return process, process.pid, ours

    def _start_process(self, args: tuple[Any, ...], name: str) -> Any:
        """Start a process; again, if it or its fork server was killed before it could read what it should do.

        The system may report the end of a fork server only a moment after its socket is dead, and until then it counts
        as running: hence the pauses.
        """
        for attempt in range(1, _START_ATTEMPTS + 1):
            process = self._context.Process(target=worker_bootstrap.run, args=args, name=name)
            try:
                process.start()
                return process
            except (OSError, EOFError) as error:  # no memory, no process numbers; or the fork server has none
                killed = isinstance(error, ConnectionError | EOFError)
                if not killed or attempt == _START_ATTEMPTS:
                    raise WorkerDied(f"a worker could not be started: {error or type(error).__name__}") from None
                time.sleep(_START_PAUSE * 2 ** (attempt - 1))
        raise AssertionError

    def replace(self, worker: PoolWorker) -> None:
        """End a worker, however it is, and start another in its place, which begins like any other."""
        self._waiter.forget(worker)
        kill([worker])
        self._hang_detector.forget(worker.index)
        with bare_main(self._context, self._preload):
            worker.process, worker.pid, worker.pipe = self._start(worker.index, worker.envs)
            worker.end = None
        self._waiter.add(worker)

    @property
    def pids(self) -> list[int]:
        """The workers' process ids."""
        return [w.pid for w in self.workers]

    def post(self, worker: PoolWorker, message: bytes) -> None:
        """Send a message, or say who died."""
        if worker.end is not None:
            raise worker.end
        limit = self._hang_detector.limit(worker.index)
        try:
            pipes.send(worker.pipe, message, limit)
        except pipes.PeerStalled:
            raise self.kill_hung_worker(worker, limit, self._hang_detector.flag) from None
        except OSError:
            raise death_error(worker) from None

    def replies(
        self,
        workers: Sequence[PoolWorker] | None = None,
        all_first: bool = False,
        on_death: OnDeath | None = None,
        patient: bool = False,
        so_far: dict[int, bytes] | None = None,
        deadline: Deadline = NEVER,
    ) -> list[bytes]:
        """One reply of each worker. An error is raised as soon as it is seen; with ``all_first``, it is a reply too.

        ``on_death`` is called for a worker that died or hung; without it, that is an error. ``patient``: however long it
        takes, it is not taken for hung. When the ``deadline`` has passed there is a ``TimeoutError``, and what was said
        is in ``so_far`` for the next call.
        """
        alone = workers is not None
        workers, replies = self.workers if workers is None else workers, {} if so_far is None else so_far
        with self.watching(math.inf if patient else None):
            while missing := [w for w in workers if w.index not in replies]:
                for w, said in self.events(missing, alone, deadline.look_seconds()):
                    if isinstance(said, WorkerDied):
                        if on_death is None:
                            raise said
                        replies.pop(w.index, None)  # if it had answered, the next one will again
                        if (reply := on_death(w, said)) is not None:
                            replies[w.index] = reply
                    elif said != worker_bootstrap.RING:
                        if not all_first and said[:1] == worker_bootstrap.ERROR:
                            raise worker_bootstrap.error_from(said[1:])
                        replies[w.index] = said
        return [replies[w.index] for w in workers]

    def await_startup(self, workers: Sequence[PoolWorker], about: str, on_death: OnDeath | None = None) -> list[bytes]:
        """What new workers say once they have done what it is ``about``; ``on_death`` as for ``replies``."""
        limit, began = self._recovery.start_timeout, time.monotonic()
        if about in self._slowest_start:  # then it is known how long it takes here
            limit = min(limit, max(_LEAST_START, _TIMES_SLOWEST * self._slowest_start[about]))
        try:
            with self.watching(limit):
                return self.replies(workers, on_death=on_death)
        finally:
            self._slowest_start[about] = max(self._slowest_start.get(about, 0.0), time.monotonic() - began)

    @contextlib.contextmanager
    def watching(self, start: float | None = None) -> Iterator[None]:
        """While workers are waited for, silence counts: more than ``start`` seconds of it, if they are starting."""
        usual = self._hang_detector
        if start is not None and usual.flag != "--start-timeout":
            self._hang_detector = HangDetector(start, "--start-timeout")
        try:
            yield
        finally:
            self._hang_detector.stop_watching()
            self._hang_detector = usual

    def send_shared_memory(self, worker: PoolWorker, shared: shared_memory.SharedArrays) -> None:
        """Give a worker memory, or say that it died."""
        try:
            shared_memory.send(shared, worker.pipe, worker.pid)
        except (OSError, RuntimeError):
            raise death_error(worker) from None

    def reset_timeouts(self) -> None:
        """What was waited for has come: nobody needs more time than usual, and nobody is watched."""
        self._hang_detector.reset_limits()
        self._hang_detector.stop_watching()

    def events(self, pending: list[PoolWorker], alone: bool = False, seconds: float = LOOK_SECONDS) -> list[Event]:
        """Sleep until something happens, or for ``seconds``, a second at most. Kill a ``pending`` worker that hangs.

        ``alone``: read only the pipes of ``pending``; other replies belong to other callers.
        """
        events: list[Event] = []
        dead: set[int] = set()
        for w, speaks in self._waiter.woken(pending, alone, min(seconds, LOOK_SECONDS)):
            if w.index in dead or w.end is not None:  # its pipe and its process end together
                continue
            limit = self._hang_detector.limit(w.index)
            try:
                if speaks or w.pipe.poll():
                    events.append((w, pipes.receive(w.pipe, limit)))
                    continue
            except pipes.PeerStalled:
                events.append((w, self.kill_hung_worker(w, limit, self._hang_detector.flag)))
                continue
            except (EOFError, OSError):
                pass
            else:
                if w.process.is_alive():
                    continue
            dead.add(w.index)
            events.append((w, death_error(w)))
        if not events:
            for w in pending:
                if w.end is not None:
                    events.append((w, w.end))
                elif self._hangs(w):
                    events.append(
                        (w, self.kill_hung_worker(w, self._hang_detector.limit(w.index), self._hang_detector.flag))
                    )
                    self._hang_detector.double_limit(w.index)
        return events

    def _hangs(self, worker: PoolWorker) -> bool:
        return self._hang_detector.is_hung(
            worker.index, None if self.heartbeat_of is None else self.heartbeat_of(worker)
        )

    def kill_hung_worker(self, worker: PoolWorker, seconds: float, flag: str) -> WorkerDied:
        """Kill a worker that hangs."""
        silence = f"gave no sign of life for {seconds:g} s ({flag})"
        error = WorkerDied(f"the {worker} (pid {worker.pid}) {silence} and was killed")
        self._waiter.forget(worker)
        kill([worker])
        worker.end = error
        return error

    def close(self) -> None:
        """Stop the workers: ask, wait a little, then kill. May be called twice."""
        self._waiter.close()
        self._finalizer()
        self.heartbeat_of = None  # it may hold our owner, and that one the memory


class _Waiter:
    """Sleeps until a pipe has something to read or a process has ended."""

    def __init__(self) -> None:
        self._selector = None if sys.platform == "win32" else selectors.DefaultSelector()
        self._watched: dict[int, tuple[Any, Any]] = {}

    def add(self, w: PoolWorker) -> None:
        self._watched[w.index] = w.pipe, w.process.sentinel
        if self._selector is not None:
            self._selector.register(w.pipe, selectors.EVENT_READ, (w, True))
            self._selector.register(w.process.sentinel, selectors.EVENT_READ, (w, False))

    def forget(self, w: PoolWorker) -> None:
        for watched in self._watched.pop(w.index, ()):
            if self._selector is not None:
                self._selector.unregister(watched)

    def close(self) -> None:
        if self._selector is not None:
            self._selector.close()

    def woken(self, pending: list[PoolWorker], alone: bool, seconds: float) -> list[tuple[PoolWorker, bool]]:
        """Workers that said something (True) or may have ended; those in ``pending`` if nothing happened for a while.

        A worker's death can go unnoticed if a child of its env holds its descriptors: hence the while.
        """
        if self._selector is not None and not alone:
            found = [key.data for key, _ in self._selector.select(seconds)]
            return found or [(w, False) for w in pending]
        some = [w for w in pending if w.index in self._watched][:WINDOWS_WAITS]  # all must answer: any subset will do
        objects = connection.wait([o for w in some for o in (w.pipe, w.process.sentinel)], seconds)
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
        workers = [w for w in workers if w.end is None]
        for w in workers:
            with contextlib.suppress(OSError):
                if sys.platform != "win32":
                    os.set_blocking(w.pipe.fileno(), False)  # one that reads no more must not hold us up
                w.pipe.send_bytes(worker_bootstrap.CLOSE)
        for w in workers:
            connection.wait([w.process.sentinel], max(0.0, deadline - time.monotonic()))
    finally:
        kill(workers)


def kill(workers: Sequence[PoolWorker]) -> None:
    """End worker processes at once, whatever they are doing. They may have ended, or been killed, before."""
    workers = [w for w in workers if w.end is None]
    orphan_reaper.end(w.pid for w in workers)  # now: their numbers are nobody else's until they are joined
    for w in workers:
        if w.process.is_alive():
            w.process.kill()
    for w in workers:
        w.end = WorkerDied(f"the {w} (pid {w.pid}) was ended")
        w.process.join(_CLOSE_SECONDS)
        w.pipe.close()
        with contextlib.suppress(ValueError):  # still alive: nothing more can be done
            w.process.close()


def death_error(w: PoolWorker) -> WorkerDied:
    """What to say about a worker that ended by itself."""
    if w.end is not None:
        return w.end
    w.process.join(1.0)
    code = w.process.exitcode
    orphan_reaper.end([w.pid])
    how = f"exited with code {code}"
    if code is not None and code < 0:
        known = {number.value: number.name for number in signal.Signals}
        how = f"was killed by {known.get(-code, f'signal {-code}')}"
    memory = ", or the system did for want of memory" if code == -getattr(signal, "SIGKILL", 9) else ""
    error = WorkerDied(
        f"the {w} (pid {w.pid}) {how} without a word: the env, or a library under it, ended the process{memory}. "
        "To see where: python -X faulthandler -m corral ... --backend serial --n-envs 1"
    )
    error.by_signal = code is None or code < 0 or code == _UNKNOWN_CODE
    return error


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
