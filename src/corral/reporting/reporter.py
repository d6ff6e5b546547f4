"""Passes each row of metrics to the writers of a run and to the console."""

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

__all__ = ["UNTHINNED_ITERATIONS", "WRITERS", "Reporter", "Writer", "WriterContext"]

UNTHINNED_ITERATIONS = 10_000
"""Number of iterations at the start of a run that each get a row in the files."""
ROW_INTERVAL = 1.0
"""Seconds between the rows of later iterations. Otherwise long runs of short iterations would fill a disk."""


@dataclass(frozen=True, slots=True)
class WriterContext:
    """What the writers of a run need to know."""

    directory: RunDirectory
    columns: Sequence[str]
    """Names of the metrics that are known when the run starts."""
    tensorboard: bool
    """Whether the run writes TensorBoard files."""
    resume_from: int | None
    """The step from which a resumed run continues; rows of later steps will be written again. None for a new run."""
    warn: Callable[[str], object]
    """Prints a warning."""


class Writer(Protocol):
    """A destination of metrics rows. An OSError is a warning and does not end the run."""

    def write(self, row: Mapping[str, float]) -> None:
        """Write a row."""
        ...

    def close(self) -> None:
        """Close the destination. Nothing is written after this."""
        ...


def _json_lines(files: WriterContext) -> Writer:
    path = files.directory.metrics_file
    writer = JsonLinesWriter(path, files.resume_from)
    if writer.damaged:
        files.warn(f"{path.name}: {writer.damaged:,} damaged lines after step {files.resume_from:,} were dropped")
    return writer


def _csv(files: WriterContext) -> Writer:
    return CsvWriter(files.directory.progress_file, files.columns, files.resume_from)


def _tensorboard(files: WriterContext) -> Writer | None:
    return TensorBoardWriter(files.directory.tensorboard, files.resume_from) if files.tensorboard else None


WRITERS: list[Callable[[WriterContext], Writer | None]] = [_json_lines, _csv, _tensorboard]
"""Functions that make the writers of a run, or return None if the run does not use the writer. Append new ones."""


class Reporter:
    """Passes each row of metrics to all writers of a run, and shows it on the console."""

    def __init__(self, files: WriterContext, console: SilentConsole) -> None:
        self.console = console
        self._has_warned = False
        self._last_write = 0.0
        self._unwritten: Mapping[str, float] | None = None
        self._writers = [writer for make in WRITERS if (writer := make(files)) is not None]

    def write(self, row: Mapping[str, float], done: float, keep: bool = True) -> None:
        """Write a row and show it on the console; ``done`` is the used part of the budget, in the console's unit.

        After ``UNTHINNED_ITERATIONS`` iterations, a row may be left out of the files unless ``keep`` is true.
        """
        now = time.monotonic()
        if keep or row["time/iterations"] <= UNTHINNED_ITERATIONS or now - self._last_write >= ROW_INTERVAL:
            self._last_write, self._unwritten = now, None
            self._write(row)
        else:
            self._unwritten = row
        self.console.update(done, row)

    def flush(self) -> None:
        """Write the last row, if it was left out of the files."""
        if self._unwritten is not None:
            self._write(self._unwritten)
            self._unwritten = None

    def close(self) -> None:
        """Stop the progress bar, write the last row if it was left out, and close the files."""
        self.console.stop()
        self.flush()
        for writer in self._writers:
            self._warn_of_errors(writer.close)

    def _write(self, row: Mapping[str, float]) -> None:
        for writer in self._writers:
            self._warn_of_errors(functools.partial(writer.write, row))

    def _warn_of_errors(self, call_writer: Callable[[], None]) -> None:
        """Call a writer, and only warn if it raises an OSError: a run does not need its metrics to continue."""
        try:
            call_writer()
        except OSError as error:
            if not self._has_warned:
                self.console.warn(f"metrics cannot be written: {error.strerror or error}; training continues")
            self._has_warned = True
