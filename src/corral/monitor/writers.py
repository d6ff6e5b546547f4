"""``metrics.jsonl`` and ``progress.csv``: one line per iteration, flushed, and clean after a resume."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

__all__ = ["CsvWriter", "JsonLinesWriter", "read_metrics"]

STEPS = "time/total_timesteps"
Row = Mapping[str, float]


class JsonLinesWriter:
    """One JSON object per line. On resume, lines of steps that will be taken again are dropped first."""

    def __init__(self, path: Path, resume_from: int | None = None) -> None:
        self.kept: list[dict[str, Any]] = []
        """Rows of an earlier part of the run."""
        if resume_from is not None and path.exists():
            self.kept = [row for row in read_metrics(path) if row.get(STEPS, 0) <= resume_from]
            temporary = path.with_suffix(".tmp")
            temporary.write_text("".join(json.dumps(row) + "\n" for row in self.kept), encoding="utf-8")
            temporary.replace(path)
        self._file: IO[str] = path.open("a", encoding="utf-8")

    def write(self, row: Row) -> None:
        """Append a line. What is not a finite number becomes null: NaN is not JSON."""
        self._file.write(json.dumps({k: v if math.isfinite(v) else None for k, v in row.items()}) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class CsvWriter:
    """The same for spreadsheets. A metric that appears late gets its column by rewriting the file once."""

    def __init__(self, path: Path, kept: Sequence[Mapping[str, Any]] | None = None) -> None:
        self._path = path
        self._columns = list(dict.fromkeys(name for row in kept or () for name in row))
        if kept is not None:
            self._rewrite(kept)
        self._file: IO[str] = path.open("a", newline="", encoding="utf-8")

    def write(self, row: Row) -> None:
        """Append a line."""
        new = [name for name in row if name not in self._columns]
        if new:
            self._file.close()
            with self._path.open(newline="", encoding="utf-8") as file:
                rows = list(csv.DictReader(file))
            self._columns += new
            self._rewrite(rows)
            self._file = self._path.open("a", newline="", encoding="utf-8")
        csv.DictWriter(self._file, self._columns, restval="").writerow(row)
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _rewrite(self, rows: Sequence[Mapping[str, Any]]) -> None:
        temporary = self._path.with_suffix(".csv.tmp")
        with temporary.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, self._columns, restval="", extrasaction="ignore")
            writer.writeheader()
            writer.writerows(rows)
        temporary.replace(self._path)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The rows of a ``metrics.jsonl``; a last line that was cut off by a crash is left out."""
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError:
            break
    return rows
