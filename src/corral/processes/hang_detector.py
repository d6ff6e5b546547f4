"""Detects workers that hang: those whose heartbeat stays the same for too long."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

__all__ = ["NEVER", "POLL_SECONDS", "Deadline", "HangDetector"]

POLL_SECONDS = 1.0
"""Workers that are waited for are checked this often."""
_MIN_TIMEOUT, _TIMES_SLOWEST = 60.0, 20.0  # a learned time-out: at least a minute, else 20 times the slowest step


class Deadline:
    """The time at which a caller stops waiting for workers, which continue their work. Without ``seconds``: never."""

    def __init__(self, seconds: float | None) -> None:
        self._end = None if seconds is None else time.monotonic() + seconds
        self._polled = False

    def poll_seconds(self) -> float:
        """Return how long to wait for workers before they are checked; raise ``TimeoutError`` after the deadline.

        Even a deadline of 0 seconds allows one check, so that a caller that polls without waiting sees all events.
        """
        if self._end is None:
            return POLL_SECONDS
        left = self._end - time.monotonic()
        if left <= 0 and self._polled:
            raise TimeoutError
        self._polled = True
        return min(max(left, 0.0), POLL_SECONDS)


NEVER = Deadline(None)


@dataclass(slots=True)
class _Silence:
    """How long a worker's heartbeat has not changed."""

    heartbeat: Any
    checked_at: float
    seconds: float


class HangDetector:
    """Tells a worker that hangs from one that is slow. Time counts only between two checks of a caller that waits.

    When the trainer itself was stopped (Ctrl-Z, a suspended machine), it sees one long gap between two checks, which is
    not the workers' fault: a gap counts as two polling intervals at most.
    """

    def __init__(self, limit: float | None, flag: str) -> None:
        self.flag = flag
        """The command-line flag that sets the limit, for error messages."""
        self._limit = limit
        self._slowest = 0.0
        self._silences: dict[int, _Silence] = {}  # by worker
        self._factors: dict[int, int] = {}  # by worker: by how much its limit is larger than usual

    def limit(self, worker: int) -> float:
        """Return for how many seconds this worker's heartbeat may stay the same."""
        usual = max(_MIN_TIMEOUT, _TIMES_SLOWEST * self._slowest) if self._limit is None else self._limit
        return usual * self._factors.get(worker, 1)

    def is_hung(self, worker: int, heartbeat: Any) -> bool:
        """Return whether a worker's heartbeat has been the same for too long. Call it repeatedly while waiting."""
        now = time.monotonic()
        silence = self._silences.setdefault(worker, _Silence(None, now, 0.0))
        silence.seconds += min(now - silence.checked_at, 2 * POLL_SECONDS)
        if heartbeat != silence.heartbeat:
            self._slowest = max(self._slowest, silence.seconds)
            silence.seconds = 0.0
        silence.heartbeat, silence.checked_at = heartbeat, now
        return silence.seconds > self.limit(worker)

    def stop_watching(self) -> None:
        """End the wait for all workers: those that were silent until now were slow, and did not hang."""
        if self._silences:
            self._slowest = max(self._slowest, *(silence.seconds for silence in self._silences.values()))
            self._silences.clear()

    def forget(self, worker: int) -> None:
        """Start timing this worker from zero, because a new process takes its place."""
        self._silences.pop(worker, None)

    def double_limit(self, worker: int) -> None:
        """Allow this worker twice the time, until ``reset_limits``, because one of its steps took too long."""
        self._silences.pop(worker, None)
        self._factors[worker] = 2 * self._factors.get(worker, 1)

    def reset_limits(self) -> None:
        """Reset the limits of all workers to normal."""
        self._factors.clear()
