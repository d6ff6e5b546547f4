"""Starts the command line in processes of its own, disturbs it, and checks after every end what must hold then."""

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
from tests.faults.invariants import EXIT_CODES, check_checkpoint, check_nothing_is_left, check_steps, check_words
from tests.faults.system import RUN_ID, name_of, processes_of, shared_memory, words_of

ROOT = Path(__file__).parents[2]
GAMES = "tests.faults.games"
WALK = f"{GAMES}:Walk"
WATCHDOG_SECONDS = 600.0
STOP_SECONDS = 60.0
"""Within which a signal ends a run: the promise is 10, and a slow machine may need six times as long."""
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
"""Twenty iterations of 128 steps, each of them saved."""
WORKERS_ONLY = (
    "adaptive",
    "num_workers",
    "parallel_start_method",
    "step_timeout",
    "start_timeout",
    "max_restarts",
    "worker_max_rss",
)


class Run:
    """A run directory, and the trainers that work on it one after the other."""

    def __init__(self, path: Path, env: str = WALK, **settings: Any) -> None:
        self.path, self.env = path, env
        self.settings = {**SETTINGS, **settings}
        self.trainers: list[Trainer] = []
        self.announced = -1
        """The step of the last checkpoint that a trainer said it had saved."""

    def train(self, *more: str, wrap: Sequence[str] = (), counted: bool = True) -> Trainer:
        """Start ``corral train``; ``wrap`` are words before the command, as of ``prlimit``.

        ``counted`` is false where rows are bound to be lost, on a full disk.
        """
        words = ["train", self.env, *flags(self.settings), "--output-dir", str(self.path), *more]
        return self._start(words, wrap, counted)

    def resume(self, *more: str, wrap: Sequence[str] = ()) -> Trainer:
        """Start ``corral resume``."""
        named = ["--env", self.env] if ":" in self.env else []
        named += [word for hook in self.settings.get("hooks", ()) for word in ("--hook", hook)]
        return self._start(["resume", str(self.path), *named, *more], wrap)

    def go_on(self, *more: str) -> Trainer:
        """What a user does after a crash: resume, or the same command again if the run did not get that far."""
        return self.resume(*more) if (self.path / "config.yaml").exists() else self.train(*more)

    def _start(self, words: Sequence[str], wrap: Sequence[str], counted: bool = True) -> Trainer:
        self.trainers.append(Trainer(self, words, wrap, counted))
        return self.trainers[-1]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The lines of ``metrics.jsonl``."""
        file = self.path / "metrics.jsonl"
        return read_metrics(file) if file.exists() else []

    @property
    def summary(self) -> dict[str, Any]:
        """``summary.json``."""
        return dict(json.loads((self.path / "summary.json").read_text()))

    @property
    def newest(self) -> VerifiedCheckpoint | None:
        """The newest checkpoint that verifies."""
        return newest_checkpoint(self.path / "checkpoints")

    def undisturbed(self, env: str | None = None, **changes: Any) -> str:
        """The weights' hash of the same run in one process, where nothing happens to it."""
        settings = {k: v for k, v in {**self.settings, **changes}.items() if k not in WORKERS_ONLY}
        return _undisturbed(env or self.env, json.dumps({**settings, "backend": "serial"}, sort_keys=True))


@functools.cache
def _undisturbed(env: str, settings: str) -> str:
    with tempfile.TemporaryDirectory() as directory:
        done = corral.train(env, quiet=True, output_dir=f"{directory}/twin", **json.loads(settings))
        return done.summary.weights_sha256


@dataclass(frozen=True)
class Ended:
    """How a trainer ended."""

    code: int
    out: str
    err: str
    seconds: float
    """Since the last signal that it was sent, or since its start."""

    def __str__(self) -> str:
        return f"exit code {self.code}\n--- stdout\n{self.out[-3000:]}\n--- stderr\n{self.err[-6000:]}"


