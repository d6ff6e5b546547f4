"""One row of numbers, told to every file and to the screen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from corral.monitor.console import QuietBoard
from corral.monitor.tensorboard import TensorBoardWriter
from corral.monitor.writers import CsvWriter, JsonLinesWriter

__all__ = ["Reporter"]


class Reporter:
    """Writes rows to ``metrics.jsonl``, ``progress.csv`` and TensorBoard, and shows them on the board."""

    def __init__(
        self, metrics: Path, progress: Path, tensorboard: Path | None, board: QuietBoard, resume_from: int | None
    ) -> None:
        self.board = board
        self._warned = False
        self._json = JsonLinesWriter(metrics, resume_from)
        self._csv = CsvWriter(progress, None if resume_from is None else self._json.kept)
        self._tensorboard = TensorBoardWriter(tensorboard, resume_from) if tensorboard is not None else None

    def write(self, row: Mapping[str, float], done: float) -> None:
        """Pass on a row; ``done`` is the progress in the board's unit."""
        self._try(lambda: self._json.write(row))
        self._try(lambda: self._csv.write(row))
        if (tensorboard := self._tensorboard) is not None:
            self._try(lambda: tensorboard.write(row))
        self.board.update(done, row)

    def close(self) -> None:
        """Close the files and end the progress bar."""
        self.board.stop()
        for writer in (self._json, self._csv, self._tensorboard):
            if writer is not None:
                self._try(writer.close)

    def _try(self, action: Callable[[], None]) -> None:
        """A full disk must not end a run: metrics are for people, the checkpoint is what counts."""
        try:
            action()
        except (OSError, ValueError) as error:  # ValueError: the file was closed by an earlier failure
            if not self._warned:
                self.board.warn(f"metrics cannot be written: {error}")
            self._warned = True
