"""A limit for the memory (resident set size, RSS) of a process."""

from __future__ import annotations

import time

import psutil

__all__ = ["RssLimit"]

_INTERVAL = 1.0  # seconds between two measurements


class RssLimit:
    """Checks this process's memory against ``max_rss`` in MB; None means no limit.

    Memory is measured about once a second, because a measurement takes longer than a step of a fast env.
    """

    def __init__(self, max_rss: float | None) -> None:
        self._max_rss = max_rss
        self._next_time = 0.0

    @staticmethod
    def current_mb() -> float:
        """Return the memory that this process uses, in MB."""
        return float(psutil.Process().memory_info().rss) / 2**20

    def is_exceeded(self) -> bool:
        """Return whether this process uses more than the limit; False if it was measured less than a second ago."""
        if self._max_rss is None or time.monotonic() < self._next_time:
            return False
        self._next_time = time.monotonic() + _INTERVAL
        return self.current_mb() > self._max_rss
