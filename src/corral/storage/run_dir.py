"""Run directories: where a run's files are, who may write to them, and which of its words may be believed."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import shlex
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

from corral.config.schema import TrainConfig, parse_config
from corral.config.yaml_file import load_yaml
from corral.core.errors import RunInUse, UsageError, one_line
from corral.core.files import find_link, is_file, open_regular, read_json
from corral.core.stdio import command
from corral.storage.named_code import resume_command

__all__ = ["MOST_SUMMARY", "RunDirectory", "find_run", "plan_run"]

ROOT = Path("runs")
_LONGEST_STEM = 100  # of a run's name: most file systems take 255 bytes
MOST_SUMMARY = 1 << 20
"""Bytes of a ``summary.json`` that are read."""
_BUDGETS = ("timesteps", "num_episodes", "duration", "stages")
_MOST_STEPS = 2**53
_MOST_TRIES = 100
"""Tries to lock a file that others remove meanwhile."""
_LEFT_OVER = (".lock", "config.tmp", "sweep.tmp")
"""Of a run, or a sweep, that was killed before it had begun."""


_FOLDERS = ("checkpoints", "best", "faults", "phases", "tensorboard", "trials")
"""Folders of a run, or of a sweep, that Corral writes to."""
_DISCARDED = (
    *("checkpoints/ckpt-000000000000*/*", "checkpoints/ckpt-000000000000*", "checkpoints/.saving-*/*"),
    *("checkpoints/.saving-*", "tensorboard/events.*", "checkpoints", "best", "faults", "phases", "tensorboard"),
    *("trials", "journal.log", "jobs.log", "results.csv", "sweep.yaml", "sweep.tmp", "metrics.jsonl", "progress.csv"),
    *("summary.json", "summary.tmp", "config.yaml", "config.tmp", ".lock"),
)
"""Everything that Corral writes before a run, or a sweep, has learned anything: what lies in a folder comes first."""
_HELD = (errno.EAGAIN, errno.EACCES, errno.EDEADLK)
"""What the system answers when another process has the lock; anything else means that it cannot lock files there."""


class RunDirectory:
    """The files of one run. Holding one means being its only writer."""

    def __init__(self, path: Path, others: Iterator[Path] | None = None) -> None:
        self._others = others
        """Where else a new run may go, if another process takes this place first."""
        self._lock: int | None = None
        self.made_here = False
        """Whether this process got the directory new or empty: only then may it take the directory back."""
        self._place(path)

    def _place(self, path: Path) -> None:
        self.display_path = str(path)
        """The path as the user knows it."""
        self.path = path = path.absolute()  # an env may change the working directory
        self.config_file = path / "config.yaml"
        self.metrics_file = path / "metrics.jsonl"
        self.progress_file = path / "progress.csv"
        self.tensorboard = path / "tensorboard"
        self.checkpoints = path / "checkpoints"
        self.best = path / "best"
        self.summary_file = path / "summary.json"

    def create(self) -> None:
        """Make it and become its only writer; another process may have put a run there since it was planned."""
        if self._lock is not None:
            return  # it is ours already
        while True:
            try:
                self.path.mkdir(parents=True, exist_ok=True)
                self.lock()
            except OSError as error:
                raise UsageError(
                    f"output_dir {self.display_path!r} cannot be used: {error.strerror or error}"
                ) from None
            except RunInUse:
                if self._others is None:
                    raise
                self._place(next(self._others))
                continue
            try:
                self.check_free()
                break
            except UsageError:  # the other run may have ended already
                self.unlock()
                if self._others is None:
                    raise
                self._place(next(self._others))
        self.made_here = True

    def check_free(self) -> None:
        """Refuse a directory that holds anything: a run, or files of others."""
        if self.config_file.exists():
            again = self._how_to_go_on()
            raise UsageError(
                f"{self.display_path} already holds a run; go on with `{again}`, or choose another --output-dir"
            )
        if self.path.is_dir() and any(child.name not in _LEFT_OVER for child in self.path.iterdir()):
            raise UsageError(f"output_dir {self.display_path!r} is not empty; choose another")

    def _how_to_go_on(self) -> str:
        """What resumes the run here: with the code that it names, and with more steps if a budget ended it."""
        steps = self._steps_at_end()
        try:
            recorded = self.read_config()
        except UsageError:
            return f"{command()} resume {shlex.quote(self.display_path)}"
        return resume_command(self.display_path, recorded, None if steps is None else 2 * steps)

    def _steps_at_end(self) -> int | None:
        """The steps of a run that a budget ended, if ``summary.json`` can be read and says so."""
        try:
            told = read_json(self.summary_file, MOST_SUMMARY)
            steps, reason = told["steps"], told["exit_reason"]
        except (OSError, ValueError, LookupError, TypeError):
            return None
        return steps if reason in _BUDGETS and type(steps) is int and 0 < steps <= _MOST_STEPS else None

    def refuse_links(self) -> None:
        """Refuse a directory with links in it: they could lead what is written, deleted or read elsewhere."""
        try:
            link = find_link(self.path, _FOLDERS)
        except OSError as error:
            raise UsageError(f"{self.display_path} cannot be used: {error.strerror or error}") from None
        if link is not None:
            name = one_line(link.relative_to(self.path))
            raise UsageError(f"{self.display_path} has a link in it, {name}; no link is followed there, so remove it")

    def lock(self) -> None:
        """Become the only writer. The system frees the lock when the process ends, however it ends."""
        if self._lock is not None:
            return
        self.refuse_links()
        path = self.path / ".lock"
        for _ in range(_MOST_TRIES):
            try:
                file = open_regular(path, os.O_RDWR | os.O_CREAT)
            except OSError as error:
                raise UsageError(f"{self.display_path}/.lock cannot be used: {error.strerror or error}") from None
            self._take(file)
            with contextlib.suppress(OSError):
                if os.path.samestat(os.fstat(file), os.lstat(path)):
                    break
            os.close(file)  # whoever had it before removed the file, and a lock on that would keep nobody out
        else:
            raise UsageError(
                f"{self.display_path}/.lock cannot be used: it is another file each time; choose another directory"
            )
        os.ftruncate(file, 0)
        os.lseek(file, 0, os.SEEK_SET)
        os.write(file, str(os.getpid()).encode())
        self._lock = file

    def _take(self, file: int) -> None:
        """Lock an open file, or close it and say who has the lock."""
        try:
            _lock(file)
        except OSError as error:
            if error.errno not in _HELD:
                warnings.warn(
                    f"the file system of {self.display_path} has no locks ({error.strerror}), so nothing keeps a second "
                    "process from writing there too; make sure that there is none, or choose another --output-dir",
                    stacklevel=2,
                )
                return
            os.lseek(file, 0, os.SEEK_SET)
            pid = os.read(file, 20).decode("ascii", "replace").strip()
            os.close(file)
            who = f"process {pid}" if pid.isdecimal() else "another process"
            raise RunInUse(f"{self.display_path} is in use by {who}; wait for it to end, or stop it") from None

    def has_metrics(self) -> bool:
        """Whether an iteration was ever finished here."""
        return self.metrics_file.exists() and self.metrics_file.stat().st_size > 0

    def unlock(self) -> None:
        """Let others write."""
        if self._lock is not None:
            os.close(self._lock)  # the file stays: deleting it could take the lock from another process
            self._lock = None

    def discard(self) -> None:
        """Take back a directory that this process got new or empty, because its run never began.

        Only files of Corral's own are deleted. A directory with a checkpoint that learned something stays as it is.
        """
        if not self.made_here or any(self.path.glob("*/ckpt-*[1-9]*")):
            return
        with contextlib.suppress(OSError):  # what cannot be deleted stays, and so does the directory
            if find_link(self.path, _FOLDERS) is not None:
                return
            for path in [path for pattern in _DISCARDED for path in self.path.glob(pattern)]:
                with contextlib.suppress(OSError):
                    path.rmdir() if path.is_dir() else path.unlink()
            self.path.rmdir()

    def read_config(self) -> TrainConfig:
        """The config that the run was started with."""
        return parse_config(load_yaml(self.config_file, untrusted=True))


def plan_run(output_dir: str | None, env: str) -> RunDirectory:
    """Where a new run will be: as the user says, or named after env and time. Nothing is written yet.

    A directory that holds anything, a run or files that are none of ours, is refused.
    """
    if output_dir is None:
        source, _, attribute = env.rpartition(":")
        name = Path(source).stem if source.endswith(".py") else attribute
        stem = f"{re.sub(r'[^A-Za-z0-9._-]+', '-', name).strip('-')[:_LONGEST_STEM]}-{time.strftime('%Y%m%d-%H%M%S')}"
        names = (ROOT / (stem if i == 1 else f"{stem}-{i}") for i in itertools.count(1))
        free = (path for path in names if not path.exists())
        return RunDirectory(next(free), free)
    run = RunDirectory(Path(output_dir))
    _check_reachable(run)
    if run.path.exists() and not run.path.is_dir():
        raise UsageError(f"output_dir {output_dir!r} is a file, expected a directory")
    if run.path.exists():
        run.refuse_links()
    if run.config_file.exists():
        run.lock()  # raises if it is in use
        run.unlock()
    run.check_free()
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
        raise UsageError(f"output_dir {run.display_path!r} cannot be used: {why}; choose another") from None


def find_run(name: str | os.PathLike[str]) -> RunDirectory:
    """The run at a path, or the newest one under ``runs/`` for ``latest``."""
    if str(name) == "latest":
        configs = sorted(ROOT.glob("*/config.yaml"), key=lambda path: path.lstat().st_mtime)
        if not configs:
            raise UsageError(f"there is no run under {ROOT}/; start one with `corral train ENV`")
        name = configs[-1].parent
    run = RunDirectory(Path(name))
    if not is_file(run.config_file):
        raise UsageError(f"{str(name)!r} is not a run directory: it has no config.yaml")
    run.refuse_links()
    return run


def _lock(file: int) -> None:
    if sys.platform == "win32":
        import msvcrt

        os.lseek(file, 1 << 20, os.SEEK_SET)  # past the pid, which others must be able to read
        msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
    else:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
