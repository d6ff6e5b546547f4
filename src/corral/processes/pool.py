"""A pool of worker processes and the pipes to them: starts, watches, restarts and stops them, whatever their work is.

The parent waits for pipes and process sentinels together. So it wakes when a worker replies or dies, and the death of a
worker is an event at once, never a hang.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import connection
from multiprocessing.util import Finalize
from typing import Any

import cloudpickle

from corral.core.errors import UsageError, WorkerDied
from corral.core.stdio import reserve_standard_descriptors
from corral.processes import orphan_reaper, pipes, shared_memory, worker_bootstrap
from corral.processes.hang_detector import NEVER, POLL_SECONDS, Deadline, HangDetector
from corral.processes.pool_worker import CLOSE_SECONDS, PoolWorker, Waiter, death_error, kill
from corral.processes.recovery_config import RecoveryConfig
from corral.processes.start_methods import StartMethod, hide_main_module, usable_start_method

__all__ = [
    "Event",
    "OnDeath",
    "StartMethod",
    "WorkerPool",
    "descriptors_needed",
    "split_envs",
]

_MIN_RESTART_TIMEOUT, _TIMES_SLOWEST = 5.0, 10.0  # a restart may take 10 times the slowest start, at least 5 s
_DESCRIPTORS, _DESCRIPTORS_PER_WORKER = 64, 8
_START_ATTEMPTS, _START_PAUSE = 5, 0.05  # the pause before the second attempt, in seconds; it doubles each time


Event = tuple[PoolWorker, bytes | WorkerDied]
"""A worker with a message that it sent, or with the error that describes its death."""

OnDeath = Callable[[PoolWorker, WorkerDied], bytes | None]
"""Restarts a worker that died or hung. Returns the new process's reply, or None if the reply will follow."""


