"""The supervisor: decides whether a worker that died or hung is restarted, and restarts workers that use much memory.

A worker is a process that owns envs. When one died, the run stops with an error if recovery is off, if the worker dies
again and again at the same point, if there were too many restarts, or if no env has completed a step yet (but a worker
that a signal ended is restarted even then, unless it was killed because it hung). Otherwise the worker is restarted. A
worker that uses too much memory is always restarted.

``decide`` has the rules: it gets an event (``WorkerDeath``) and returns a decision (``Restart`` or ``Stop``), which
also depends on the events before. ``recover`` and ``restart_for_memory`` start workers, but only with the functions
that the caller passes. So everything here can be tested without processes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from corral.core.errors import CorralError, EnvFault, EnvLocation, WorkerDied
from corral.core.types import FaultCounts
from corral.processes.recovery_config import RecoveryConfig
from corral.vec.replay_log import REPLAY_LIMIT, EnvPosition

__all__ = [
    "CrashSite",
    "Restart",
    "Stop",
    "Supervisor",
    "WorkerDeath",
    "warn_of_failed_restores",
]

T = TypeVar("T")
MAX_DEATHS_WITHOUT_PROGRESS = 3
"""The run stops when a worker dies this often in a row at the same point (see ``Supervisor._point_of_death``)."""


@dataclass(frozen=True, slots=True)
class CrashSite:
    """The env step during which a worker died or hung."""

    env: int
    """Index of the env in the run."""
    position: EnvPosition
    """Where the env was before this step."""
    action: Any
    """The action of this step, as the env's ``step`` gets it."""
    action_row: Any
    """The same action as a dictionary of arrays, one for each path in the action space, as fault files store it."""

    @property
    def location(self) -> EnvLocation:
        """Env, episode, seed, step and action, for error messages."""
        action = self.action.item() if isinstance(self.action, np.generic) else self.action
        before = self.position
        return EnvLocation(self.env, before.episode, before.seed, before.steps + 1, f"{action!r:.120}")


@dataclass(frozen=True, slots=True)
class WorkerDeath:
    """Event: a worker process exited, was killed because it hung, or could not be started."""

    worker: int
    """Index of the worker, which stays the same when it is restarted."""
    error: CorralError
    """A ``WorkerDied``, or an ``EnvFault`` if the worker could not start because an env could not be made or reset. (An
    env that cannot be brought to its position is no death: see ``warn_of_failed_restores``.)"""
    crash_site: CrashSite | None = None
    """The env step that was under way; None if the worker was not stepping an env."""
    steps: int = 0
    """A count that grows with each step of the worker, and is not reset when the worker is restarted."""
    progress_outside_steps: Hashable = None
    """How far the worker came while it was not in a step, for example in a restore after its start. Two deaths
    outside of steps with the same value and the same ``steps`` count as deaths at the same point."""


@dataclass(frozen=True, slots=True)
class Restart:
    """Decision: restart the worker."""

    message: str
    """The warning to print."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Decision: end the run with this error."""

    error: CorralError


