"""Writers of ``metrics.jsonl`` and ``progress.csv``: each row is appended as a line, without buffering."""

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
    """Writes each row as a JSON object in a line. On resume, it first cuts off lines of steps after ``resume_from``."""

    def __init__(self, path: Path, resume_from: int | None = None) -> None:
        self._file = AppendedFile(path)
        self.damaged = 0
        """Unreadable lines that were cut off."""
        end = 0
        if resume_from is not None:
            end, self.damaged = self._file.find_cut_point(_steps_of_json, resume_from)
        self._file.truncate(end)

    def write(self, row: Row) -> None:
        """Append a line. NaN and infinities become null, because JSON does not have them."""
        values = {name: value if math.isfinite(value) else None for name, value in row.items()}
        self._file.append(f"{json.dumps(values)}\n".encode())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class CsvWriter:
    """Writes each row as a line of comma-separated values, for spreadsheets and ``tail -f``.

    The columns never change: a metric without a column is left out, and on resume the file keeps its columns.
    """

    def __init__(self, path: Path, columns: Sequence[str], resume_from: int | None = None) -> None:
        self._file = AppendedFile(path)
        header = self._file.first_line()
        file_columns = _cells(header) if header is not None else None
        if header is None or file_columns is None or STEPS not in file_columns:
            self._columns = [name for name in columns if name.isprintable()]
            self._file.truncate(0)
            self._file.append(self._line(dict.fromkeys(self._columns, ""), header=True))
            return
        self._columns = file_columns
        end = len(header)
        if resume_from is not None:
            end = self._file.find_cut_point(self._steps_of, resume_from, start=len(header)).position
        self._file.truncate(end)

    def write(self, row: Row) -> None:
        """Append a line."""
        self._file.append(self._line(row))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _line(self, row: Mapping[str, Any], header: bool = False) -> bytes:
        """Return a row, or the header, as a line of the file."""
        text = io.StringIO()
        writer = csv.DictWriter(text, self._columns, restval="", extrasaction="ignore")
        if header:
            writer.writeheader()
        else:
            writer.writerow(row)
        return text.getvalue().encode()

    def _steps_of(self, line: bytes) -> float | None:
        """Return the number of steps in a line; None if the line is damaged."""
        cells = _cells(line)
        if cells is None or len(cells) != len(self._columns):
            return None
        try:
            return float(cells[self._columns.index(STEPS)])
        except ValueError:
            return None


def _steps_of_json(line: bytes) -> float | None:
    """Return the number of steps in a line; None if the line is damaged."""
    row = parse_row(line)
    return None if row is None else float(row[STEPS])


def _cells(line: bytes) -> list[str] | None:
    """Return the cells of a line of comma-separated values; None if it cannot be parsed."""
    try:
        return next(csv.reader([line.decode()]), None)
    except (UnicodeDecodeError, csv.Error):
        return None
