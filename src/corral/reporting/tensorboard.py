"""Writes TensorBoard event files without torch or TensorFlow. This is the only module that imports ``tensorboard``.

Rows are written without TensorBoard's own writer, whose thread dies when the disk is full and never writes again.
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
    """Writes a scalar event for each finite metric of each row."""

    def __init__(self, directory: Path, resume_from: int | None = None) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event_class, self._summary_class, self._record_writer_class = Event, Summary, RecordWriter
        directory.mkdir(parents=True, exist_ok=True)
        self._file = _new_file(directory)
        self._add(Event(wall_time=time.time(), file_version="brain.Event:2"))
        if resume_from is not None:  # TensorBoard discards the events of earlier files from this step on
            start = SessionLog(status=SessionLog.START)
            self._add(Event(wall_time=time.time(), step=resume_from + 1, session_log=start))

    def write(self, row: Mapping[str, float]) -> None:
        """Write the events of a row at its number of steps."""
        value_class = self._summary_class.Value
        values = [value_class(tag=name, simple_value=value) for name, value in row.items() if math.isfinite(value)]
        summary = self._summary_class(value=values)
        self._add(self._event_class(wall_time=time.time(), step=int(row[STEPS]), summary=summary))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _add(self, event: Any) -> None:
        record = io.BytesIO()
        self._record_writer_class(record).write(event.SerializeToString())
        self._file.append(record.getvalue())


def _new_file(directory: Path) -> AppendedFile:
    """Create a new event file, named as TensorBoard names them, because it reads them in the order of their names."""
    stem = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}"
    for number in itertools.count():
        with contextlib.suppress(FileExistsError):
            return AppendedFile(directory / f"{stem}.{number}", new=True)
    raise AssertionError("unreachable")