class Supervisor:
    """Counts the deaths of workers, and decides after each whether the worker is restarted.

    ``restores_episodes`` says whether the envs of a restarted worker continue their episodes. Where that is impossible
    (vector envs such as EnvPool's, which cannot be replayed env by env), all envs of the worker begin new episodes.
    """

    def __init__(self, recovery: RecoveryConfig, restores_episodes: bool = True) -> None:
        self._recovery = recovery
        self._restores_episodes = restores_episodes
        self.env_known_to_work = recovery.env_known_to_work
        """Whether an env has completed a step, also before a resume; the caller sets it. Until then an error is taken
        for a mistake in the set-up, which a restart would repeat. A worker that dies by a signal is restarted even
        then (but not one that hung), because the signal may come from the kernel when memory is short."""
        self._restarts = 0  # of all workers, after deaths; restarts because of memory have no limit
        self._counts = FaultCounts()  # since the last ``take_counts``
        self._last_point: dict[int, Hashable] = {}  # by worker: ``_point_of_death`` of its last death
        self._deaths_in_a_row: dict[int, int] = {}  # by worker: how often it has died at its ``_last_point``
        self._steps_at_last_death: dict[int, int] = {}  # by worker

    def decide(self, death: WorkerDeath) -> Restart | Stop:
        """Return what to do about a death."""
        error = self._count_and_judge(death)
        if error is not None:
            if not self.env_known_to_work:
                error.exit_code = 2  # which says that the usage, the config or the env is probably wrong
            return Stop(error)
        self._restarts += 1
        self._counts += FaultCounts(restarts=1)
        what = _first_line(death.error)
        where = "" if death.crash_site is None else f" ({death.crash_site.location})"
        count = "1 restart" if self._restarts == 1 else f"{self._restarts} restarts"
        return Restart(f"{what}{where}; restarted, {count} so far")

    def recover(self, death: WorkerDeath, start: Callable[[], T], progress: Callable[[], Hashable]) -> T:
        """Restart a worker by calling ``start``, until a call succeeds; if the decision is to stop, raise its error.

        Returns what ``start`` returned. After a call that failed, ``progress`` returns how far the worker came (see
        ``WorkerDeath.progress_outside_steps``), so that starts which fail at the same point are recognised.
        """
        while True:
            decision = self.decide(death)
            if isinstance(decision, Stop):
                raise decision.error
            self._recovery.warn(decision.message)
            try:
                return start()
            except (WorkerDied, EnvFault) as error:
                death = dataclasses.replace(death, error=error, crash_site=None, progress_outside_steps=progress())

    def restart_for_memory(
        self, worker_name: str, start: Callable[[], object], on_failure: Callable[[CorralError], object]
    ) -> None:
        """Restart a worker that uses more memory than ``RecoveryConfig.max_rss``: ``start`` replaces its process.

        If ``start`` raises, ``on_failure`` is called with the error; the caller then treats it as a death.
        """
        self._counts += FaultCounts(recycled=1)  # the name in files for a restart because of memory
        limit = f"{self._recovery.max_rss:g} MB (--worker-max-rss)"
        self._recovery.warn(f"the {worker_name} uses more than {limit}; restarted")
        try:
            start()
        except (WorkerDied, EnvFault) as error:
            on_failure(error)

    def add_restarts(self, restarts: int) -> None:
        """Count restarts that others decided; raise ``WorkerDied`` if there are more than the run allows."""
        self._restarts += restarts
        limit = self._recovery.max_restarts
        if limit is not None and self._restarts > limit:
            raise WorkerDied(f"{self._restarts} workers died, more than the limit of {limit} restarts (--max-restarts)")

    def take_counts(self) -> FaultCounts:
        """Return the restarts since the last call, those after deaths and those because of memory."""
        counts, self._counts = self._counts, FaultCounts()
        return counts

    def _count_and_judge(self, death: WorkerDeath) -> CorralError | None:
        """Return the error that ends the run, or None for a restart; count the death unless restarts are ruled out."""
        by_signal = isinstance(death.error, WorkerDied) and death.error.by_signal
        if not self._recovery.recover or not (self.env_known_to_work or by_signal):
            return death.error
        if self._count_death(death) >= MAX_DEATHS_WITHOUT_PROGRESS:
            return self._no_progress_error(death)
        limit = self._recovery.max_restarts
        if limit is not None and self._restarts >= limit:
            return WorkerDied(f"{death.error}; the limit of {limit} restarts (--max-restarts) is reached")
        return None

    def _count_death(self, death: WorkerDeath) -> int:
        """Record a death; return how often in a row, this one included, the worker died at the same point."""
        point = self._point_of_death(death)
        is_same = self._last_point.get(death.worker) == point
        deaths = self._deaths_in_a_row[death.worker] + 1 if is_same else 1
        self._last_point[death.worker], self._deaths_in_a_row[death.worker] = point, deaths
        self._steps_at_last_death[death.worker] = death.steps
        return deaths

    def _point_of_death(self, death: WorkerDeath) -> Hashable:
        """Return the point that the worker had reached; the same as at its previous death means no progress."""
        if death.crash_site is None:
            return "outside of a step", death.steps, death.progress_outside_steps
        if self._restores_episodes:
            location = death.crash_site.location
            return "in a step", location.env, location.episode, location.step
        # All envs began new episodes after the last restart, so there is no step to compare. A worker that dies after
        # the same number of steps each time is taken for one that makes no progress.
        return "in a step", death.steps - self._steps_at_last_death.get(death.worker, 0)

    def _no_progress_error(self, death: WorkerDeath) -> CorralError:
        error, site = death.error, death.crash_site
        if site is not None:
            where = "at the same step" if self._restores_episodes else "after the same number of steps"
            summary = f"{error}; {MAX_DEATHS_WITHOUT_PROGRESS} times in a row {where}"
            return EnvFault(summary, site.location, reproduction=site.position.reproduction(site.action_row))
        if isinstance(error, WorkerDied):
            return WorkerDied(f"{error}; {MAX_DEATHS_WITHOUT_PROGRESS} times in a row without any progress")
        # An ``EnvFault`` from the start of a restarted worker has exit code 2 (wrong set-up); but the env worked.
        error.exit_code = 1
        return error


def _first_line(error: CorralError) -> str:
    """Return an error in one line: without the advice on what to do, and without a traceback."""
    if isinstance(error, WorkerDied) and error.summary:
        return error.summary
    return str(error).splitlines()[0]


def warn_of_failed_restores(envs: list[int], warn: Callable[[str], object]) -> None:
    """Warn about envs that could not be restored to their positions in their episodes."""
    if envs:
        which = f"env {envs[0]}" if len(envs) == 1 else f"envs {', '.join(map(str, envs))}"
        ending = "its episode ends" if len(envs) == 1 else "their episodes end"
        warn(
            f"{which} could not be restored to the same point; {ending} as truncated. "
            "Vector envs such as EnvPool's, envs that are not deterministic (see `corral doctor`) and, without "
            f"`get_state`, episodes of more than {REPLAY_LIMIT:,} steps cannot be restored"
        )
