"""A file that only grows: every record is in it whole or not at all, and a resumed run cuts it where it goes on."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from corral.core.files import open_regular

__all__ = ["MOST_LINE", "AppendedFile", "Cut"]

MOST_LINE = 1 << 20
"""Bytes of a line; a longer one is damaged."""
MOST_BACK, MOST_LINES = 1 << 30, 2_000_000
"""Bytes and lines before the end in which the place to go on from is looked for."""
_BLOCK = 1 << 18


class Cut(NamedTuple):
    """Where a file is to be cut off, and how many damaged lines were passed over to find that place."""

    position: int
    damaged: int


class AppendedFile:
    """Appends records to a regular file. One that does not fit on the disk is taken back whole."""

    def __init__(self, path: Path, new: bool = False) -> None:
        self._path = path
        self._file = open_regular(path, os.O_RDWR | os.O_CREAT | (os.O_EXCL if new else 0))
        self._end = os.fstat(self._file).st_size

    def append(self, data: bytes) -> None:
        """Add a record, which is in the file when this returns."""
        left = memoryview(data)
        os.lseek(self._file, self._end, os.SEEK_SET)
        try:
            while left:
                left = left[os.write(self._file, left) :]
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._end)
            raise
        self._end += len(data)

    def first_line(self) -> bytes | None:
        """The first line, with its end; None if there is none."""
        line, newline, _ = self._read(0, MOST_LINE).partition(b"\n")
        return line + newline if newline else None

    def cut(self, position: int) -> None:
        """Drop what lies behind a position."""
        os.ftruncate(self._file, position)
        self._end = position

    def find_cut(self, steps_of: Callable[[bytes], float | None], until: float, first: int = 0) -> Cut:
        """The end of the last line of a step up to ``until``, looked for from the end of the file.

        ``steps_of`` gives the step of a line, or None if it is damaged. ``first`` is where the first such line begins.
        """
        damaged = 0
        for number, (end, line) in enumerate(self._lines_from_end(first)):
            steps = steps_of(line) if number else None  # the first is what a crash left without an end
            if steps is not None and steps <= until:
                return Cut(end + 1, damaged)
            damaged += bool(number) and steps is None
            if number > MOST_LINES or self._end - end > MOST_BACK:
                problem = f"none of its last lines is of step {until:,} or before; move it away to go on"
                raise OSError(errno.EFBIG, problem, str(self._path))
        return Cut(first, damaged)

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1

    def _lines_from_end(self, first: int) -> Iterator[tuple[int, bytes]]:
        """Lines with the position of each one's end, the last line first. Of a long one, only parts may be seen."""
        position, tail = self._end, b""
        while position > first:
            start = max(first, position - _BLOCK)
            data = self._read(start, position - start) + tail
            end = start + len(data)
            tail, *lines = data.split(b"\n")
            for line in reversed(lines):
                yield end, line
                end -= len(line) + 1
            if len(tail) > MOST_LINE:
                yield end, tail
                tail = b""
            position = start
        yield first + len(tail), tail

    def _read(self, start: int, size: int) -> bytes:
        os.lseek(self._file, start, os.SEEK_SET)
        parts = []
        while size and (part := os.read(self._file, size)):
            parts.append(part)
            size -= len(part)
        return b"".join(parts)