class Trainer:
    """One ``corral train`` or ``corral resume``. ``wait`` says how it ended, and checks all that must hold then."""

    def __init__(self, run: Run, words: Sequence[str], wrap: Sequence[str], counted: bool) -> None:
        self.run, self.words, self._counted = run, list(words), counted
        self.run_id = uuid.uuid4().hex
        log = run.path.parent / f"{run.path.name}-{len(run.trainers)}"
        self._out, self._err = log.with_suffix(".out"), log.with_suffix(".err")
        self._wrapped = bool(wrap)
        self._shm = shared_memory()
        self._began = self._mark = time.time()
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                [*wrap, sys.executable, "-m", "corral", *words],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=run.path.parent,
                env=environment() | {RUN_ID: self.run_id},
                start_new_session=True,  # so that a Ctrl-C can be sent to all of them, as a terminal does
            )

    # ---- what can be seen -----------------------------------------------------------------------------------------

    @property
    def pid(self) -> int:
        """The trainer itself, also inside a wrapping command."""
        if not self._wrapped:
            return self.process.pid
        ours = [p for p in processes_of(self.run_id) if words_of(p)[1:3] == ["-m", "corral"]]
        return min(ours, key=lambda p: p.create_time()).pid if ours else self.process.pid

    @property
    def out(self) -> str:
        """Standard output so far."""
        return self._out.read_text(errors="replace")

    @property
    def err(self) -> str:
        """Standard error so far."""
        return self._err.read_text(errors="replace")

    def family(self) -> list[psutil.Process]:
        """Live processes that it started, and that those started."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return [p for p in psutil.Process(self.pid).children(recursive=True) if name_of(p)]
        return []

    def workers(self) -> list[psutil.Process]:
        """Its live worker processes."""
        return [p for p in self.family() if name_of(p).startswith("corral-w")]

    def wait_for(self, condition: Callable[[], object], what: str = "") -> None:
        """Wait until something is so; the trainer must live to see it."""
        deadline = time.monotonic() + WATCHDOG_SECONDS
        while not condition():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.kill_all()
                raise AssertionError(f"waited in vain for {what or condition}: {self._ended(self.process.wait())}")
            time.sleep(0.01)

    def wait_for_rows(self, count: int) -> None:
        """Wait until so many iterations were reported in this run."""
        self.wait_for(lambda: len(self.run.rows) >= count, f"{count} rows")

    # ---- what can be done to it ------------------------------------------------------------------------------------

    def signal(self, number: int, group: bool = False) -> None:
        """Send a signal to the trainer, or as a terminal does to its whole group."""
        self._mark = time.time()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number) if group else os.kill(self.pid, number)

    def kill(self) -> Ended:
        """``kill -9``, and all checks."""
        self.signal(signal.SIGKILL)
        return self.wait(-signal.SIGKILL)

    def hit(self, number: int, rng: random.Random) -> bool:
        """Send a signal to one of the workers; False if the trainer ended before there was one."""
        while self.process.poll() is None:
            workers = self.workers()
            if workers:
                with contextlib.suppress(psutil.NoSuchProcess):
                    rng.choice(workers).send_signal(number)
                    return True
            time.sleep(0.01)
        return False

    def kill_all(self) -> None:
        """End every process of the run, for tests that failed."""
        for process in processes_of(self.run_id):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait()

    def wait(self, code: int | None = 0, seconds: float = WATCHDOG_SECONDS) -> Ended:
        """Wait for the end, which must come with this exit code (None: any that is documented); then check it all."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill_all()
            raise AssertionError(f"no end after {seconds} s: {self._ended(-9)}") from None
        ended = self._ended(self.process.returncode)
        assert ended.code in (EXIT_CODES if code is None else (code,)), f"expected exit code {code}: {ended}"
        check_nothing_is_left(self.run_id, self._shm)
        check_words(ended)
        said = re.findall(r"^checkpoint at ([\d,]+) steps", ended.out, re.MULTILINE)
        if said:
            self.run.announced = int(said[-1].replace(",", ""))
        if ended.code == 2 and not self.run.path.exists():
            self.run.announced = -1  # it was taken back, with all that it had written
        check_checkpoint(self.run)
        if self._counted:
            check_steps(self.run, since=self._began)
        return ended

    def _ended(self, code: int) -> Ended:
        # Python may end itself by SIGINT when one interrupted an import; shells call that 130 as well.
        return Ended(130 if code == -signal.SIGINT else code, self.out, self.err, time.time() - self._mark)


def environment() -> dict[str, str]:
    """The environment of a trainer: the same Corral and the same tests as this process has."""
    paths = [str(ROOT), str(Path(corral.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def flags(settings: dict[str, Any]) -> list[str]:
    """Settings as the command line has them."""
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
