"""``metrics.jsonl`` and ``progress.csv``: one line per row, on disk at once, and only appended to."""

from __future__ import annotations

import csv
import errno
import io
import json
import math
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from corral.core.files import open_regular
from corral.monitor.appended_file import MOST_LINE, AppendedFile

__all__ = ["CsvWriter", "JsonLinesWriter", "MetricsLine", "iterate_metrics", "read_metrics"]

STEPS = "time/total_timesteps"
MOST_METRICS = 4 << 30
"""Bytes of a ``metrics.jsonl`` that is read."""
_MOST_STEPS = 2**53
Row = Mapping[str, float]


class MetricsLine(NamedTuple):
    """A line of a ``metrics.jsonl``, as it is and as what it says."""

    text: bytes
    row: dict[str, Any]


class JsonLinesWriter:
    """One JSON object per line. On resume, lines of steps that will be taken again are cut off first."""

    def __init__(self, path: Path, resume_from: int | None = None) -> None:
        self._file = AppendedFile(path)
        self.damaged = 0
        """Lines that could not be read on the way to where the run goes on."""
        cut = 0
        if resume_from is not None:
            cut, self.damaged = self._file.find_cut(_steps_of_json, resume_from)
        self._file.cut(cut)

    def write(self, row: Row) -> None:
        """Append a line. What is not a finite number becomes null: NaN is not JSON."""
        told = {name: value if math.isfinite(value) else None for name, value in row.items()}
        self._file.append(f"{json.dumps(told)}\n".encode())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class CsvWriter:
    """The same for spreadsheets and ``tail -f``, with columns that never change.

    A metric that is not among them is left out. On resume the file keeps the columns that it has.
    """

    def __init__(self, path: Path, columns: Sequence[str], resume_from: int | None = None) -> None:
        self._file = AppendedFile(path)
        header = self._file.first_line()
        found = _cells(header) if header is not None else None
        if header is None or found is None or STEPS not in found:
            self._columns = [name for name in columns if name.isprintable()]
            self._file.cut(0)
            self._file.append(self._line(dict.fromkeys(self._columns, ""), header=True))
            return
        self._columns = found
        cut = len(header)
        if resume_from is not None:
            cut = self._file.find_cut(self._steps_of, resume_from, first=len(header)).position
        self._file.cut(cut)

    def write(self, row: Row) -> None:
        """Append a line."""
        self._file.append(self._line(row))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _line(self, row: Mapping[str, Any], header: bool = False) -> bytes:
        text = io.StringIO()
        writer = csv.DictWriter(text, self._columns, restval="", extrasaction="ignore")
        if header:
            writer.writeheader()
        else:
            writer.writerow(row)
        return text.getvalue().encode()

    def _steps_of(self, line: bytes) -> float | None:
        cells = _cells(line)
        if cells is None or len(cells) != len(self._columns):
            return None
        try:
            return float(cells[self._columns.index(STEPS)])
        except ValueError:
            return None


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
            row = _row_of(line)
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


def _row_of(line: bytes) -> dict[str, Any] | None:
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


def _steps_of_json(line: bytes) -> float | None:
    row = _row_of(line)
    return None if row is None else float(row[STEPS])


def _cells(line: bytes) -> list[str] | None:
    try:
        return next(csv.reader([line.decode()]), None)
    except (UnicodeDecodeError, csv.Error):
        return None
