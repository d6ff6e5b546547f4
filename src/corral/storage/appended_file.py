"""Files that only grow. Each record is written completely or not at all, and a resumed run can cut the file off."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from corral.core.files import open_regular

__all__ = ["MAX_LINE_BYTES", "AppendedFile", "CutPoint"]

MAX_LINE_BYTES = 1 << 20
"""Longest line of a file; a longer one is damaged."""
MAX_SEARCH_BYTES, MAX_SEARCH_LINES = 1 << 30, 2_000_000
"""How far before its end a file is searched for the line from which a run resumes."""
_BLOCK_BYTES = 1 << 18


class CutPoint(NamedTuple):
    """The position at which to cut a file off, and the number of damaged lines behind it."""

    position: int
    damaged: int


class AppendedFile:
    """A regular file to which records are appended. A record that does not fit on the disk is removed again."""

    def __init__(self, path: Path, new: bool = False) -> None:
        self._path = path
        self._descriptor = open_regular(path, os.O_RDWR | os.O_CREAT | (os.O_EXCL if new else 0))
        self._end = os.fstat(self._descriptor).st_size

    def append(self, data: bytes) -> None:
        """Write a record, without buffering."""
        remaining = memoryview(data)
        os.lseek(self._descriptor, self._end, os.SEEK_SET)
        try:
            while remaining:
                remaining = remaining[os.write(self._descriptor, remaining) :]
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, self._end)
            raise
        self._end += len(data)

    def first_line(self) -> bytes | None:
        """Return the first line with its newline; None if there is no complete line."""
        line, newline, _ = self._read(0, MAX_LINE_BYTES).partition(b"\n")
        return line + newline if newline else None

    def truncate(self, position: int) -> None:
        """Remove everything from a position on."""
        os.ftruncate(self._descriptor, position)
        self._end = position

    def find_cut_point(self, steps_of: Callable[[bytes], float | None], last_step: float, start: int = 0) -> CutPoint:
        """Return the end of the last line whose step is at most ``last_step``, searching from the end of the file.

        ``steps_of`` returns the step of a line, or None if the line is damaged. ``start`` is the position of the first
        line that has a step.
        """
        damaged = 0
        for number, (end, line) in enumerate(self._lines_from_end(start)):
            # Line 0 is what follows the last newline: nothing, or an incomplete line that a crash left.
            is_complete = number > 0
            steps = steps_of(line) if is_complete else None
            if steps is not None and steps <= last_step:
                return CutPoint(end + 1, damaged)
            damaged += is_complete and steps is None
            if number > MAX_SEARCH_LINES or self._end - end > MAX_SEARCH_BYTES:
                problem = f"none of its last lines is of step {last_step:,} or before; move the file away and resume"
                raise OSError(errno.EFBIG, problem, str(self._path))
        return CutPoint(start, damaged)

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1

    def _lines_from_end(self, start: int) -> Iterator[tuple[int, bytes]]:
        """Yield lines and the positions of their ends, from the last line to the one at ``start``.

        A line of more than ``MAX_LINE_BYTES`` may be yielded in several parts, so that it never fills the memory.
        """
        position, head = self._end, b""  # `head` is the beginning of what was read: the end of an earlier line
        while position > start:
            block_start = max(start, position - _BLOCK_BYTES)
            data = self._read(block_start, position - block_start) + head
            end = block_start + len(data)
            head, *lines = data.split(b"\n")
            for line in reversed(lines):
                yield end, line
                end -= len(line) + 1
            if len(head) > MAX_LINE_BYTES:
                yield end, head
                head = b""
            position = block_start
        yield start + len(head), head

    def _read(self, start: int, size: int) -> bytes:
        """Return ``size`` bytes from a position on; fewer at the end of the file."""
        os.lseek(self._descriptor, start, os.SEEK_SET)
        chunks = []
        while size and (chunk := os.read(self._descriptor, size)):
            chunks.append(chunk)
            size -= len(chunk)
        return b"".join(chunks)
