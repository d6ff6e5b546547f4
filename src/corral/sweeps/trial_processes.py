"""Several trials at once, each in a process of its own that leaves the others their share of the cores.

A job is told what to do over its standard input and answers over its standard output; whatever its envs print goes to a
log. It ends when its input does, so that it never outlives the sweep, however that ends.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import cloudpickle

from corral.core.errors import CorralError
from corral.core.files import open_regular
from corral.core.machine import CORES
from corral.core.stdio import tolerate_closed_stdout
from corral.sweeps.trial import Outcome, TrialRequest, run_trial
from corral.training.signals import Interrupted, Interrupts

__all__ = ["Event", "Iteration", "Job", "ProcessExited", "serve"]

_START = "from corral.sweeps.trial_processes import serve; serve()"
_CLOSE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Iteration:
    """A job's trial made an iteration, and waits to hear whether it may go on."""

    seed_index: int
    share: float
    reward: float | None


@dataclass(frozen=True, slots=True)
class ProcessExited:
    """A job's process is no more."""

    exit_code: int


Event = Iteration | Outcome | ProcessExited


class Job:
    """A process that carries out trials, one after the other."""

    def __init__(self, cores: int, log: Path, events: queue.Queue[tuple[Job, Event]]) -> None:
        self.label: str | None = None
        """Of the trial that it works at."""
        with os.fdopen(open_regular(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab") as file:
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-c", _START],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=file,
                    env={**os.environ, CORES: str(cores)},
                    start_new_session=True,  # Ctrl-C reaches a whole group: here the sweep alone decides
                )
            except OSError as error:
                raise CorralError(f"a job could not be started: {error.strerror or error}") from None
        self._send(sys.path)
        threading.Thread(target=self._listen, args=(events,), name="sweep-job", daemon=True).start()

    def begin(self, order: TrialRequest) -> None:
        """Give it a trial."""
        self.label = order.label
        self._send(order)

    def answer(self, give_up: bool) -> None:
        """Let the trial go on, or not."""
        self._send(give_up)

    def interrupt(self) -> None:
        """Ask it to save what it has and end, where processes can be asked."""
        if sys.platform == "win32":
            self._process.kill()
        else:
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()

    def close(self) -> None:
        """End it, unless it has ended; it should have nothing to do."""
        self._send(None)
        with contextlib.suppress(OSError):
            self._input.close()
        try:
            self._process.wait(_CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    @property
    def _input(self) -> IO[bytes]:
        assert self._process.stdin is not None
        return self._process.stdin

    def _send(self, message: Any) -> None:
        with contextlib.suppress(OSError):  # it ended, which is told as an event
            pickle.dump(cloudpickle.dumps(message), self._input)  # twice, so that it can be read without being opened
            self._input.flush()

    def _listen(self, events: queue.Queue[tuple[Job, Event]]) -> None:
        assert self._process.stdout is not None
        with contextlib.suppress(EOFError, OSError, pickle.UnpicklingError):
            while True:
                events.put((self, pickle.load(self._process.stdout)))
        events.put((self, ProcessExited(self._process.wait())))


def serve() -> None:
    """Main function of a job."""
    inbox, outbox = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    tolerate_closed_stdout()
    sys.path[:] = pickle.loads(pickle.load(inbox))
    orders: queue.Queue[Any] = queue.Queue()
    threading.Thread(target=_read, args=(inbox, orders), name="orders", daemon=True).start()

    def listener(seed_index: int, share: float, reward: float | None) -> bool:
        _write(outbox, Iteration(seed_index, share, reward))
        return bool(orders.get())

    with Interrupts() as interrupts:
        while (order := orders.get()) is not None:
            if isinstance(order, Exception):
                _write(outbox, Outcome("failed", error=f"a job could not read its order: {order!r}"))
                continue
            try:
                with interrupts.allowed():
                    outcome = run_trial(order, listener)
            except Interrupted as error:
                os._exit(error.exit_code)  # everything is saved; threads and envs end with us
            _write(outbox, outcome)


def _read(inbox: IO[bytes], orders: queue.Queue[Any]) -> None:
    """Pass on what the sweep says; when it says no more, it is gone, and so are we."""
    while True:
        try:
            data = pickle.load(inbox)
        except (EOFError, OSError):
            os._exit(1)
        try:
            orders.put(pickle.loads(data))
        except Exception as error:  # an env or network that cannot be imported here
            orders.put(error)


def _write(outbox: IO[bytes], message: Event) -> None:
    try:
        pickle.dump(message, outbox)
        outbox.flush()
    except OSError:
        os._exit(1)  # nobody listens
