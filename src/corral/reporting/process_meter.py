"""Measures the CPU time and the memory of the trainer and its workers, at most once a second."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import psutil

__all__ = ["ProcessMeter", "ProcessUse"]

_SAMPLE_INTERVAL = 1.0
"""Seconds for which a sample counts as current."""


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """The mean CPU use and the memory of a process."""

    name: str
    """``trainer`` or ``worker_<i>``."""
    cpu: float
    """Seconds of CPU time per second: 1 is a core that is always busy."""
    memory_mb: float
    """Resident memory that is not shared with other processes."""


class _Reading(NamedTuple):
    """The CPU time and the unshared memory of a process at one moment."""

    clock: float
    cpu_seconds: float
    memory_mb: float


class ProcessMeter:
    """Measures this process and its workers. ``pids`` returns the process ids of the current workers."""

    def __init__(self, pids: Callable[[], Sequence[int]]) -> None:
        self._pids = pids
        self._processes: dict[int, psutil.Process] = {}
        self._first: dict[int, _Reading] = {}  # by process id
        self._previous: dict[int, _Reading] = {}
        self._row: dict[str, float] = {}
        self._last_sample = 0.0
        self.sample()

    def sample(self) -> dict[str, float]:
        """Return metrics of every process since the previous sample; return that one again if it is still current."""
        now = time.perf_counter()
        if self._row and now - self._last_sample < _SAMPLE_INTERVAL:
            return self._row
        self._last_sample = now
        row: dict[str, float] = {}
        for name, pid in self._names():
            reading = self._read(pid, now)
            if reading is None:
                continue
            previous = self._previous.get(pid, reading)
            row[f"system/{name}_cpu"] = _cpu_use(previous, reading)
            row[f"system/{name}_mb"] = reading.memory_mb
            self._previous[pid] = reading
            self._first.setdefault(pid, reading)
        self._row = row
        return row

    def totals(self) -> list[ProcessUse]:
        """Return the use of every process that still runs, since its first sample."""
        now, uses = time.perf_counter(), []
        for name, pid in self._names():
            reading = self._read(pid, now)
            if reading is not None and pid in self._first:
                uses.append(ProcessUse(name, _cpu_use(self._first[pid], reading), reading.memory_mb))
        return uses

    def _names(self) -> list[tuple[str, int]]:
        """Return the name and the process id of every process."""
        return [("trainer", os.getpid()), *((f"worker_{i}", pid) for i, pid in enumerate(self._pids()))]

    def _read(self, pid: int, now: float) -> _Reading | None:
        """Return the reading of a process; None if it has ended, or if no file descriptor is left to read it."""
        try:
            process = self._processes.get(pid) or psutil.Process(pid)
            self._processes[pid] = process
            with process.oneshot():
                times, memory = process.cpu_times(), process.memory_info()
        except (psutil.Error, OSError):
            return None
        unshared = (memory.rss - getattr(memory, "shared", 0)) / 2**20
        return _Reading(now, times.user + times.system, unshared)


def _cpu_use(start: _Reading, end: _Reading) -> float:
    """Return the CPU seconds per second between two readings; 0 if they are the same."""
    return (end.cpu_seconds - start.cpu_seconds) / max(end.clock - start.clock, 1e-9)
