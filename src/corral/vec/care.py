"""How workers are looked after: how long one may be silent, and how often one may be replaced."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np

from corral.core.errors import CorralError, EnvFault, EnvPlace, UsageError, WorkerDied
from corral.vec.history import EnvPosition

__all__ = ["NEVER", "Care", "Deadline", "Patience", "Restarts", "Scene", "check_memory", "say_nothing", "warn_of_lost"]

LOOK_SECONDS = 1.0
"""While waiting, workers are looked at this often."""
_LEAST_SECONDS, _TIMES_SLOWEST = 60.0, 20.0
_WITHOUT_PROGRESS = 3
_SPARE = 1.1  # a worker must be able to grow a little before it is too large


def say_nothing(text: str) -> None:
    """Whatever happens."""


@dataclass(frozen=True, slots=True)
class Care:
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
    proven: bool = False
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


class Patience:
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

    def is_over(self, worker: int, sign: Any) -> bool:
        """Whether a worker has shown the same sign for too long; to be asked again and again while waiting for it."""
        now = time.monotonic()
        known, last, silent = self._seen.get(worker, (None, now, 0.0))
        silent += min(now - last, 2 * LOOK_SECONDS)
        if sign != known:
            self._slowest = max(self._slowest, silent)
            silent = 0.0
        self._seen[worker] = sign, now, silent
        return silent > self.limit(worker)

    def look_away(self) -> None:
        """Nobody is watching any more; what was silent until now was just slow."""
        if self._seen:
            self._slowest = max(self._slowest, *(silent for _, _, silent in self._seen.values()))
            self._seen.clear()

    def forget(self, worker: int) -> None:
        """Another worker takes this one's place, and its silence begins anew."""
        self._seen.pop(worker, None)

    def double(self, worker: int) -> None:
        """This worker may take twice as long, until it is done: one of its steps took too long."""
        self._seen.pop(worker, None)
        self._factor[worker] = 2 * self._factor.get(worker, 1)

    def relax(self) -> None:
        """They are done."""
        if self._factor:
            self._factor.clear()


@dataclass(frozen=True, slots=True)
class Scene:
    """What a worker was doing when it died: in which step of which env, if it was stepping any."""

    env: int
    position: EnvPosition
    action: Any
    row: Any
    """The action as per-leaf arrays."""

    @property
    def place(self) -> EnvPlace:
        """The same in words."""
        plain = self.action.item() if isinstance(self.action, np.generic) else self.action
        at = self.position
        return EnvPlace(self.env, at.episode, at.seed, at.steps + 1, f"{plain!r:.120}")


def check_memory(max_rss: float | None, used: float) -> None:
    """Refuse a limit that a new worker, which uses so many MB, would reach at once."""
    if max_rss is not None and used * _SPARE > max_rss:
        raise UsageError(
            f"worker_max_rss {max_rss:g}: a new worker uses {used:.0f} MB already; "
            f"allow at least {used * 2:.0f}, or put fewer envs in each (--num-workers)"
        )


def warn_of_lost(envs: list[int], warn: Callable[[str], object]) -> None:
    """Say which envs are not where they were."""
    if envs:
        names = ", ".join(map(str, envs))
        warn(
            f"env {names} could not be brought back, so that its episode ends as truncated: it is one of a vector env, "
            "such as EnvPool's, or does not repeat itself (`corral doctor` says more), or has played for too long"
        )


class Restarts:
    """Counts replacements, and ends a run that gets nowhere with them."""

    def __init__(self, care: Care, begins_anew: bool = False) -> None:
        self._care = care
        self._begins_anew = begins_anew  # after a replacement envs are in other episodes
        self.worked = care.proven
        """Whether an env has completed a step, here or elsewhere. Until then, what ends the run is a wrong set-up."""
        self.total = 0
        self._last: dict[int, tuple[Hashable, int]] = {}  # worker: where it died last, and how often there
        self._replaced: dict[int, int] = {}  # worker: at which step that was

    def consider(self, worker: int, error: CorralError, scene: Scene | None, step: int, progress: Hashable) -> None:
        """Say that a worker is being replaced, or raise if there is no sense in it.

        ``step`` counts those that the worker began, ``progress`` is whatever else tells how far it had come. Before an
        env has completed a step, only workers that were ended by a signal are replaced.
        """
        try:
            self._count(worker, error, scene, step, progress)
        except CorralError as stop:
            if not self.worked:
                stop.exit_code = 2
            raise

    def _count(self, worker: int, error: CorralError, scene: Scene | None, step: int, progress: Hashable) -> None:
        by_signal = isinstance(error, WorkerDied) and error.by_signal
        if not self._care.heal or not (self.worked or by_signal):
            raise error
        where: Hashable = (step, progress)
        if scene is not None and self._begins_anew:
            where = step - self._replaced.get(worker, 0)  # how long it lived: all its envs began together
        elif scene is not None:
            where = (scene.place.env, scene.place.episode, scene.place.step)
        self._replaced[worker] = step
        known, times = self._last.get(worker, (None, 0))
        times = times + 1 if known == where else 1
        self._last[worker] = where, times
        if times >= _WITHOUT_PROGRESS:
            self._give_up(error, scene)
        if self._care.max_restarts is not None and self.total >= self._care.max_restarts:
            raise WorkerDied(f"{error}; that was one more than the {self._care.max_restarts} of --max-restarts")
        self.total += 1
        first = str(error).split(" without a word", 1)[0].splitlines()[0]
        at = "" if scene is None else f" ({scene.place})"
        self._care.warn(f"{first}{at}; replaced, {self.total} restart{'s' if self.total > 1 else ''} so far")

    def _give_up(self, error: CorralError, scene: Scene | None) -> None:
        if scene is None:
            if isinstance(error, WorkerDied):
                raise WorkerDied(f"{error}; {_WITHOUT_PROGRESS} times in a row without any progress")
            error.exit_code = 1
            raise error
        summary = f"{error}; {_WITHOUT_PROGRESS} times in a row at the same step"
        raise EnvFault(summary, scene.place, "", False, scene.position.script(scene.row))
