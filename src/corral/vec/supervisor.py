"""What to do about a worker that died: where its envs were, whether to start another, and when to give up."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from corral.core.errors import CorralError, EnvFault, EnvLocation, WorkerDied
from corral.core.spaces import Layout
from corral.core.types import RecoveryCounts
from corral.processes.pool import PoolWorker
from corral.processes.supervision import RecoveryConfig
from corral.vec.api import StepArrays
from corral.vec.replay_log import EnvPosition, ReplayLog

__all__ = ["CrashSite", "PositionTracker", "Restarts", "warn_of_lost"]

T = TypeVar("T")
_WITHOUT_PROGRESS = 3


@dataclass(frozen=True, slots=True)
class CrashSite:
    """What a worker was doing when it died: in which step of which env, if it was stepping any."""

    env: int
    position: EnvPosition
    action: Any
    row: Any
    """The action as per-leaf arrays."""

    @property
    def location(self) -> EnvLocation:
        """The same in words."""
        plain = self.action.item() if isinstance(self.action, np.generic) else self.action
        at = self.position
        return EnvLocation(self.env, at.episode, at.seed, at.steps + 1, f"{plain!r:.120}")


class PositionTracker:
    """Where every env of a ``ProcessVectorEnv`` is, kept in the parent process: nothing of it can die with a worker."""

    def __init__(self, arrays: StepArrays, seed: int | None) -> None:
        self.replay_log = ReplayLog(arrays.actions, 0, seed)
        self._arrays = arrays
        self._before = {path: leaf.copy() for path, leaf in arrays.observations.items()}
        self._masks_before = arrays.masks.copy()
        self._copies = [(self._before[path], leaf) for path, leaf in arrays.observations.items()]
        self._copies += [(self._masks_before, arrays.masks)] * bool(self._masks_before.size)

    def keep_shown(self) -> None:
        """Copy what the envs show: a worker that dies may have written over it."""
        for before, leaf in self._copies:
            before[...] = leaf

    def begin_next_episodes(self, envs: range) -> None:
        """Note which of these envs ended an episode in the last step, and so have begun another."""
        a = self._arrays
        for i in envs:
            if a.terminated[i] or a.truncated[i]:
                self.replay_log.begin(i, int(a.episode[i]), None, a.opponent_options(i))

    def position(self, i: int, masked: bool, undone: bool = False, shown_before: bool = False) -> EnvPosition:
        """Return where an env is; ``undone``: before the step under way, ``shown_before``: what ``keep_shown`` kept."""
        seen = self._before if shown_before else self._arrays.observations
        masks = self._masks_before if shown_before else self._arrays.masks
        observation = {path: leaf[i].copy() for path, leaf in seen.items()}
        return self.replay_log.position(i, observation, masks[i].copy() if masked else None, undone)

    def crash_site(self, env: int, masked: bool, actions: Layout) -> CrashSite:
        """Return the step of an env that is under way."""
        row = {path: leaf[env].copy() for path, leaf in self._arrays.actions.items()}
        action = actions.read(self._arrays.actions, env)
        return CrashSite(env, self.position(env, masked, undone=True, shown_before=True), action, row)


def warn_of_lost(envs: list[int], warn: Callable[[str], object]) -> None:
    """Say which envs are not where they were."""
    if envs:
        names = ", ".join(map(str, envs))
        warn(
            f"env {names} could not be brought back, so that its episode ends as truncated: it is one of a vector env, "
            "such as EnvPool's, or does not repeat itself (`corral doctor` says more), or has played for too long"
        )


class Restarts:
    """Replaces workers, counts the replacements, and ends a run that gets nowhere with them."""

    def __init__(self, recovery: RecoveryConfig, begins_anew: bool = False) -> None:
        self._recovery = recovery
        self._begins_anew = begins_anew  # after a replacement envs are in other episodes
        self.worked = recovery.known_to_work
        """Whether an env has completed a step, here or elsewhere. Until then, what ends the run is a wrong set-up."""
        self.total = 0
        self._counts = RecoveryCounts()
        self._last: dict[int, tuple[Hashable, int]] = {}  # worker: where it died last, and how often there
        self._replaced: dict[int, int] = {}  # worker: at which step that was

    def replace(
        self,
        w: PoolWorker,
        error: CorralError,
        start: Callable[[PoolWorker], T],
        crash_site: CrashSite | None,
        step: int,
        progress: Callable[[], Hashable],
    ) -> T:
        """Replace a worker by ``start``, again if the new one dies too, until it succeeds or ``consider`` raises."""
        while True:
            self.consider(w.index, error, crash_site, step, progress())
            self._counts += RecoveryCounts(restarts=1)
            try:
                return start(w)
            except (WorkerDied, EnvFault) as again:
                error, crash_site = again, None

    def recycle(
        self,
        w: PoolWorker,
        start: Callable[[PoolWorker], object],
        on_death: Callable[[PoolWorker, CorralError], object],
    ) -> None:
        """Replace a worker that uses too much memory; ``on_death`` replaces the new one if that dies."""
        self._recovery.warn(f"the {w} uses more than {self._recovery.max_rss:g} MB (--worker-max-rss); replaced")
        self._counts += RecoveryCounts(recycled=1)
        try:
            start(w)
        except (WorkerDied, EnvFault) as error:
            on_death(w, error)

    def drain(self) -> RecoveryCounts:
        """Return how many workers were replaced since the last call."""
        counts, self._counts = self._counts, RecoveryCounts()
        return counts

    def consider(
        self, worker: int, error: CorralError, crash_site: CrashSite | None, step: int, progress: Hashable
    ) -> None:
        """Say that a worker is being replaced, or raise if there is no sense in it.

        ``step`` counts those that the worker began, ``progress`` is whatever else tells how far it had come. Before an
        env has completed a step, only workers that were ended by a signal are replaced.
        """
        try:
            self._count(worker, error, crash_site, step, progress)
        except CorralError as stop:
            if not self.worked:
                stop.exit_code = 2
            raise

    def _count(
        self, worker: int, error: CorralError, crash_site: CrashSite | None, step: int, progress: Hashable
    ) -> None:
        by_signal = isinstance(error, WorkerDied) and error.by_signal
        if not self._recovery.heal or not (self.worked or by_signal):
            raise error
        where: Hashable = (step, progress)
        if crash_site is not None and self._begins_anew:
            where = step - self._replaced.get(worker, 0)  # how long it lived: all its envs began together
        elif crash_site is not None:
            where = (crash_site.location.env, crash_site.location.episode, crash_site.location.step)
        self._replaced[worker] = step
        known, times = self._last.get(worker, (None, 0))
        times = times + 1 if known == where else 1
        self._last[worker] = where, times
        if times >= _WITHOUT_PROGRESS:
            self._raise_no_progress(error, crash_site)
        if self._recovery.max_restarts is not None and self.total >= self._recovery.max_restarts:
            raise WorkerDied(f"{error}; that was one more than the {self._recovery.max_restarts} of --max-restarts")
        self.total += 1
        first = str(error).split(" without a word", 1)[0].splitlines()[0]
        at = "" if crash_site is None else f" ({crash_site.location})"
        self._recovery.warn(f"{first}{at}; replaced, {self.total} restart{'s' if self.total > 1 else ''} so far")

    def _raise_no_progress(self, error: CorralError, crash_site: CrashSite | None) -> None:
        if crash_site is None:
            if isinstance(error, WorkerDied):
                raise WorkerDied(f"{error}; {_WITHOUT_PROGRESS} times in a row without any progress")
            error.exit_code = 1
            raise error
        summary = f"{error}; {_WITHOUT_PROGRESS} times in a row at the same step"
        raise EnvFault(summary, crash_site.location, "", False, crash_site.position.reproduction(crash_site.row))
