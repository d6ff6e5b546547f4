"""Load balancing (``--adaptive``): proposes how many envs each worker should own. It moves no envs itself.

Two conditions can change while a run trains:

- Workers become unequal, because some envs are slower or some cores are taken. Envs then go from slow workers to fast
  ones.
- All workers become slower, because something else uses the machine. One worker fewer is then tried. Later one worker
  more is tried again.

Every proposal is a trial: if rollouts do not become faster, the balancer proposes the previous assignment again.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

__all__ = ["LoadBalancer"]

_WINDOW = 8
"""Rollouts that are measured before each decision."""
_MAX_IMBALANCE = 1.2
"""Envs are moved if the slowest worker's time is more than this multiple of the workers' mean time."""
_MAX_SLOWDOWN = 1.2
"""A worker is removed if rollouts take more than this multiple of the best time with as many workers."""
_KEEP_BELOW = 0.97
"""A trial is kept if rollouts take at most this fraction of the time that they took before."""
_WINDOWS_UNTIL_MORE_WORKERS = 10
"""Decisions after a change of the number of workers, until one worker more is tried."""


@dataclass(frozen=True, slots=True)
class _Measurement:
    """Means over the rollouts of a window."""

    rollout_seconds: float
    """The time of the slowest worker."""
    busy_seconds: list[float]
    """The time of each worker; 0 for a worker without envs."""


@dataclass(frozen=True, slots=True)
class _Trial:
    """What to return to if a new assignment is not faster."""

    previous_assignment: list[range]
    previous_seconds: float
    """What a rollout took with the previous assignment."""


class LoadBalancer:
    """Measures rollouts and proposes assignments: for each worker the range of envs that it should own.

    After each window of rollouts it takes the first of these decisions that applies:

    1. Undo the trial under way, if it is not faster.
    2. Try another number of workers: one fewer after a slowdown; one more after ten windows without such a change.
    3. Try another division of the envs among the same workers, if these are unequal.
    """

    def __init__(self, n_envs: int, num_workers: int) -> None:
        self._n_envs = n_envs
        self._max_workers = num_workers
        self._window: list[list[float]] = []  # busy seconds, by rollout and worker
        self._best_seconds: dict[int, float] = {}  # the shortest time of a rollout, by number of active workers
        self._trial: _Trial | None = None
        self._rejected_sizes: set[tuple[int, ...]] = set()  # numbers of envs by worker that were tried and not faster
        self._windows_until_more_workers = _WINDOWS_UNTIL_MORE_WORKERS
        self._is_disabled = False

    def record_busy_times(self, busy_seconds: Sequence[float]) -> None:
        """Record how long each worker was busy with the last rollout; 0 for a worker without envs."""
        if not self._is_disabled:
            self._window.append(list(busy_seconds))

    def proposal(self, assignment: Sequence[range]) -> list[range] | None:
        """Return a better assignment than the current one, or None to keep it."""
        if self._is_disabled or len(self._window) < _WINDOW:
            return None
        measured = self._finish_window()
        return (
            self._undo_failed_trial(assignment, measured)
            or self._change_number_of_workers(assignment, measured)
            or self._equalize_workers(assignment, measured)
        )

    def record_move(self, moved: bool) -> None:
        """Record whether the proposed move succeeded. If an env cannot be moved, nothing is proposed any more."""
        self._is_disabled = self._is_disabled or not moved

    def _finish_window(self) -> _Measurement:
        measured = _Measurement(
            rollout_seconds=fmean(max(by_worker) for by_worker in self._window),
            busy_seconds=[fmean(by_rollout) for by_rollout in zip(*self._window, strict=True)],
        )
        self._window = []
        return measured

    def _undo_failed_trial(self, assignment: Sequence[range], measured: _Measurement) -> list[range] | None:
        """End the trial under way, if there is one. Return the previous assignment if the new one is not faster."""
        trial, self._trial = self._trial, None
        if trial is None or measured.rollout_seconds <= _KEEP_BELOW * trial.previous_seconds:
            return None
        self._rejected_sizes.add(_sizes(assignment))
        return trial.previous_assignment

    def _change_number_of_workers(self, assignment: Sequence[range], measured: _Measurement) -> list[range] | None:
        """Try one worker fewer after a slowdown, or one more when it is time to."""
        seconds, n_active = measured.rollout_seconds, sum(1 for envs in assignment if envs)
        best = self._best_seconds[n_active] = min(seconds, self._best_seconds.get(n_active, seconds))
        self._windows_until_more_workers -= 1
        if seconds > _MAX_SLOWDOWN * best and n_active > 1:
            n_workers = n_active - 1
        elif n_active < self._max_workers and self._windows_until_more_workers <= 0:
            n_workers = n_active + 1
        else:
            return None
        self._windows_until_more_workers = _WINDOWS_UNTIL_MORE_WORKERS
        self._best_seconds[n_active] = seconds  # conditions have changed: earlier measurements no longer hold
        self._rejected_sizes = set()
        self._trial = _Trial(list(assignment), seconds)
        return self._divide([1.0] * n_workers)

    def _equalize_workers(self, assignment: Sequence[range], measured: _Measurement) -> list[range] | None:
        """Try to divide the envs in proportion to the workers' speeds, if these differ much."""
        active = [
            (envs, seconds)
            for envs, seconds in zip(assignment, measured.busy_seconds, strict=True)
            if envs and seconds > 0
        ]
        if max(seconds for _, seconds in active) <= _MAX_IMBALANCE * fmean(seconds for _, seconds in active):
            return None
        proposed = self._divide([len(envs) / seconds for envs, seconds in active])
        if _sizes(proposed) in self._rejected_sizes or _sizes(proposed) == _sizes(assignment):
            return None
        self._trial = _Trial(list(assignment), measured.rollout_seconds)
        return proposed

    def _divide(self, speeds: Sequence[float]) -> list[range]:
        """Divide the envs among the first workers in proportion to their speeds; the others get no envs.

        Each of the first workers gets at least one env, and all get consecutive ones.
        """
        n_spare, total_speed = self._n_envs - len(speeds), sum(speeds)
        ends = [round(n_spare * speed / total_speed) for speed in itertools.accumulate(speeds)]
        counts = [1 + end - start for start, end in itertools.pairwise([0, *ends])]
        edges = list(itertools.accumulate(counts, initial=0))
        assignment = [range(start, stop) for start, stop in itertools.pairwise(edges)]
        return assignment + [range(0)] * (self._max_workers - len(speeds))


def _sizes(assignment: Sequence[range]) -> tuple[int, ...]:
    """Return the number of envs of each worker."""
    return tuple(len(envs) for envs in assignment)
