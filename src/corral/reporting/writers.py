"""``metrics.jsonl`` and ``progress.csv``: one line per row, on disk at once, and only appended to."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from corral.storage.appended_file import AppendedFile
from corral.storage.metrics_file import STEPS, parse_row

__all__ = ["CsvWriter", "JsonLinesWriter"]

Row = Mapping[str, float]


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


def _steps_of_json(line: bytes) -> float | None:
    row = parse_row(line)
    return None if row is None else float(row[STEPS])


def _cells(line: bytes) -> list[str] | None:
    try:
        return next(csv.reader([line.decode()]), None)
    except (UnicodeDecodeError, csv.Error):
        return None
