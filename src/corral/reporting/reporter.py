"""One row of numbers, told to every file and to the screen."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from corral.reporting.console import QuietBoard
from corral.reporting.tensorboard import TensorBoardWriter
from corral.reporting.writers import CsvWriter, JsonLinesWriter

__all__ = ["ALL_ROWS", "Reporter"]

ALL_ROWS = 10_000
"""Iterations of a run that each get a row in the files."""
ROW_SECONDS = 1.0
"""After them, a row is written when so much time has passed since the last: short iterations would fill a disk."""


class Reporter:
    """Writes rows to ``metrics.jsonl``, ``progress.csv`` and TensorBoard, and shows them on the board."""

    def __init__(
        self,
        metrics: Path,
        progress: Path,
        tensorboard: Path | None,
        board: QuietBoard,
        columns: Sequence[str],
        resume_from: int | None,
    ) -> None:
        self.board = board
        self._warned = False
        self._last = 0.0
        self._waiting: Mapping[str, float] | None = None
        self._json = JsonLinesWriter(metrics, resume_from)
        self._csv = CsvWriter(progress, columns, resume_from)
        self._tensorboard = TensorBoardWriter(tensorboard, resume_from) if tensorboard is not None else None
        if self._json.damaged:
            board.warn(f"{metrics.name}: {self._json.damaged:,} damaged lines after step {resume_from:,} were dropped")

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
        self.board.update(done, row)

    def flush(self) -> None:
        """Write the last row, if it was left out of the files."""
        if self._waiting is not None:
            self._write(self._waiting)
            self._waiting = None

    def close(self) -> None:
        """Write the last row if it was left out, close the files and end the progress bar."""
        self.board.stop()
        self.flush()
        for writer in (self._json, self._csv, self._tensorboard):
            if writer is not None:
                self._try(writer.close)

    def _write(self, row: Mapping[str, float]) -> None:
        self._try(lambda: self._json.write(row))
        self._try(lambda: self._csv.write(row))
        if (tensorboard := self._tensorboard) is not None:
            self._try(lambda: tensorboard.write(row))

    def _try(self, action: Callable[[], None]) -> None:
        """A full disk must not end a run: metrics are for people, the checkpoint is what counts."""
        try:
            action()
        except OSError as error:
            if not self._warned:
                self.board.warn(f"metrics cannot be written: {error.strerror or error}; the run goes on")
            self._warned = True
