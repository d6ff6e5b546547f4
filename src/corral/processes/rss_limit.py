"""Whether this process uses more memory than it may."""

from __future__ import annotations

import time

import psutil

__all__ = ["RssLimit"]

_SECONDS = 1.0


class RssLimit:
    """Looks about once a second, for a look costs more than a step of a quick env."""

    def __init__(self, max_rss: float | None) -> None:
        self._max_rss = max_rss
        self._next = 0.0

    @staticmethod
    def now() -> float:
        """MB that this process uses."""
        return float(psutil.Process().memory_info().rss) / 2**20

    def outgrown(self) -> bool:
        """Whether it is too much."""
        if self._max_rss is None or time.monotonic() < self._next:
            return False
        self._next = time.monotonic() + _SECONDS
        return self.now() > self._max_rss
