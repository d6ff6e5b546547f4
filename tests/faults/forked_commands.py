"""The command line in forked children of one process that has everything imported: many commands in little time.

Run as a module it is that process. It reads one request per line and answers with how the child ended.
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
MOST_MEMORY = 3 << 30
"""Bytes of private memory that a command may take: one that reads without bound fails rather than fill the machine."""
_IMPORTED = (
    *("corral.cli.train", "corral.cli.eval_play", "corral.cli.recipes", "corral.cli.bench", "corral.sweeps.api"),
    *("corral.reporting.tensorboard", "tensorboard.summary.writer.record_writer", "gymnasium.envs.classic_control"),
)


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    """The exit code; negative for the signal that killed it."""
    out: str
    err: str
    timed_out: bool

    def __str__(self) -> str:
        timed_out = " (killed: it took too long)" if self.timed_out else ""
        return f"exit code {self.code}{timed_out}\n--- stdout\n{self.out[-2000:]}\n--- stderr\n{self.err[-4000:]}"


class WarmCommands:
    """Runs ``corral`` commands, one at a time."""

    def __init__(self) -> None:
        import corral

        paths = [str(ROOT), str(Path(corral.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
        self._asked = 0
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.warm"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )

    def run(self, words: Sequence[str], cwd: Path, logs: Path, seconds: float = 100.0) -> Ended:
        """Run one command in a directory; its output goes to two files in ``logs``."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._asked += 1
        request = {"words": list(words), "cwd": str(cwd), "logs": str(logs), "seconds": seconds, "number": self._asked}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        number = 0
        while number != self._asked:  # a test that was interrupted left an answer unread
            number, code, timed_out = json.loads(self._process.stdout.readline())
        out, err = ((logs / name).read_text(errors="replace") for name in ("out", "err"))
        return Ended(code, out, err, timed_out)

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def _serve() -> None:
    import torch

    for name in _IMPORTED:
        importlib.import_module(name)
    torch.set_num_threads(1)
    sys.path.remove(str(ROOT))  # of `python -m`; once is enough, and PYTHONPATH has it too
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
    deadline = time.monotonic() + seconds
    pause, timed_out = 0.002, False
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)  # whatever it left behind
            return os.waitstatus_to_exitcode(status), timed_out
        if time.monotonic() > deadline and not timed_out:
            timed_out = True
            os.killpg(child, signal.SIGKILL)
        time.sleep(pause)
        pause = min(0.05, pause * 1.5)


def _become_command(request: dict) -> None:
    code = 1
    try:
        os.setsid()
        os.chdir(request["cwd"])
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        for number, name in ((1, "out"), (2, "err")):
            file = os.open(Path(request["logs"]) / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            os.dup2(file, number)
            os.close(file)
        resource.setrlimit(resource.RLIMIT_DATA, (MOST_MEMORY, MOST_MEMORY))
        from corral.cli.main import main

        try:
            code = main(request["words"])
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
