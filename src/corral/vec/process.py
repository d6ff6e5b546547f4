"""Envs in worker processes, several in each. Arrays are shared; the pipes carry one byte per step and worker.

The parent sleeps until a worker answers or dies, whichever comes first: it waits on pipes and process sentinels
together, so a dead worker is an error at once and never a hang.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import multiprocessing
import os
import pickle
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
import gymnasium as gym

from corral.core.envs import EnvFactory
from corral.core.errors import UsageError, WorkerDied
from corral.core.machine import available_cores
from corral.core.types import InfoSums
from corral.vec import shared_memory, worker
from corral.vec.api import CallState, CorralVectorEnv, EnvFacts, InfoMode, InfoRow, StepArrays, merge_sums

__all__ = ["ProcessVectorEnv", "StartMethod", "descriptors_needed", "split_envs"]

StartMethod = Literal["auto", "spawn", "forkserver", "fork"]
_CLOSE_SECONDS = 3.0
_DESCRIPTORS, _DESCRIPTORS_PER_WORKER = 64, 8
_LOOK_SECONDS = 1.0
_WINDOWS_WAITS = 30  # workers that one wait can watch: Windows allows 63 handles, and each has two


@dataclass(frozen=True, slots=True)
class _Worker:
    process: Any  # BaseProcess; its sentinel is a descriptor on POSIX, a handle on Windows
    pid: int
    pipe: connection.Connection
    envs: range

    def __str__(self) -> str:
        return f"worker of envs {self.envs.start} to {self.envs.stop - 1}"


class ProcessVectorEnv(CorralVectorEnv):
    """N envs in ``num_workers`` processes."""

    def __init__(
        self,
        factory: EnvFactory,
        n_envs: int,
        *,
        num_workers: int | None = None,
        start_method: StartMethod = "auto",
        seed: int | None = None,
        infos: InfoMode = "full",
    ) -> None:
        shares = split_envs(n_envs, num_workers or min(n_envs, available_cores()))
        _check_descriptors(len(shares))
        self._workers: list[_Worker] = []
        self._finalizer = Finalize(self, _stop_workers, (self._workers,), exitpriority=100)
        self.state = CallState.FAILED
        try:
            self._start(factory, shares, start_method, seed, infos)
            self._waiter = _Waiter(self._workers)
            facts: list[EnvFacts] = [cloudpickle.loads(reply[1:]) for reply in self._replies(self._workers)]
            for other in facts[1:]:
                facts[0].check_same(other)
            super().__init__(facts[0], n_envs)
            self._share_memory()
        except BaseException as error:
            self._finalizer()
            if isinstance(error, WorkerDied):
                error.exit_code = 2  # before its first step: a wrong set-up
            raise

    def _start(
        self, factory: EnvFactory, shares: list[range], start_method: StartMethod, seed: int | None, infos: InfoMode
    ) -> None:
        context = multiprocessing.get_context(_start_method(start_method))
        in_main_thread = threading.current_thread() is threading.main_thread()
        with _bare_main(context):
            for envs in shares:
                setup = worker.WorkerSetup(
                    factory, envs.start, len(envs), seed, infos, os.getpid(), in_main_thread, dict(os.environ)
                )
                ours, theirs = context.Pipe()
                inherited = [w.pipe for w in self._workers] + [ours] if context.get_start_method() == "fork" else []
                args = (theirs, inherited, cloudpickle.dumps(setup))
                process = context.Process(target=worker.run, args=args, name=f"corral-{envs.start}")  # type: ignore[attr-defined]
                process.start()
                theirs.close()
                self._workers.append(_Worker(process, process.pid, ours, envs))

    def _share_memory(self) -> None:
        named = StepArrays.named(self.layout, self.codec, self.num_envs)
        specs = [shared_memory.ArraySpec(name, shape, dtype.str) for name, (shape, dtype) in named.items()]
        shared = shared_memory.create(specs)
        self.arrays = StepArrays.of(shared.arrays)
        for w in self._workers:
            shared_memory.send(shared, w.pipe, w.pid)
        self._replies(self._workers)
        shared.close()

    # ---- the contract ----------------------------------------------------------------------------------------

    def _reset(self, seeds: list[int | None], options: list[dict[str, Any] | None]) -> list[InfoRow]:
        def message(w: _Worker) -> bytes:
            part = slice(w.envs.start, w.envs.stop)
            return worker.RESET + bytes(cloudpickle.dumps(worker.ResetRequest(seeds[part], options[part])))

        replies: list[worker.ResetReply] = self._ask(message)
        if len({reply.has_masks for reply in replies}) > 1:
            raise UsageError("some envs offer action masks and some do not; all or none should")
        self.has_masks = replies[0].has_masks
        return [row for w, reply in zip(self._workers, replies, strict=True) for row in _shifted(reply.rows, w)]

    def send(self) -> None:
        """Tell every worker to step."""
        self._expect(CallState.IDLE, "step")
        self.state = CallState.FAILED
        for w in self._workers:
            self._post(w, worker.STEP)
        self.state = CallState.STEPPING

    def recv(self) -> list[InfoRow]:
        """Wait until every worker has stepped."""
        self._expect(CallState.STEPPING, "finish a step of")
        self.state = CallState.FAILED
        rows: list[InfoRow] = []
        for w, reply in zip(self._workers, self._replies(self._workers), strict=True):
            if reply != worker.OK:
                rows += _shifted(pickle.loads(reply[1:]), w)
        self.state = CallState.IDLE
        return rows

    def apply(self, function: Callable[[gym.Env[Any, Any]], Any], envs: Sequence[int] | None = None) -> list[Any]:
        """Send ``function`` (by cloudpickle) to the envs' workers and call it there."""
        self._expect(CallState.IDLE, "use")
        wanted = list(range(self.num_envs) if envs is None else envs)
        asked = [w for w in self._workers if any(i in w.envs for i in wanted)]

        def message(w: _Worker) -> bytes:
            theirs = [i - w.envs.start for i in wanted if i in w.envs]
            return worker.APPLY + bytes(cloudpickle.dumps(worker.ApplyRequest(function, theirs)))

        results: dict[int, Any] = {}
        for w, values in zip(asked, self._ask(message, asked, fatal=False), strict=True):
            results.update(zip((i for i in wanted if i in w.envs), values, strict=True))
        return [results[i] for i in wanted]

    def drain_infos(self) -> dict[str, InfoSums]:
        """Collect the sums of numbers in infos, by env."""
        return merge_sums([env for part in self._ask(lambda w: worker.DRAIN) for env in part])

    def close_extras(self, **kwargs: Any) -> None:
        """Stop the workers: ask, wait a little, then kill."""
        self.state = CallState.CLOSED
        self._waiter.close()
        self._finalizer()

    @property
    def pids(self) -> list[int]:
        """The workers' process ids."""
        return [w.pid for w in self._workers]

    # ---- talking to workers ----------------------------------------------------------------------------------

    def _ask(
        self, message: Callable[[_Worker], bytes], workers: list[_Worker] | None = None, fatal: bool = True
    ) -> list[Any]:
        workers = self._workers if workers is None else workers
        messages = [message(w) for w in workers]
        self.state = CallState.FAILED  # until every reply has been read
        for w, words in zip(workers, messages, strict=True):
            self._post(w, words)
        replies = self._replies(workers, all_first=not fatal)
        errors = [worker.error_from(reply[1:]) for reply in replies if reply[:1] == worker.ERROR]
        self.state = CallState.IDLE
        if errors:
            raise errors[0]
        return [pickle.loads(reply[1:]) for reply in replies]

    def _post(self, w: _Worker, message: bytes) -> None:
        try:
            w.pipe.send_bytes(message)
        except OSError:
            raise _died(w) from None

    def _replies(self, workers: list[_Worker], all_first: bool = False) -> list[bytes]:
        """One reply of each worker. An error is raised as soon as it is seen; with ``all_first``, it is a reply too."""
        replies: dict[int, bytes] = {}
        while len(replies) < len(workers):
            for w in self._waiter.woken([w for w in workers if id(w) not in replies]):
                try:
                    if id(w) not in replies and w.pipe.poll():
                        replies[id(w)] = reply = w.pipe.recv_bytes()
                        if not all_first and reply[:1] == worker.ERROR:
                            raise worker.error_from(reply[1:])
                    elif not w.process.is_alive():
                        raise _died(w)
                except (EOFError, OSError):
                    raise _died(w) from None
        return [replies[id(w)] for w in workers]


