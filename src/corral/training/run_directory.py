"""Run directories: where a run's files are, who may write to them, and which of its words may be believed."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import sys
import time
from pathlib import Path
from typing import IO

from corral.core.config import TrainConfig, load_yaml, parse_config
from corral.core.envs import names_code
from corral.core.errors import RunInUse, UsageError

__all__ = ["RunDirectory", "check_free", "check_named_code", "find_run"]

ROOT = Path("runs")


class RunDirectory:
    """The files of one run. Holding one means being its only writer."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_file = path / "config.yaml"
        self.metrics_file = path / "metrics.jsonl"
        self.progress_file = path / "progress.csv"
        self.tensorboard = path / "tensorboard"
        self.checkpoints = path / "checkpoints"
        self.best = path / "best"
        self.summary_file = path / "summary.json"
        self._lock: IO[str] | None = None

    @classmethod
    def create(cls, output_dir: str | None, env: str) -> RunDirectory:
        """A new, locked run directory, named by the user or after env and time."""
        if output_dir is not None:
            run = cls(Path(output_dir))
            check_free(output_dir)
            try:
                run.path.mkdir(parents=True, exist_ok=True)
                run.lock()
            except OSError as error:
                raise UsageError(f"output_dir {output_dir!r} cannot be used: {error.strerror or error}") from None
            return run
        stem = f"{re.sub(r'[^A-Za-z0-9.-]+', '-', env).strip('-')}-{time.strftime('%Y%m%d-%H%M%S')}"
        for suffix in ("", *(f"-{i}" for i in range(2, 1000))):
            with contextlib.suppress(FileExistsError):
                (ROOT / (stem + suffix)).mkdir(parents=True)
                run = cls(ROOT / (stem + suffix))
                run.lock()
                return run
        raise UsageError(f"cannot find a free name for {ROOT / stem}; give one with --output-dir")

    def lock(self, keep: bool = True) -> None:
        """Become the only writer, or see whether one could. The system frees the lock when its process ends, anyhow."""
        file = (self.path / ".lock").open("a+", encoding="ascii")
        try:
            _lock(file)
        except OSError:
            file.seek(0)
            pid = file.read().strip() or "unknown"
            file.close()
            raise RunInUse(
                f"{self.path} is in use by process {pid}; wait for it, or choose another --output-dir"
            ) from None
        if not keep:
            file.close()
            return
        file.seek(0)
        file.truncate()
        file.write(str(os.getpid()))
        file.flush()
        self._lock = file

    def unlock(self) -> None:
        """Let others write."""
        if self._lock is not None:
            self._lock.close()  # the file stays: deleting it could take the lock from under somebody else
            self._lock = None

    def discard(self) -> None:
        """Take back what was written: the run never began."""
        for file in (self.config_file, self.metrics_file, self.progress_file, self.summary_file, self.path / ".lock"):
            file.unlink(missing_ok=True)
        for folder in (self.tensorboard, self.checkpoints, self.best):
            shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # not empty: it was there before
            self.path.rmdir()

    def read_config(self) -> TrainConfig:
        """The config that the run was started with."""
        return parse_config(load_yaml(self.config_file))


def check_free(output_dir: str) -> None:
    """Refuse a directory that already holds a run, finished or not."""
    path = Path(output_dir)
    if (path / "config.yaml").exists():
        RunDirectory(path).lock(keep=False)  # in use: exit 3
        raise UsageError(f"{output_dir} already holds a run; go on with `corral resume {output_dir}` or choose another")
    if path.exists() and not path.is_dir():
        raise UsageError(f"output_dir {output_dir!r} is a file, expected a directory")


def find_run(name: str | os.PathLike[str]) -> RunDirectory:
    """The run at a path, or the newest one under ``runs/`` for ``latest``."""
    if str(name) == "latest":
        configs = sorted(ROOT.glob("*/config.yaml"), key=lambda path: path.stat().st_mtime)
        if not configs:
            raise UsageError(f"there is no run under {ROOT}/; start one with `corral train ENV`")
        return RunDirectory(configs[-1].parent)
    path = Path(name)
    if not (path / "config.yaml").is_file():
        raise UsageError(f"{str(name)!r} is not a run directory: it has no config.yaml")
    return RunDirectory(path)


def check_named_code(recorded: TrainConfig, env: str | None, policy: str | None, command: str) -> None:
    """Refuse to import what a run directory names, unless the user names the same.

    Built-in envs and plain ids load by themselves; a name that would make Python import something does not.
    """
    given, known = {"env": env, "policy": policy}, {"env": recorded.env, "policy": recorded.policy}
    for name, said in given.items():
        if said is not None and said != known[name]:
            raise UsageError(f"{name} {said!r} is not what the run was made with: {known[name] or 'the built-in one'}")
    missing = {name: spec for name, spec in known.items() if given[name] is None and spec and names_code(spec)}
    if any(spec.startswith("python:") for spec in missing.values()):
        words = ", ".join(f"{name}=..." for name in missing)
        raise UsageError(
            f"the run used {', '.join(missing.values())}, which only Python can give: corral.resume(run, {words})"
        )
    if missing:
        flags = " ".join(f"--{name} {shlex.quote(spec)}" for name, spec in missing.items())
        raise UsageError(f"the run names code to import; if you trust it, repeat it: {command} {flags}")


def _lock(file: IO[str]) -> None:
    if sys.platform == "win32":
        import msvcrt

        file.seek(1 << 20)  # past the pid, which others must be able to read
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
    else:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
