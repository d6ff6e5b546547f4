"""Run directories: the paths of a run's files, the lock of its only writer, and the choice of a directory for a run."""

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

__all__ = ["MAX_SUMMARY_BYTES", "RunDirectory", "find_run", "plan_run"]

RUNS_ROOT = Path("runs")
"""The directory of runs for which the user names none."""
_MAX_STEM_LENGTH = 100  # of the name of a run; most file systems allow 255 bytes
MAX_SUMMARY_BYTES = 1 << 20
"""Size of the largest ``summary.json`` that is read, in bytes."""
_BUDGETS = ("timesteps", "num_episodes", "duration", "stages")
_MAX_STEPS = 2**53
_MAX_LOCK_TRIES = 100
"""Attempts to lock a file that other processes keep replacing."""
_IGNORED_FILES = (".lock", "config.tmp", "sweep.tmp")
"""Files of a run or sweep that was killed before it began. A directory that holds only these counts as empty."""


_FOLDERS = ("checkpoints", "best", "faults", "phases", "tensorboard", "trials")
"""Folders of a run or sweep to which Corral writes."""
_DISCARDED = (
    *("checkpoints/ckpt-000000000000*/*", "checkpoints/ckpt-000000000000*", "checkpoints/.saving-*/*"),
    *("checkpoints/.saving-*", "tensorboard/events.*", "checkpoints", "best", "faults", "phases", "tensorboard"),
    *("trials", "journal.log", "jobs.log", "results.csv", "sweep.yaml", "sweep.tmp", "metrics.jsonl", "progress.csv"),
    *("summary.json", "summary.tmp", "config.yaml", "config.tmp", ".lock"),
)
"""Everything that Corral writes before the first update of a run or sweep; the files of a folder before the folder."""
_LOCK_IS_HELD = (errno.EAGAIN, errno.EACCES, errno.EDEADLK)
"""Errors that mean that another process holds the lock; any other error means that the file system has no locks."""


