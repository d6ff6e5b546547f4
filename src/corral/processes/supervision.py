"""How workers are looked after: how long one may be silent, and how often one may be replaced."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from corral.core.errors import UsageError

__all__ = ["NEVER", "Deadline", "HangDetector", "RecoveryConfig", "check_memory", "say_nothing"]

LOOK_SECONDS = 1.0
"""While waiting, workers are looked at this often."""
_LEAST_SECONDS, _TIMES_SLOWEST = 60.0, 20.0
_SPARE = 1.1  # a worker must be able to grow a little before it is too large


def say_nothing(text: str) -> None:
    """Whatever happens."""


@dataclass(frozen=True, slots=True)
class RecoveryConfig:
    """What was decided about workers."""

    heal: bool = False
    """Whether workers that die or hang are replaced, and envs that raise are tried again."""
    step_timeout: float | None = None
    """Seconds that one step of an env may take; None: learned from the steps seen so far."""
    start_timeout: float = 300.0
    """Seconds until a new worker has made and reset its envs."""
    max_restarts: int | None = None
    max_rss: float | None = None
    """MB of memory at which a worker is replaced, at the end of an episode."""
    warn: Callable[[str], object] = say_nothing
    known_to_work: bool = False
    """Whether the env has taken steps elsewhere: then a fault is an accident from the first step on."""


class Deadline:
    """When a caller stops waiting for workers, which go on with what they do; without ``seconds``, never."""

    def __init__(self, seconds: float | None) -> None:
        self._end = None if seconds is None else time.monotonic() + seconds
        self._looked = False

    def look_seconds(self) -> float:
        """How long to wait for workers before they are looked at; raises ``TimeoutError`` if the time is up.

        They are looked at once in any case, so that a caller who asks again and again without waiting learns it all.
        """
        if self._end is None:
            return LOOK_SECONDS
        left = self._end - time.monotonic()
        if left <= 0 and self._looked:
            raise TimeoutError
        self._looked = True
        return min(max(left, 0.0), LOOK_SECONDS)


NEVER = Deadline(None)


class HangDetector:
    """Tells a worker that hangs from one that is slow. Time counts only while somebody is watching.

    A trainer that was stopped itself (Ctrl-Z, a suspended machine) sees one long gap between two looks, and must not
    take it for the workers' fault: a gap counts for two looks at most.
    """

    def __init__(self, limit: float | None, flag: str) -> None:
        self.flag = flag
        self._limit = limit
        self._slowest = 0.0
        self._seen: dict[int, tuple[Any, float, float]] = {}  # worker: sign of life, when seen last, silent for
        self._factor: dict[int, int] = {}

    def limit(self, worker: int) -> float:
        """Seconds that this worker may be silent."""
        usual = max(_LEAST_SECONDS, _TIMES_SLOWEST * self._slowest) if self._limit is None else self._limit
        return usual * self._factor.get(worker, 1)

    def is_hung(self, worker: int, sign: Any) -> bool:
        """Whether a worker has shown the same sign for too long; to be asked again and again while waiting for it."""
        now = time.monotonic()
        known, last, silent = self._seen.get(worker, (None, now, 0.0))
        silent += min(now - last, 2 * LOOK_SECONDS)
        if sign != known:
            self._slowest = max(self._slowest, silent)
            silent = 0.0
        self._seen[worker] = sign, now, silent
        return silent > self.limit(worker)

    def stop_watching(self) -> None:
        """Nobody is watching any more; what was silent until now was just slow."""
        if self._seen:
            self._slowest = max(self._slowest, *(silent for _, _, silent in self._seen.values()))
            self._seen.clear()

    def forget(self, worker: int) -> None:
        """Another worker takes this one's place, and its silence begins anew."""
        self._seen.pop(worker, None)

    def double_limit(self, worker: int) -> None:
        """This worker may take twice as long, until it is done: one of its steps took too long."""
        self._seen.pop(worker, None)
        self._factor[worker] = 2 * self._factor.get(worker, 1)

    def reset_limits(self) -> None:
        """They are done."""
        if self._factor:
            self._factor.clear()


def check_memory(max_rss: float | None, used: float) -> None:
    """Refuse a limit that a new worker, which uses so many MB, would reach at once."""
    if max_rss is not None and used * _SPARE > max_rss:
        raise UsageError(
            f"worker_max_rss {max_rss:g}: a new worker uses {used:.0f} MB already; "
            f"allow at least {used * 2:.0f}, or put fewer envs in each (--num-workers)"
        )
