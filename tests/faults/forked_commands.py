"""Runs many ``corral`` commands in little time: each in a fork of one process that has imported everything.

Run as a module, this is that process. It reads one request per line and answers with the exit code of the command.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
MAX_MEMORY = 3 << 30
"""Bytes of private memory that a command may use, so that one that reads without limit fails."""
_IMPORTED = (
    *("corral.cli.train", "corral.cli.eval_play", "corral.cli.recipes", "corral.cli.bench", "corral.sweeps.api"),
    *("corral.reporting.tensorboard", "tensorboard.summary.writer.record_writer", "gymnasium.envs.classic_control"),
)


@dataclass(frozen=True)
class CommandResult:
    """Exit code and output of a command."""

    code: int
    """The exit code; negative for the signal that killed it."""
    out: str
    err: str
    timed_out: bool

    def __str__(self) -> str:
        timed_out = " (killed after its time-out)" if self.timed_out else ""
        return f"exit code {self.code}{timed_out}\n--- stdout\n{self.out[-2000:]}\n--- stderr\n{self.err[-4000:]}"


class ForkedCommands:
    """Runs ``corral`` commands, one at a time."""

    def __init__(self) -> None:
        from tests.faults.harness import environment  # the process that forks commands does not need it

        self._n_requests = 0
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.forked_commands"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=environment(),
        )

    def run(self, arguments: Sequence[str], cwd: Path, logs: Path, seconds: float = 100.0) -> CommandResult:
        """Run one command in a directory; its output goes to two files in ``logs``."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._n_requests += 1
        request = {
            "arguments": list(arguments),
            "cwd": str(cwd),
            "logs": str(logs),
            "seconds": seconds,
            "number": self._n_requests,
        }
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        number = 0
        while number != self._n_requests:  # skip answers that an interrupted test did not read
            number, code, timed_out = json.loads(self._process.stdout.readline())
        out, err = ((logs / name).read_text(errors="replace") for name in ("out", "err"))
        return CommandResult(code, out, err, timed_out)

    def close(self) -> None:
        """End the process that forks the commands."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def _serve() -> None:
    """Import everything, then run a command for each line of stdin."""
    import torch

    for name in _IMPORTED:
        importlib.import_module(name)
    torch.set_num_threads(1)
    sys.path.remove(str(ROOT))  # `python -m` added it, and PYTHONPATH has it, too
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            _become_command(request)
        answers.write(json.dumps((request["number"], *_wait(child, request["seconds"]))) + "\n")
        answers.flush()


def _wait(child: int, seconds: float) -> tuple[int, bool]:
    """Wait for a command, kill it after ``seconds``, and return its exit code and whether it was killed."""
    deadline = time.monotonic() + seconds
    pause, timed_out = 0.002, False
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)  # kill its remaining child processes
            return os.waitstatus_to_exitcode(status), timed_out
        if time.monotonic() > deadline and not timed_out:
            timed_out = True
            os.killpg(child, signal.SIGKILL)
        time.sleep(pause)
        pause = min(0.05, pause * 1.5)


def _become_command(request: dict) -> None:
    """Run the command in this process, which is the fork, and exit."""
    code = 1
    try:
        os.setsid()
        os.chdir(request["cwd"])
        devnull = os.open(os.devnull, os.O_RDONLY)
        os.dup2(devnull, 0)
        for number, name in ((1, "out"), (2, "err")):
            file = os.open(Path(request["logs"]) / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            os.dup2(file, number)
            os.close(file)
        resource.setrlimit(resource.RLIMIT_DATA, (MAX_MEMORY, MAX_MEMORY))
        from corral.cli.main import main

        try:
            code = main(request["arguments"])
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    _serve()