class RunDirectory:
    """The paths of the files of one run, and the lock that makes this process its only writer."""

    def __init__(self, path: Path, alternatives: Iterator[Path] | None = None) -> None:
        self._alternatives = alternatives
        """Other paths for a new run, if another process takes this one first."""
        self._lock_descriptor: int | None = None
        self.made_here = False
        """Whether the directory was new or empty when this process took it: only then may ``discard`` delete it."""
        self._set_path(path)

    def _set_path(self, path: Path) -> None:
        self.display_path = str(path)
        """The path as the user gave it."""
        self.path = path = path.absolute()  # an env may change the working directory
        self.config_file = path / "config.yaml"
        self.metrics_file = path / "metrics.jsonl"
        self.progress_file = path / "progress.csv"
        self.tensorboard = path / "tensorboard"
        self.checkpoints = path / "checkpoints"
        self.best = path / "best"
        self.summary_file = path / "summary.json"

    def create(self) -> None:
        """Make the directory and lock it.

        If another process has put a run there since the directory was planned, take the next alternative, or raise
        RunInUse or a UsageError if there is none.
        """
        if self._lock_descriptor is not None:
            return
        while not self._claim():
            assert self._alternatives is not None
            self._set_path(next(self._alternatives))
        self.made_here = True

    def _claim(self) -> bool:
        """Make and lock the directory; return False if another process took it and there are alternatives."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self.lock()
        except OSError as error:
            raise UsageError(f"output_dir {self.display_path!r} cannot be used: {error.strerror or error}") from None
        except RunInUse:
            if self._alternatives is None:
                raise
            return False
        try:
            self.check_free()
        except UsageError:  # another process put a run there, which may have ended already
            self.unlock()
            if self._alternatives is None:
                raise
            return False
        return True

    def check_free(self) -> None:
        """Raise a UsageError if the directory holds a run or any other files."""
        if self.config_file.exists():
            resume = self._resume_command()
            raise UsageError(
                f"{self.display_path} already holds a run; continue it with `{resume}`, or choose another --output-dir"
            )
        if self.path.is_dir() and any(child.name not in _IGNORED_FILES for child in self.path.iterdir()):
            raise UsageError(f"output_dir {self.display_path!r} is not empty; choose another")

    def _resume_command(self) -> str:
        """Return the command that resumes the run here, with twice the steps if the run reached its budget."""
        steps = self._steps_at_end()
        try:
            recorded = self.read_config()
        except UsageError:
            return f"{command()} resume {shlex.quote(self.display_path)}"
        return resume_command(self.display_path, recorded, None if steps is None else 2 * steps)

    def _steps_at_end(self) -> int | None:
        """Return the steps of a run that reached its budget; None if ``summary.json`` does not say that it did."""
        try:
            summary = read_json(self.summary_file, MAX_SUMMARY_BYTES)
            steps, reason = summary["steps"], summary["exit_reason"]
        except (OSError, ValueError, LookupError, TypeError):
            return None
        return steps if reason in _BUDGETS and type(steps) is int and 0 < steps <= _MAX_STEPS else None

    def refuse_links(self) -> None:
        """Raise a UsageError for symbolic links, which could make Corral read, write or delete files elsewhere."""
        try:
            link = find_link(self.path, _FOLDERS)
        except OSError as error:
            raise UsageError(f"{self.display_path} cannot be used: {error.strerror or error}") from None
        if link is not None:
            name = one_line(link.relative_to(self.path))
            raise UsageError(f"{self.display_path} contains a link, {name}; no link is followed there, so remove it")

    def lock(self) -> None:
        """Make this process the only writer. The system releases the lock when the process ends, even by a kill."""
        if self._lock_descriptor is not None:
            return
        self.refuse_links()
        descriptor = self._open_locked()
        os.ftruncate(descriptor, 0)
        os.lseek(descriptor, 0, os.SEEK_SET)
        os.write(descriptor, str(os.getpid()).encode())
        self._lock_descriptor = descriptor

    def _open_locked(self) -> int:
        """Open and lock ``.lock``, and return its descriptor."""
        path = self.path / ".lock"
        for _ in range(_MAX_LOCK_TRIES):
            try:
                descriptor = open_regular(path, os.O_RDWR | os.O_CREAT)
            except OSError as error:
                raise UsageError(f"{self.display_path}/.lock cannot be used: {error.strerror or error}") from None
            self._acquire_lock(descriptor)
            with contextlib.suppress(OSError):
                if os.path.samestat(os.fstat(descriptor), os.lstat(path)):
                    return descriptor
            os.close(descriptor)  # the previous owner deleted the file meanwhile, so locking it excludes no process
        raise UsageError(
            f"{self.display_path}/.lock cannot be used: other processes keep replacing it; choose another directory"
        )

    def _acquire_lock(self, descriptor: int) -> None:
        """Lock an open file; if another process holds the lock, close the file and raise RunInUse."""
        try:
            _lock_file(descriptor)
        except OSError as error:
            if error.errno not in _LOCK_IS_HELD:
                warnings.warn(
                    f"the file system of {self.display_path} has no locks ({error.strerror}), so nothing keeps a "
                    "second process from writing there too; make sure that there is none, or choose another "
                    "--output-dir",
                    stacklevel=3,
                )
                return
            os.lseek(descriptor, 0, os.SEEK_SET)
            pid = os.read(descriptor, 20).decode("ascii", "replace").strip()
            os.close(descriptor)
            holder = f"process {pid}" if pid.isdecimal() else "another process"
            raise RunInUse(f"{self.display_path} is in use by {holder}; wait for it to end, or stop it") from None

    def has_metrics(self) -> bool:
        """Return whether the run has completed an iteration."""
        return self.metrics_file.exists() and self.metrics_file.stat().st_size > 0

    def unlock(self) -> None:
        """Let other processes write."""
        if self._lock_descriptor is not None:
            os.close(self._lock_descriptor)  # the file stays: deleting it could take the lock from another process
            self._lock_descriptor = None

    def discard(self) -> None:
        """Delete a directory that was new or empty when this process took it, because its run never began.

        This deletes only files that Corral writes. A directory with a checkpoint of a trained policy is kept.
        """
        if not self.made_here or any(self.path.glob("*/ckpt-*[1-9]*")):
            return
        with contextlib.suppress(OSError):  # if a file cannot be deleted, the directory stays too
            if find_link(self.path, _FOLDERS) is not None:
                return
            for path in [path for pattern in _DISCARDED for path in self.path.glob(pattern)]:
                with contextlib.suppress(OSError):
                    path.rmdir() if path.is_dir() else path.unlink()
            self.path.rmdir()

    def read_config(self) -> TrainConfig:
        """Return the config with which the run was started."""
        return parse_config(load_yaml(self.config_file, untrusted=True))


def plan_run(output_dir: str | None, env: str) -> RunDirectory:
    """Return the directory for a new run: ``output_dir``, or a new one named after env and time. Write nothing yet.

    Raise a UsageError if ``output_dir`` holds a run or any other files.
    """
    if output_dir is None:
        unused_paths = _unused_paths(env)
        return RunDirectory(next(unused_paths), unused_paths)
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


def _unused_paths(env: str) -> Iterator[Path]:
    """Yield paths under ``runs/`` that do not exist, named after the env and the time."""
    source, _, attribute = env.rpartition(":")
    name = Path(source).stem if source.endswith(".py") else attribute
    short_name = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-")[:_MAX_STEM_LENGTH]
    stem = f"{short_name}-{time.strftime('%Y%m%d-%H%M%S')}"
    for i in itertools.count(1):
        path = RUNS_ROOT / (stem if i == 1 else f"{stem}-{i}")
        if not path.exists():
            yield path


def _check_reachable(run: RunDirectory) -> None:
    """Raise a UsageError if the directory cannot be read: its name is too long, or permissions are missing."""
    try:
        run.config_file.stat()
        with os.scandir(run.path):
            pass
    except (FileNotFoundError, NotADirectoryError):
        return
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"output_dir {run.display_path!r} cannot be used: {reason}; choose another") from None


def find_run(name: str | os.PathLike[str]) -> RunDirectory:
    """Return the directory of the run at a path, or of the newest run under ``runs/`` for ``latest``."""
    if str(name) == "latest":
        configs = sorted(RUNS_ROOT.glob("*/config.yaml"), key=lambda path: path.lstat().st_mtime)
        if not configs:
            raise UsageError(f"there is no run under {RUNS_ROOT}/; start one with `corral train ENV`")
        name = configs[-1].parent
    run = RunDirectory(Path(name))
    if not is_file(run.config_file):
        raise UsageError(f"{str(name)!r} is not a run directory: it has no config.yaml")
    run.refuse_links()
    return run


def _lock_file(descriptor: int) -> None:
    """Lock a file for this process only; raise an OSError if that is not possible."""
    if sys.platform == "win32":
        import msvcrt

        os.lseek(descriptor, 1 << 20, os.SEEK_SET)  # behind the process id, which other processes read
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
    else:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
