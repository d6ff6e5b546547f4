"""TensorBoard event files, written without torch or TensorFlow. The only importer of ``tensorboard``.

Records are written here and now: TensorBoard's own writer has a thread for it, which a full disk ends for good.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import math
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from corral.storage.appended_file import AppendedFile
from corral.storage.metrics_file import STEPS

__all__ = ["TensorBoardWriter"]


class TensorBoardWriter:
    """One scalar per metric and row."""

    def __init__(self, directory: Path, resume_from: int | None = None) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event, self._summary, self._records = Event, Summary, RecordWriter
        directory.mkdir(parents=True, exist_ok=True)
        self._file = _new_file(directory)
        self._add(Event(wall_time=time.time(), file_version="brain.Event:2"))
        if resume_from is not None:  # whatever lies beyond was not kept, and is taken back
            start = SessionLog(status=SessionLog.START)
            self._add(Event(wall_time=time.time(), step=resume_from + 1, session_log=start))

    def write(self, row: Mapping[str, float]) -> None:
        """Add a row at its number of steps."""
        values = [
            self._summary.Value(tag=name, simple_value=value) for name, value in row.items() if math.isfinite(value)
        ]
        self._add(self._event(wall_time=time.time(), step=int(row[STEPS]), summary=self._summary(value=values)))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _add(self, event: Any) -> None:
        record = io.BytesIO()
        self._records(record).write(event.SerializeToString())
        self._file.append(record.getvalue())


def _new_file(directory: Path) -> AppendedFile:
    """An event file that was not there before, under a name as TensorBoard gives: files are read in that order."""
    stem = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}"
    for number in itertools.count():
        with contextlib.suppress(FileExistsError):
            return AppendedFile(directory / f"{stem}.{number}", new=True)
    raise AssertionError("unreachable")