class WorkerPool:
    """Processes that run ``serve(pipe, setup)``, one for each range of envs.

    ``setup_of(index, envs)`` returns the setup of each worker. ``heartbeat_of`` returns a worker's heartbeat, a value
    that changes while it makes progress (see ``HangDetector``). A fork server that is not running yet imports
    ``preload``, by default the module of ``serve``, once for all workers.
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
        reserve_standard_descriptors()  # before this process opens anything
        _check_descriptors(len(shares))
        self.workers: list[PoolWorker] = []
        self.heartbeat_of: Callable[[PoolWorker], Any] | None = None
        self._serve, self._setup_of, self._seed = serve, setup_of, seed
        self._preload = preload or serve.__module__
        self._recovery = recovery or RecoveryConfig()
        self._hang_detector = HangDetector(self._recovery.step_timeout, "--step-timeout")
        self._slowest_start: dict[str, float] = {}  # by phase of the start-up, in seconds
        self._waiter = Waiter()
        self._stop_all = Finalize(self, _stop_workers, (self.workers,), exitpriority=100)
        try:
            self._context: Any = multiprocessing.get_context(usable_start_method(start_method))
            with hide_main_module(self._context, self._preload):
                for index, envs in enumerate(shares):
                    self.workers.append(self._start(index, envs))
                    self._waiter.add(self.workers[-1])
        except BaseException as error:
            self.close()
            if isinstance(error, WorkerDied):
                error.exit_code = 2
            raise

    def _start(self, index: int, envs: range) -> PoolWorker:
        first_env = envs.start if envs else 0
        is_forkserver = self._context.get_start_method() == "forkserver"
        args = worker_bootstrap.BootstrapArgs(
            serve=self._serve,
            setup=self._setup_of(index, envs),
            seed=self._seed,
            first_env=first_env,
            parent_pid=os.getpid(),
            use_death_signal=is_forkserver or threading.current_thread() is threading.main_thread(),
            environ=os.environ | orphan_reaper.process_tag(),
        )
        try:
            parent_pipe, worker_pipe = self._context.Pipe()
        except OSError as error:
            raise WorkerDied(f"a worker could not be started: {error}") from None
        inherited = []
        if self._context.get_start_method() == "fork":
            inherited = [*(w.pipe for w in self.workers if not w.pipe.closed), parent_pipe]
        try:
            process = self._start_process((worker_pipe, inherited, cloudpickle.dumps(args)), f"corral-{first_env}")
        except WorkerDied:
            parent_pipe.close()
            raise
        finally:
            worker_pipe.close()
        orphan_reaper.watch(process.pid)
        return PoolWorker(index, process, process.pid, parent_pipe, envs)

    def _start_process(self, args: tuple[Any, ...], name: str) -> Any:
        """Start a process, with several attempts if it or its fork server is killed before it has read its arguments.

        The system may report the end of a fork server only a moment after its socket is closed, and until then the
        server counts as running: hence the pauses.
        """
        for attempt in range(1, _START_ATTEMPTS + 1):
            process = self._context.Process(target=worker_bootstrap.run, args=args, name=name)
            try:
                process.start()
                return process
            except (OSError, EOFError) as error:  # no memory or no process numbers, here or in the fork server
                killed = isinstance(error, ConnectionError | EOFError)
                if not killed or attempt == _START_ATTEMPTS:
                    raise WorkerDied(f"a worker could not be started: {error or type(error).__name__}") from None
                time.sleep(_START_PAUSE * 2 ** (attempt - 1))
        raise AssertionError

    def restart(self, worker: PoolWorker, after_start: Callable[[], object] = lambda: None) -> bytes:
        """Kill a worker and start another process in its place; return its first reply.

        ``after_start`` is called when the old process has ended and the new one has started, but does not yet have the
        shared memory.
        """
        self._waiter.forget(worker)
        kill([worker])
        self._hang_detector.forget(worker.index)
        with hide_main_module(self._context, self._preload):  # signals wait: the new process must not be forgotten
            started = self._start(worker.index, worker.envs)
            worker.process, worker.pid, worker.pipe, worker.end = started.process, started.pid, started.pipe, None
        self._waiter.add(worker)
        after_start()
        return self.await_startup([worker], "envs")[0]

    @property
    def pids(self) -> list[int]:
        """The process ids of the workers."""
        return [w.pid for w in self.workers]

    def post(self, worker: PoolWorker, message: bytes) -> None:
        """Send a message to a worker; raise ``WorkerDied`` if it is dead or does not read."""
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
        *,
        errors_are_replies: bool = False,
        on_death: OnDeath | None = None,
        no_timeout: bool = False,
        so_far: dict[int, bytes] | None = None,
        deadline: Deadline = NEVER,
    ) -> list[bytes]:
        """Wait for one reply of each worker (default: of all) and return the replies.

        An error that a worker sends is raised at once, except where ``errors_are_replies``. ``on_death`` is called for
        a worker that died or hung; without it, the death is raised. ``no_timeout``: no worker counts as hung, however
        long it takes. After the ``deadline`` a ``TimeoutError`` is raised; ``so_far`` then holds the replies for the
        next call.
        """
        only_these = workers is not None
        workers, replies = self.workers if workers is None else workers, {} if so_far is None else so_far
        with self.watching(math.inf if no_timeout else None):
            while pending := [w for w in workers if w.index not in replies]:
                for w, event in self.events(pending, only_these, deadline.poll_seconds()):
                    if isinstance(event, WorkerDied):
                        if on_death is None:
                            raise event
                        replies.pop(w.index, None)  # the new process replies again
                        if (reply := on_death(w, event)) is not None:
                            replies[w.index] = reply
                    elif event != worker_bootstrap.WAKE:
                        if not errors_are_replies and event[:1] == worker_bootstrap.ERROR:
                            raise worker_bootstrap.unpickle_error(event[1:])
                        replies[w.index] = event
        return [replies[w.index] for w in workers]

    def await_startup(self, workers: Sequence[PoolWorker], phase: str, on_death: OnDeath | None = None) -> list[bytes]:
        """Wait until new workers have completed a phase of their start-up; return their replies (see ``replies``)."""
        limit, began = self._recovery.start_timeout, time.monotonic()
        if phase in self._slowest_start:  # this machine's time for it is known
            limit = min(limit, max(_MIN_RESTART_TIMEOUT, _TIMES_SLOWEST * self._slowest_start[phase]))
        try:
            with self.watching(limit):
                return self.replies(workers, on_death=on_death)
        finally:
            self._slowest_start[phase] = max(self._slowest_start.get(phase, 0.0), time.monotonic() - began)

    @contextlib.contextmanager
    def watching(self, start_timeout: float | None = None) -> Iterator[None]:
        """Mark a block that waits for workers: in it, one whose heartbeat stays the same for too long counts as hung.

        The limit is the step time-out, or ``start_timeout`` seconds if that is given, for workers that are starting.
        """
        usual = self._hang_detector
        if start_timeout is not None and usual.flag != "--start-timeout":
            self._hang_detector = HangDetector(start_timeout, "--start-timeout")
        try:
            yield
        finally:
            self._hang_detector.stop_watching()
            self._hang_detector = usual

    def send_shared_memory(self, worker: PoolWorker, shared: shared_memory.SharedArrays) -> None:
        """Send shared memory to a worker; raise ``WorkerDied`` if it is dead."""
        try:
            shared_memory.send(shared, worker.pipe, worker.pid)
        except (OSError, RuntimeError):
            raise death_error(worker) from None

    def reset_timeouts(self) -> None:
        """Reset all time-outs to normal, after all workers have replied."""
        self._hang_detector.reset_limits()
        self._hang_detector.stop_watching()

    def events(
        self, pending: list[PoolWorker], only_pending: bool = False, seconds: float = POLL_SECONDS
    ) -> list[Event]:
        """Wait for messages and deaths, for ``seconds`` and at most a second; kill a ``pending`` worker that hangs.

        ``only_pending``: read only these workers' pipes; other replies belong to other callers.
        """
        events: list[Event] = []
        seen_dead: set[int] = set()
        for w, can_read in self._waiter.wait(pending, only_pending, min(seconds, POLL_SECONDS)):
            if w.index in seen_dead or w.end is not None:  # its pipe and its process end together
                continue
            if (event := self._receive(w, can_read)) is not None:
                events.append((w, event))
                if isinstance(event, WorkerDied):
                    seen_dead.add(w.index)
        return events or self._hung_workers(pending)

    def _receive(self, w: PoolWorker, can_read: bool) -> bytes | WorkerDied | None:
        """Return a worker's message, or its death; None if it is alive and has sent nothing."""
        limit = self._hang_detector.limit(w.index)
        try:
            if can_read or w.pipe.poll():
                return pipes.receive(w.pipe, limit)
        except pipes.PeerStalled:
            return self.kill_hung_worker(w, limit, self._hang_detector.flag)
        except (EOFError, OSError):
            return death_error(w)
        return None if w.process.is_alive() else death_error(w)

    def _hung_workers(self, pending: list[PoolWorker]) -> list[Event]:
        """Kill the workers that hang; return their deaths, and those of workers that were killed before."""
        events: list[Event] = []
        for w in pending:
            if w.end is not None:
                events.append((w, w.end))
            elif self._hang_detector.is_hung(w.index, None if self.heartbeat_of is None else self.heartbeat_of(w)):
                limit = self._hang_detector.limit(w.index)
                events.append((w, self.kill_hung_worker(w, limit, self._hang_detector.flag)))
                self._hang_detector.double_limit(w.index)
        return events

    def kill_hung_worker(self, worker: PoolWorker, seconds: float, flag: str) -> WorkerDied:
        """Kill a worker that hangs, and return the error that says so."""
        error = WorkerDied(
            f"the {worker} (pid {worker.pid}) gave no sign of life for {seconds:g} s ({flag}) and was killed"
        )
        self._waiter.forget(worker)
        kill([worker])
        worker.end = error
        return error

    def close(self) -> None:
        """Stop the workers: send a close message, wait a few seconds, then kill. May be called twice."""
        self._waiter.close()
        self._stop_all()
        self.heartbeat_of = None  # it may refer to the owner of this pool, and so to the shared memory


def split_envs(n_envs: int, num_workers: int, first_env: int = 0) -> list[range]:
    """Split the envs from ``first_env`` into contiguous ranges, as even as possible, one for each worker."""
    base, extra = divmod(n_envs, num_workers)
    bounds = [first_env]
    for i in range(num_workers):
        bounds.append(bounds[-1] + base + (i < extra))
    return [range(a, b) for a, b in itertools.pairwise(bounds) if b > a]


def _stop_workers(workers: list[PoolWorker]) -> None:
    """Send a close message, then kill, whatever interrupts: ``terminate`` would never end a stopped process."""
    deadline = time.monotonic() + CLOSE_SECONDS
    try:
        workers = [w for w in workers if w.end is None]
        for w in workers:
            with contextlib.suppress(OSError):
                if sys.platform != "win32":
                    os.set_blocking(w.pipe.fileno(), False)  # a worker that no longer reads must not block us
                w.pipe.send_bytes(worker_bootstrap.CLOSE)
        for w in workers:
            connection.wait([w.process.sentinel], max(0.0, deadline - time.monotonic()))
    finally:
        kill(workers)


def descriptors_needed(num_workers: int) -> int:
    """Estimate how many files a process with this many workers has open."""
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
