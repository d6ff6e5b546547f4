"""Reads ``metrics.jsonl``, line by line, whatever is in it."""

from __future__ import annotations

import errno
import json
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from corral.core.files import open_regular
from corral.storage.appended_file import MOST_LINE

__all__ = ["MOST_METRICS", "STEPS", "MetricsLine", "iterate_metrics", "parse_row", "read_metrics"]

STEPS = "time/total_timesteps"
MOST_METRICS = 4 << 30
"""Bytes of a ``metrics.jsonl`` that is read."""
_MOST_STEPS = 2**53


class MetricsLine(NamedTuple):
    """A line of a ``metrics.jsonl``, as it is and as what it says."""

    text: bytes
    row: dict[str, Any]


def iterate_metrics(path: Path) -> Iterator[MetricsLine]:
    """The lines of a ``metrics.jsonl``, one at a time. Damaged ones are left out, with a warning at the end.

    Blank lines are passed over. A last line without an end is what a crash left, or is just being written: it is left
    out in silence.
    """
    first = damaged = 0
    with os.fdopen(open_regular(path), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > MOST_METRICS:
            raise OSError(errno.EFBIG, f"it has {size:,} bytes, and at most {MOST_METRICS:,} are read", str(path))
        number = 0
        while line := file.readline(MOST_LINE):
            if len(line) < MOST_LINE and not line.endswith(b"\n"):
                break
            number += 1
            if line.isspace():
                continue
            row = parse_row(line)
            if row is None:
                damaged += 1
                first = first or number
            else:
                yield MetricsLine(line, row)
    if damaged:
        others = f" and {damaged - 1:,} more" if damaged > 1 else ""
        warnings.warn(f"{path}: line {first:,}{others} cannot be read and was left out", stacklevel=2)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The rows of a ``metrics.jsonl``, as ``iterate_metrics`` reads them."""
    return [line.row for line in iterate_metrics(path)]


def parse_row(line: bytes) -> dict[str, Any] | None:
    """The row in a line; None if it is damaged. Every row has a number of steps."""
    if not line.startswith(b"{"):
        return None  # at once: a file may have millions of them
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    steps = row.get(STEPS) if isinstance(row, dict) else None
    known = isinstance(steps, int | float) and not isinstance(steps, bool) and 0 <= steps <= _MOST_STEPS
    return row if known else None
