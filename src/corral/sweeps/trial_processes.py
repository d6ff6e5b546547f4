"""Jobs: processes that run the trials of a sweep side by side, each with a share of the cores.

A job reads requests from its standard input and writes events to its standard output. What its envs print goes to a log
file. A job ends when its input ends, so that it never outlives the sweep.
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
from corral.core.machine import CORES_VARIABLE
from corral.core.stdio import tolerate_closed_stdout
from corral.sweeps.trial import Outcome, TrialProgress, TrialRequest, run_trial
from corral.training.signals import Interrupted, SignalHandler

__all__ = ["Event", "Job", "ProcessExited", "serve"]

_COMMAND = "from corral.sweeps.trial_processes import serve; serve()"
_CLOSE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class ProcessExited:
    """The process of a job has ended."""

    exit_code: int


Event = TrialProgress | Outcome | ProcessExited
"""What a job reports. After ``TrialProgress`` it waits for ``Job.answer``."""


class Job:
    """A process that runs trials one after the other."""

    def __init__(self, cores: int, log: Path, events: queue.Queue[tuple[Job, Event]]) -> None:
        self.label: str | None = None
        """The label of the trial that it runs; None if it is idle."""
        with os.fdopen(open_regular(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab") as file:
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-c", _COMMAND],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=file,
                    env={**os.environ, CORES_VARIABLE: str(cores)},
                    start_new_session=True,  # a terminal sends Ctrl-C to the whole group; only the sweep handles it
                )
            except OSError as error:
                raise CorralError(f"cannot start a process for trials: {error.strerror or error}") from None
        self._send(sys.path)
        threading.Thread(target=self._forward_events, args=(events,), name="sweep-job", daemon=True).start()

    def begin(self, trial: TrialRequest) -> None:
        """Start a trial; the job must be idle."""
        self.label = trial.label
        self._send(trial)

    def answer(self, prune: bool) -> None:
        """Answer a ``TrialProgress`` event: let the trial continue, or prune it."""
        self._send(prune)

    def interrupt(self) -> None:
        """Ask the process to save its trial and to exit; on Windows, which has no SIGTERM, kill it."""
        if sys.platform == "win32":
            self._process.kill()
        else:
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the process."""
        self._process.kill()

    def close(self) -> None:
        """End the process, which should be idle or have exited, and wait for it."""
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
        """Send a message to the process; it is pickled twice, so that reading it is not yet loading it."""
        with contextlib.suppress(OSError):  # the process has exited, which is reported as an event
            pickle.dump(cloudpickle.dumps(message), self._input)
            self._input.flush()

    def _forward_events(self, events: queue.Queue[tuple[Job, Event]]) -> None:
        """Put what the process reports into the queue, and at the end its exit."""
        assert self._process.stdout is not None
        with contextlib.suppress(EOFError, OSError, pickle.UnpicklingError):
            while True:
                events.put((self, pickle.load(self._process.stdout)))
        events.put((self, ProcessExited(self._process.wait())))


def serve() -> None:
    """Run trials until the sweep ends; the main function of a job's process."""
    inbox, outbox = _take_standard_streams()
    tolerate_closed_stdout()
    sys.path[:] = pickle.loads(pickle.load(inbox))
    messages: queue.Queue[Any] = queue.Queue()
    threading.Thread(target=_read_messages, args=(inbox, messages), name="sweep-messages", daemon=True).start()

    def on_progress(progress: TrialProgress) -> bool:
        _write_event(outbox, progress)
        return bool(messages.get())

    with SignalHandler() as interrupts:
        while (trial := messages.get()) is not None:
            if isinstance(trial, Exception):
                _write_event(outbox, Outcome("failed", error=f"its process could not load the trial: {trial!r}"))
                continue
            try:
                with interrupts.interruptible():
                    outcome = run_trial(trial, on_progress)
            except Interrupted as error:
                os._exit(error.exit_code)  # the trial is saved; threads and envs end with the process
            _write_event(outbox, outcome)


def _take_standard_streams() -> tuple[IO[bytes], IO[bytes]]:
    """Return files for this process's input and output; from then on envs read nothing and print to the log."""
    inbox, outbox = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    return inbox, outbox


def _read_messages(inbox: IO[bytes], messages: queue.Queue[Any]) -> None:
    """Put what the sweep sends into the queue; exit when the input ends, because then the sweep has ended."""
    while True:
        try:
            data = pickle.load(inbox)
        except (EOFError, OSError):
            os._exit(1)
        try:
            messages.put(pickle.loads(data))
        except Exception as error:  # an env or a network that cannot be imported in this process
            messages.put(error)


def _write_event(outbox: IO[bytes], event: Event) -> None:
    try:
        pickle.dump(event, outbox)
        outbox.flush()
    except OSError:
        os._exit(1)  # the sweep has ended
