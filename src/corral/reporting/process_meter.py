"""Processor time and memory of the trainer and its workers, looked at about once a second."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import psutil

__all__ = ["ProcessMeter", "ProcessUse"]

_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """What a process used: cores' worth of time, and memory of its own in MB."""

    name: str
    cpu: float
    memory_mb: float


class ProcessMeter:
    """Watches this process and the workers that ``pids`` names at the time."""

    def __init__(self, pids: Callable[[], Sequence[int]]) -> None:
        self._pids = pids
        self._known: dict[int, psutil.Process] = {}
        self._began: dict[int, tuple[float, float]] = {}  # pid to (clock, processor seconds) at first sight
        self._before: dict[int, tuple[float, float]] = {}
        self._row: dict[str, float] = {}
        self._last = 0.0
        self.sample()

    def sample(self) -> dict[str, float]:
        """Metrics of every process since the last look; the same as before if that was just now."""
        now = time.perf_counter()
        if self._row and now - self._last < _SECONDS:
            return self._row
        self._last = now
        row: dict[str, float] = {}
        for name, pid in self._names():
            seen = self._look(pid)
            if seen is None:
                continue
            clock, used = self._before.get(pid, (now, seen[0]))
            row[f"system/{name}_cpu"] = (seen[0] - used) / (now - clock) if now > clock else 0.0
            row[f"system/{name}_mb"] = seen[1]
            self._before[pid] = now, seen[0]
            self._began.setdefault(pid, (now, seen[0]))
        self._row = row
        return row

    def totals(self) -> list[ProcessUse]:
        """What every process that still runs used since it was first seen."""
        now, found = time.perf_counter(), []
        for name, pid in self._names():
            seen = self._look(pid)
            if seen is not None and pid in self._began:
                clock, used = self._began[pid]
                found.append(ProcessUse(name, (seen[0] - used) / max(now - clock, 1e-9), seen[1]))
        return found

    def _names(self) -> list[tuple[str, int]]:
        return [("trainer", os.getpid()), *((f"worker_{i}", pid) for i, pid in enumerate(self._pids()))]

    def _look(self, pid: int) -> tuple[float, float] | None:
        """Processor seconds, and MB that are not shared with other processes."""
        try:
            process = self._known.get(pid) or psutil.Process(pid)
            self._known[pid] = process
            with process.oneshot():
                times, memory = process.cpu_times(), process.memory_info()
        except (psutil.Error, OSError):  # it is gone, or there is no descriptor left to look with
            return None
        return times.user + times.system, (memory.rss - getattr(memory, "shared", 0)) / 2**20