class _Waiter:
    """Sleeps until a pipe has something to read or a process has ended."""

    def __init__(self, workers: list[_Worker]) -> None:
        self._selector: selectors.BaseSelector | None = None
        if sys.platform != "win32":
            self._selector = selectors.DefaultSelector()
            for w in workers:
                self._selector.register(w.pipe, selectors.EVENT_READ, w)
                self._selector.register(w.process.sentinel, selectors.EVENT_READ, w)

    def close(self) -> None:
        if self._selector is not None:
            self._selector.close()

    def woken(self, pending: list[_Worker]) -> list[_Worker]:
        """Workers that said something or ended; those in ``pending`` if nothing happened for a while.

        A worker's death can go unnoticed if a child of its env holds its descriptors: hence the while.
        """
        if self._selector is not None:
            events = self._selector.select(_LOOK_SECONDS)
            return list({id(key.data): key.data for key, _ in events}.values()) or pending
        some = pending[:_WINDOWS_WAITS]  # all must answer, so any subset will do
        objects = connection.wait([o for w in some for o in (w.pipe, w.process.sentinel)], _LOOK_SECONDS)
        return [w for w in some if w.pipe in objects or w.process.sentinel in objects] or pending


def _shifted(rows: list[InfoRow], w: _Worker) -> list[InfoRow]:
    """A worker counts its envs from 0."""
    return [dataclasses.replace(row, env=row.env + w.envs.start) for row in rows]


