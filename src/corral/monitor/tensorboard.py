"""TensorBoard event files, written without torch or TensorFlow. The only importer of ``tensorboard``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from corral.monitor.writers import STEPS

__all__ = ["TensorBoardWriter"]


class TensorBoardWriter:
    """One scalar per metric and iteration."""

    def __init__(self, directory: Path) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._event, self._summary = Event, Summary
        self._writer = EventFileWriter(str(directory))

    def write(self, row: Mapping[str, float], wall_time: float) -> None:
        """Add a row at its number of steps."""
        values = [
            self._summary.Value(tag=name, simple_value=value) for name, value in row.items() if math.isfinite(value)
        ]
        event = self._event(wall_time=wall_time, step=int(row[STEPS]), summary=self._summary(value=values))
        self._writer.add_event(event)

    def close(self) -> None:
        """Flush and close."""
        self._writer.close()
