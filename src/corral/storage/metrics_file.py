"""Reads ``metrics.jsonl`` line by line, and skips damaged lines."""

from __future__ import annotations

import errno
import json
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from corral.core.files import open_regular
from corral.storage.appended_file import MAX_LINE_BYTES

__all__ = ["MAX_METRICS_BYTES", "STEPS", "MetricsLine", "iterate_metrics", "parse_row", "read_metrics"]

STEPS = "time/total_timesteps"
"""The metric that every row has: the steps of the run when the row was written."""
MAX_METRICS_BYTES = 4 << 30
"""Size of the largest ``metrics.jsonl`` that is read."""
_MAX_STEPS = 2**53


class MetricsLine(NamedTuple):
    """A line of a ``metrics.jsonl``, as bytes and as the row of metrics in it."""

    text: bytes
    row: dict[str, Any]


def iterate_metrics(path: Path) -> Iterator[MetricsLine]:
    """Yield the lines of a ``metrics.jsonl``. Damaged lines are left out, with one warning at the end.

    Blank lines are skipped. A last line without a newline is skipped without a warning, because a crash left it or a
    run is just writing it.
    """
    first_damaged = damaged = 0
    with os.fdopen(open_regular(path), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > MAX_METRICS_BYTES:
            raise OSError(errno.EFBIG, f"it has {size:,} bytes, and at most {MAX_METRICS_BYTES:,} are read", str(path))
        number = 0
        while line := file.readline(MAX_LINE_BYTES):
            if len(line) < MAX_LINE_BYTES and not line.endswith(b"\n"):
                break
            number += 1
            if line.isspace():
                continue
            row = parse_row(line)
            if row is None:
                damaged += 1
                first_damaged = first_damaged or number
            else:
                yield MetricsLine(line, row)
    if damaged:
        others = f" and {damaged - 1:,} more" if damaged > 1 else ""
        warnings.warn(f"{path}: line {first_damaged:,}{others} cannot be read and was left out", stacklevel=2)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a ``metrics.jsonl``, as ``iterate_metrics`` reads them."""
    return [line.row for line in iterate_metrics(path)]


def parse_row(line: bytes) -> dict[str, Any] | None:
    """Return the row of metrics in a line; None if the line is damaged or its row has no number of steps."""
    if not line.startswith(b"{"):
        return None  # much faster than json.loads, and a file may have millions of such lines
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    steps = row.get(STEPS) if isinstance(row, dict) else None
    is_valid = isinstance(steps, int | float) and not isinstance(steps, bool) and 0 <= steps <= _MAX_STEPS
    return row if is_valid else None
