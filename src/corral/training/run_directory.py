"""Run directories: where a run's files are, who may write to them, and which of its words may be believed."""

from __future__ import annotations

import itertools
import os
import re
import shlex
import shutil
import sys
import time
from pathlib import Path
from typing import IO

from corral.core.command import command
from corral.core.config import TrainConfig, parse_config
from corral.core.config_file import load_yaml
from corral.core.envs import names_code
from corral.core.errors import RunInUse, UnrepeatedCode, UsageError
from corral.core.paths import is_file

__all__ = ["RunDirectory", "bare", "check_named_code", "code_flags", "find_run", "plan_run"]

ROOT = Path("runs")
_LONGEST_STEM = 100  # of a run's name: most file systems take 255 bytes
_LEFT_OVER = (".lock", "config.tmp", "sweep.tmp")
"""Of a run, or a sweep, that was killed before it had begun."""


class RunDirectory:
    """The files of one run. Holding one means being its only writer."""

    def __init__(self, path: Path) -> None:
        self.shown = str(path)
        """The path as the user knows it."""
        self.path = path = path.absolute()  # an env may change the working directory
        self.config_file = path / "config.yaml"
        self.metrics_file = path / "metrics.jsonl"
        self.progress_file = path / "progress.csv"
        self.tensorboard = path / "tensorboard"
        self.checkpoints = path / "checkpoints"
        self.best = path / "best"
        self.summary_file = path / "summary.json"
        self._lock: IO[str] | None = None

    def create(self) -> None:
        """Make it and become its only writer."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self.lock()
        except OSError as error:
            raise UsageError(f"output_dir {self.shown!r} cannot be used: {error.strerror or error}") from None

    def lock(self) -> None:
        """Become the only writer. The system frees the lock when the process ends, however it ends."""
        if self._lock is not None:
            return
        try:
            file = (self.path / ".lock").open("a+", encoding="ascii")
        except OSError as error:
            raise UsageError(f"{self.shown} cannot be used: {error.strerror or error}") from None
        try:
            _lock(file)
        except OSError:
            file.seek(0)
            pid = file.read().strip() or "unknown"
            file.close()
            raise RunInUse(f"{self.shown} is in use by process {pid}; wait for it to end, or stop it") from None
        file.seek(0)
        file.truncate()
        file.write(str(os.getpid()))
        file.flush()
        self._lock = file

    def has_metrics(self) -> bool:
        """Whether an iteration was ever finished here."""
        return self.metrics_file.exists() and self.metrics_file.stat().st_size > 0

    def unlock(self) -> None:
        """Let others write."""
        if self._lock is not None:
            self._lock.close()  # the file stays: deleting it could take the lock from under somebody else
            self._lock = None

    def discard(self) -> None:
        """Take back a directory that the run was given new or empty: it never began."""
        shutil.rmtree(self.path, ignore_errors=True)

    def read_config(self) -> TrainConfig:
        """The config that the run was started with."""
        return parse_config(load_yaml(self.config_file))


def plan_run(output_dir: str | None, env: str) -> RunDirectory:
    """Where a new run will be: as the user says, or named after env and time. Nothing is written yet.

    A directory that holds anything, a run or files that are none of ours, is refused.
    """
    if output_dir is None:
        source, _, attribute = env.rpartition(":")
        name = Path(source).stem if source.endswith(".py") else attribute
        stem = f"{re.sub(r'[^A-Za-z0-9._-]+', '-', name).strip('-')[:_LONGEST_STEM]}-{time.strftime('%Y%m%d-%H%M%S')}"
        names = (ROOT / (stem if i == 1 else f"{stem}-{i}") for i in itertools.count(1))
        return RunDirectory(next(path for path in names if not path.exists()))
    run = RunDirectory(Path(output_dir))
    _check_reachable(run)
    if run.path.exists() and not run.path.is_dir():
        raise UsageError(f"output_dir {output_dir!r} is a file, expected a directory")
    if run.config_file.exists():
        run.lock()  # raises if it is in use
        run.unlock()
        again = f"{command()} resume {shlex.quote(output_dir)}"
        raise UsageError(f"{output_dir} already holds a run; go on with `{again}`, or choose another --output-dir")
    if run.path.is_dir() and any(child.name not in _LEFT_OVER for child in run.path.iterdir()):
        raise UsageError(f"output_dir {output_dir!r} is not empty; choose another")
    return run


def _check_reachable(run: RunDirectory) -> None:
    """Refuse a directory that cannot be looked into: a name that is too long, a folder that may not be searched."""
    try:
        run.config_file.stat()
        with os.scandir(run.path):
            pass
    except (FileNotFoundError, NotADirectoryError):
        return
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise UsageError(f"output_dir {run.shown!r} cannot be used: {why}; choose another") from None


def find_run(name: str | os.PathLike[str]) -> RunDirectory:
    """The run at a path, or the newest one under ``runs/`` for ``latest``."""
    if str(name) == "latest":
        configs = sorted(ROOT.glob("*/config.yaml"), key=lambda path: path.stat().st_mtime)
        if not configs:
            raise UsageError(f"there is no run under {ROOT}/; start one with `corral train ENV`")
        return RunDirectory(configs[-1].parent)
    path = Path(name)
    if not is_file(path / "config.yaml"):
        raise UsageError(f"{str(name)!r} is not a run directory: it has no config.yaml")
    return RunDirectory(path)


def check_named_code(recorded: TrainConfig, env: str | None, policy: str | None) -> None:
    """Refuse to import what a run directory names, unless the user names the same.

    Built-in envs and plain ids load by themselves; a name that would make Python import something does not.
    """
    given, known = {"env": env, "policy": policy}, {"env": recorded.env, "policy": recorded.policy}
    for name, said in given.items():
        if said is not None and bare(said) != bare(known[name] or ""):
            raise UsageError(f"{name} {said!r} is not what the run was made with: {known[name] or 'the built-in one'}")
    missing = {name: spec for name, spec in known.items() if given[name] is None and spec and names_code(spec)}
    if any(spec.startswith("python:") for spec in missing.values()):
        words = ", ".join(f"{name}=..." for name in missing)
        raise UsageError(
            f"the run used {', '.join(missing.values())}, which only Python can give: corral.resume(run, {words}); "
            "corral.load(run) needs no env"
        )
    if missing:
        raise UnrepeatedCode(code_flags(recorded))


def code_flags(config: TrainConfig) -> str:
    """The flags that a command on this run needs, because its env or policy is code."""
    named = {"env": config.env, "policy": config.policy}
    return " ".join(f"--{name} {shlex.quote(spec)}" for name, spec in named.items() if spec and names_code(spec))


def bare(spec: str) -> str:
    """``path/to/file.py:callable`` without the path: the same file may be reached from another directory."""
    source, colon, attribute = spec.rpartition(":")
    return f"{Path(source).name}:{attribute}" if colon and source.endswith(".py") else spec


def _lock(file: IO[str]) -> None:
    if sys.platform == "win32":
        import msvcrt

        file.seek(1 << 20)  # past the pid, which others must be able to read
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
    else:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
