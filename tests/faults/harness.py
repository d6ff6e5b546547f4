"""Starts ``corral`` commands as processes, sends them signals, and checks invariants whenever one has ended."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

import corral
from corral.storage.checkpoint import VerifiedCheckpoint, newest_checkpoint
from corral.storage.metrics_file import read_metrics
from tests.faults.invariants import EXIT_CODES, check_checkpoint, check_messages, check_nothing_is_left, check_steps
from tests.faults.system import RUN_ID, command_line_of, process_name, processes_of, shared_memory

ROOT = Path(__file__).parents[2]
GAMES = "tests.faults.games"
WALK = f"{GAMES}:Walk"
WATCHDOG_SECONDS = 600.0
STOP_SECONDS = 60.0
"""Time in which a signal ends a run: guaranteed are 10 s; a slow machine may need six times as long."""
SETTINGS = {
    "n_envs": 4,
    "num_workers": 2,
    "backend": "worker",
    "n_steps": 32,
    "batch_size": 64,
    "n_epochs": 2,
    "timesteps": 2560,
    "checkpoint_freq": 128,
    "eval_freq": 0,
    "tensorboard": False,
    "seed": 1,
}
"""Twenty iterations of 128 steps, with a checkpoint after each."""
WORKER_SETTINGS = (
    "adaptive",
    "num_workers",
    "parallel_start_method",
    "step_timeout",
    "start_timeout",
    "max_restarts",
    "worker_max_rss",
)


class Run:
    """A run directory and the trainers that work on it one after the other."""

    def __init__(self, path: Path, env: str = WALK, **settings: Any) -> None:
        self.path, self.env = path, env
        self.settings = {**SETTINGS, **settings}
        self.trainers: list[Trainer] = []
        self.announced_step = -1
        """The step of the last checkpoint that a trainer announced as saved."""

    def train(self, *extra_arguments: str, wrap: Sequence[str] = (), check_rows: bool = True) -> Trainer:
        """Start ``corral train``; ``wrap`` is a command that runs it, such as ``prlimit``.

        ``check_rows`` is false where rows of metrics are lost, on a full disk.
        """
        arguments = ["train", self.env, *as_flags(self.settings), "--output-dir", str(self.path), *extra_arguments]
        return self._start(arguments, wrap, check_rows)

    def resume(self, *extra_arguments: str, wrap: Sequence[str] = ()) -> Trainer:
        """Start ``corral resume``."""
        arguments = ["--env", self.env] if ":" in self.env else []
        arguments += [word for hook in self.settings.get("hooks", ()) for word in ("--hook", hook)]
        return self._start(["resume", str(self.path), *arguments, *extra_arguments], wrap)

    def resume_or_train(self, *extra_arguments: str) -> Trainer:
        """Do what a user does after a crash: resume, or train again if there is no run yet."""
        return self.resume(*extra_arguments) if (self.path / "config.yaml").exists() else self.train(*extra_arguments)

    def _start(self, arguments: Sequence[str], wrap: Sequence[str], check_rows: bool = True) -> Trainer:
        self.trainers.append(Trainer(self, arguments, wrap, check_rows))
        return self.trainers[-1]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of ``metrics.jsonl``."""
        file = self.path / "metrics.jsonl"
        return read_metrics(file) if file.exists() else []

    @property
    def summary(self) -> dict[str, Any]:
        """Return the contents of ``summary.json``."""
        return dict(json.loads((self.path / "summary.json").read_text()))

    @property
    def newest(self) -> VerifiedCheckpoint | None:
        """Return the newest checkpoint that verifies."""
        return newest_checkpoint(self.path / "checkpoints")

    def undisturbed_hash(self, env: str | None = None, **changes: Any) -> str:
        """Return the hash of the weights of the same run with backend serial and without faults."""
        settings = {k: v for k, v in {**self.settings, **changes}.items() if k not in WORKER_SETTINGS}
        return _undisturbed_hash(env or self.env, json.dumps({**settings, "backend": "serial"}, sort_keys=True))


@functools.cache
def _undisturbed_hash(env: str, settings: str) -> str:
    with tempfile.TemporaryDirectory() as directory:
        result = corral.train(env, quiet=True, output_dir=f"{directory}/undisturbed", **json.loads(settings))
        return result.summary.weights_sha256


@dataclass(frozen=True)
class TrainerResult:
    """Exit code and output of a trainer."""

    code: int
    out: str
    err: str
    seconds: float
    """Seconds since the last signal to the trainer, or since its start."""

    def __str__(self) -> str:
        return f"exit code {self.code}\n--- stdout\n{self.out[-3000:]}\n--- stderr\n{self.err[-6000:]}"


