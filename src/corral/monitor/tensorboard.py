"""TensorBoard event files, written without torch or TensorFlow. The only importer of ``tensorboard``."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from pathlib import Path

from corral.monitor.writers import STEPS

__all__ = ["TensorBoardWriter"]


class TensorBoardWriter:
    """One scalar per metric and iteration."""

    def __init__(self, directory: Path, resume_from: int | None = None) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._event, self._summary = Event, Summary
        self._writer = EventFileWriter(str(directory))
        if resume_from is not None:  # whatever lies beyond was not kept, and is taken back
            start = SessionLog(status=SessionLog.START)
            self._writer.add_event(Event(wall_time=time.time(), step=resume_from + 1, session_log=start))

    def write(self, row: Mapping[str, float]) -> None:
        """Add a row at its number of steps."""
        values = [
            self._summary.Value(tag=name, simple_value=value) for name, value in row.items() if math.isfinite(value)
        ]
        event = self._event(wall_time=time.time(), step=int(row[STEPS]), summary=self._summary(value=values))
        self._writer.add_event(event)

    def close(self) -> None:
        """Flush and close."""
        self._writer.close()