def split_envs(n_envs: int, num_workers: int) -> list[range]:
    """Contiguous shares of the envs, as even as they can be."""
    base, extra = divmod(n_envs, num_workers)
    bounds = [0]
    for i in range(num_workers):
        bounds.append(bounds[-1] + base + (i < extra))
    return [range(a, b) for a, b in itertools.pairwise(bounds) if b > a]


def _stop_workers(workers: list[_Worker]) -> None:
    """Ask nicely, then kill, whatever interrupts: ``terminate`` would never end a stopped process."""
    try:
        for w in workers:
            with contextlib.suppress(OSError):
                w.pipe.send_bytes(worker.CLOSE)
        deadline = time.monotonic() + _CLOSE_SECONDS
        for w in workers:
            w.process.join(max(0.0, deadline - time.monotonic()))
    finally:
        for w in workers:
            if w.process.is_alive():
                w.process.kill()
        for w in workers:
            w.process.join(_CLOSE_SECONDS)
            w.pipe.close()
            with contextlib.suppress(ValueError):  # still alive: nothing more can be done
                w.process.close()


def _died(w: _Worker) -> WorkerDied:
    w.process.join(1.0)
    code = w.process.exitcode
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
def _bare_main(context: Any) -> Iterator[None]:
    """Start workers without the user's ``__main__``.

    The factory travels by value, so no worker needs to import the script that started it: scripts without a
    ``__main__`` guard and notebooks just work. The fork server is told to load what every worker needs.
    """
    if context.get_start_method() == "forkserver":
        context.set_forkserver_preload([worker.__name__])
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