class Trainer:
    """A process of ``corral train`` or ``corral resume``. ``wait`` returns its result and checks all invariants."""

    def __init__(self, run: Run, arguments: Sequence[str], wrap: Sequence[str], check_rows: bool) -> None:
        self.run, self.arguments, self._check_rows = run, list(arguments), check_rows
        self.run_id = uuid.uuid4().hex
        log = run.path.parent / f"{run.path.name}-{len(run.trainers)}"
        self._out, self._err = log.with_suffix(".out"), log.with_suffix(".err")
        self._wrapped = bool(wrap)
        self._shm = shared_memory()
        self._start_time = self._last_signal_time = time.time()
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                [*wrap, sys.executable, "-m", "corral", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=run.path.parent,
                env=environment() | {RUN_ID: self.run_id},
                start_new_session=True,  # so that a Ctrl-C can be sent to its process group, as a terminal does
            )

    # ---- observing the trainer ------------------------------------------------------------------------------------

    @property
    def pid(self) -> int:
        """Return the process id of the trainer itself, also if another command runs it."""
        if not self._wrapped:
            return self.process.pid
        trainers = [p for p in processes_of(self.run_id) if command_line_of(p)[1:3] == ["-m", "corral"]]
        return min(trainers, key=lambda p: p.create_time()).pid if trainers else self.process.pid

    @property
    def out(self) -> str:
        """Return the standard output so far."""
        return self._out.read_text(errors="replace")

    @property
    def err(self) -> str:
        """Return the standard error so far."""
        return self._err.read_text(errors="replace")

    def descendants(self) -> list[psutil.Process]:
        """Return all live child processes, and theirs."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return [p for p in psutil.Process(self.pid).children(recursive=True) if process_name(p)]
        return []

    def workers(self) -> list[psutil.Process]:
        """Return the live worker processes."""
        return [p for p in self.descendants() if process_name(p).startswith("corral-w")]

    def wait_for(self, condition: Callable[[], object], what: str = "") -> None:
        """Wait until a condition holds; fail if the trainer ends before."""
        deadline = time.monotonic() + WATCHDOG_SECONDS
        while not condition():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.kill_all()
                raise AssertionError(
                    f"the trainer ended or hung before {what or condition}: {self._ended(self.process.wait())}"
                )
            time.sleep(0.01)

    def wait_for_rows(self, count: int) -> None:
        """Wait until the run has so many rows of metrics."""
        self.wait_for(lambda: len(self.run.rows) >= count, f"{count} rows")

    # ---- signals and the end ---------------------------------------------------------------------------------------

    def signal(self, number: int, group: bool = False) -> None:
        """Send a signal to the trainer or, as a terminal does, to its process group."""
        self._last_signal_time = time.time()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number) if group else os.kill(self.pid, number)

    def kill(self) -> TrainerResult:
        """Kill the trainer with SIGKILL and check all invariants."""
        self.signal(signal.SIGKILL)
        return self.wait(-signal.SIGKILL)

    def signal_random_worker(self, number: int, rng: random.Random) -> bool:
        """Send a signal to a random worker; return False if the trainer ended before it had one."""
        while self.process.poll() is None:
            workers = self.workers()
            if workers:
                with contextlib.suppress(psutil.NoSuchProcess):
                    rng.choice(workers).send_signal(number)
                    return True
            time.sleep(0.01)
        return False

    def kill_all(self) -> None:
        """Kill every process of the run, after a test that failed."""
        for process in processes_of(self.run_id):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait()

    def wait(self, code: int | None = 0, seconds: float = WATCHDOG_SECONDS) -> TrainerResult:
        """Wait for the end with this exit code (None: any documented one) and check all invariants."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill_all()
            raise AssertionError(f"no end after {seconds} s: {self._ended(-9)}") from None
        ended = self._ended(self.process.returncode)
        assert ended.code in (EXIT_CODES if code is None else (code,)), f"expected exit code {code}: {ended}"
        check_nothing_is_left(self.run_id, self._shm)
        check_messages(ended)
        announced = re.findall(r"^checkpoint at ([\d,]+) steps", ended.out, re.MULTILINE)
        if announced:
            self.run.announced_step = int(announced[-1].replace(",", ""))
        if ended.code == 2 and not self.run.path.exists():
            self.run.announced_step = -1  # the run was refused and its directory was removed
        check_checkpoint(self.run)
        if self._check_rows:
            check_steps(self.run, since=self._start_time)
        return ended

    def _ended(self, code: int) -> TrainerResult:
        # Python may kill itself with SIGINT if that interrupted an import; shells report this as 130, too.
        return TrainerResult(
            130 if code == -signal.SIGINT else code, self.out, self.err, time.time() - self._last_signal_time
        )


def environment() -> dict[str, str]:
    """Return the environment variables of a trainer that uses the Corral and the tests of this process."""
    paths = [str(ROOT), str(Path(corral.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def as_flags(settings: dict[str, Any]) -> list[str]:
    """Return settings as command-line flags."""
    words: list[str] = []
    for name, value in settings.items():
        if name == "hooks":
            words += [word for hook in value for word in ("--hook", hook)]
            continue
        flag = name.replace("_", "-")
        match value:
            case bool():
                words.append(f"--{flag}" if value else f"--no-{flag}")
            case dict():
                words += [f"--{flag}", *(f"{k}={v}" for k, v in value.items())] if value else []
            case list() | tuple():
                words += [f"--{flag}", *map(str, value)]
            case None:
                pass
            case _:
                words += [f"--{flag}", str(value)]
    return words
