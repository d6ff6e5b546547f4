"""One row of numbers, told to every file and to the screen."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from corral.reporting.console import SilentConsole
from corral.reporting.tensorboard import TensorBoardWriter
from corral.reporting.writers import CsvWriter, JsonLinesWriter
from corral.storage.run_dir import RunDirectory

__all__ = ["ALL_ROWS", "WRITERS", "Reporter", "RowFiles", "Writer"]

ALL_ROWS = 10_000
"""Iterations of a run that each get a row in the files."""
ROW_SECONDS = 1.0
"""After them, a row is written when so much time has passed since the last: short iterations would fill a disk."""


@dataclass(frozen=True, slots=True)
class RowFiles:
    """Where the rows of a run go."""

    directory: RunDirectory
    columns: Sequence[str]
    """The names that are known from the start."""
    tensorboard: bool
    """Whether the run writes TensorBoard files."""
    resume_from: int | None
    """The step from which a resumed run goes on: rows of later steps are written again."""
    warn: Callable[[str], object]


class Writer(Protocol):
    """Writes rows somewhere."""

    def write(self, row: Mapping[str, float]) -> None:
        """Write a row."""
        ...

    def close(self) -> None:
        """Finish; nothing is written after this."""
        ...


def _json_lines(files: RowFiles) -> Writer:
    path = files.directory.metrics_file
    writer = JsonLinesWriter(path, files.resume_from)
    if writer.damaged:
        files.warn(f"{path.name}: {writer.damaged:,} damaged lines after step {files.resume_from:,} were dropped")
    return writer


def _csv(files: RowFiles) -> Writer:
    return CsvWriter(files.directory.progress_file, files.columns, files.resume_from)


def _tensorboard(files: RowFiles) -> Writer | None:
    return TensorBoardWriter(files.directory.tensorboard, files.resume_from) if files.tensorboard else None


WRITERS: list[Callable[[RowFiles], Writer | None]] = [_json_lines, _csv, _tensorboard]
"""What makes the writers of a run; None where a run does not want one. A new writer is one more entry."""


class Reporter:
    """Passes rows on to the run's writers, and shows them on the board."""

    def __init__(self, files: RowFiles, console: SilentConsole) -> None:
        self.console = console
        self._warned = False
        self._last = 0.0
        self._waiting: Mapping[str, float] | None = None
        self._writers = [writer for make in WRITERS if (writer := make(files)) is not None]

    def write(self, row: Mapping[str, float], done: float, keep: bool = True) -> None:
        """Pass on a row; ``done`` is the progress in the board's unit.

        Late in a long run of short iterations, a row that need not be kept may be left out of the files.
        """
        now = time.monotonic()
        if keep or row["time/iterations"] <= ALL_ROWS or now - self._last >= ROW_SECONDS:
            self._last, self._waiting = now, None
            self._write(row)
        else:
            self._waiting = row
        self.console.update(done, row)

    def flush(self) -> None:
        """Write the last row, if it was left out of the files."""
        if self._waiting is not None:
            self._write(self._waiting)
            self._waiting = None

    def close(self) -> None:
        """Write the last row if it was left out, close the files and end the progress bar."""
        self.console.stop()
        self.flush()
        for writer in self._writers:
            self._try(writer.close)

    def _write(self, row: Mapping[str, float]) -> None:
        for writer in self._writers:
            self._try(functools.partial(writer.write, row))

    def _try(self, action: Callable[[], None]) -> None:
        """A full disk must not end a run: metrics are for people, the checkpoint is what counts."""
        try:
            action()
        except OSError as error:
            if not self._warned:
                self.console.warn(f"metrics cannot be written: {error.strerror or error}; the run goes on")
            self._warned = True
