"""Decides what happens when a host of envs dies: start it again, or stop the run.

A host is what runs envs outside of the trainer, such as a worker process. The supervisor knows nothing of processes,
pipes or machines. Its caller reports events (``known_to_work`` after the first step, ``HostDied``, ``HostOutgrew``) and
carries out the decisions (``Restart``, ``Stop``). What a decision depends on is all in this file, so the rules are
tested without processes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from corral.core.errors import CorralError, EnvFault, EnvLocation, WorkerDied
from corral.core.types import RecoveryCounts
from corral.processes.supervision import RecoveryConfig
from corral.vec.replay_log import EnvPosition

__all__ = ["CrashSite", "HostDied", "HostOutgrew", "Restart", "Stop", "Supervisor", "first_line", "warn_of_lost"]

T = TypeVar("T")
MAX_DEATHS_WITHOUT_PROGRESS = 3
"""A host that dies this often in a row at the same place stops the run."""


@dataclass(frozen=True, slots=True)
class CrashSite:
    """The env step during which a host died."""

    env: int
    position: EnvPosition
    """Where the env was before this step."""
    action: Any
    """The action of this step, as the env's ``step`` gets it."""
    action_row: Any
    """The same action as arrays, one for each leaf of the action space."""

    @property
    def location(self) -> EnvLocation:
        """Env, episode, seed, step and action, for error messages."""
        action = self.action.item() if isinstance(self.action, np.generic) else self.action
        before = self.position
        return EnvLocation(self.env, before.episode, before.seed, before.steps + 1, f"{action!r:.120}")


@dataclass(frozen=True, slots=True)
class HostDied:
    """Event: a host ended, or hung and was killed."""

    host: int
    error: CorralError
    crash_site: CrashSite | None = None
    """The env step that was under way; None if the host was not stepping an env."""
    steps: int = 0
    """Steps that the host had begun since the run started."""
    heartbeat: Hashable = None
    """Any value that changes while the host makes progress between two steps."""


@dataclass(frozen=True, slots=True)
class HostOutgrew:
    """Event: a host uses more memory than ``RecoveryConfig.max_rss`` allows."""

    name: str
    """The host as messages name it."""


@dataclass(frozen=True, slots=True)
class Restart:
    """Decision: start the host again."""

    message: str
    """The warning to print."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Decision: end the run with this error."""

    error: CorralError


class Supervisor:
    """Counts the deaths of hosts and decides about each of them.

    ``restores_episodes`` says whether a restarted host continues the episodes that its envs were in. Where that is
    impossible (vector envs that Corral cannot replay), all envs of the host begin new episodes.
    """

    def __init__(self, recovery: RecoveryConfig, restores_episodes: bool = True) -> None:
        self._recovery = recovery
        self._restores_episodes = restores_episodes
        self.known_to_work = recovery.known_to_work
        """Whether an env has completed a step. Until then, an error means that the run is set up wrongly."""
        self._restarts = 0
        self._counts = RecoveryCounts()  # since the last drain_counts
        self._last_site: dict[int, Hashable] = {}  # by host: the place of its last death
        self._deaths_there: dict[int, int] = {}  # by host: deaths in a row at that place
        self._steps_at_last_death: dict[int, int] = {}  # by host

    def decide(self, event: HostDied | HostOutgrew) -> Restart | Stop:
        """Return what to do about an event, and count it."""
        if isinstance(event, HostOutgrew):
            self._counts += RecoveryCounts(recycled=1)
            limit = f"{self._recovery.max_rss:g} MB (--worker-max-rss)"
            return Restart(f"the {event.name} uses more than {limit}; restarted")
        if (error := self._reason_to_stop(event)) is not None:
            if not self.known_to_work:
                error.exit_code = 2
            return Stop(error)
        self._restarts += 1
        self._counts += RecoveryCounts(restarts=1)
        what = first_line(event.error)
        where = "" if event.crash_site is None else f" ({event.crash_site.location})"
        count = "1 restart" if self._restarts == 1 else f"{self._restarts} restarts"
        return Restart(f"{what}{where}; restarted, {count} so far")

    def recover(self, death: HostDied, start: Callable[[], T], heartbeat: Callable[[], Hashable]) -> T:
        """Restart a host with ``start``, again if that fails, until it succeeds or the decision is to stop.

        Returns what ``start`` returned. ``heartbeat`` is read again after each failed start.
        """
        while True:
            decision = self.decide(death)
            if isinstance(decision, Stop):
                raise decision.error
            self._recovery.warn(decision.message)
            try:
                return start()
            except (WorkerDied, EnvFault) as error:
                death = dataclasses.replace(death, error=error, crash_site=None, heartbeat=heartbeat())

    def recycle(self, name: str, start: Callable[[], object], on_death: Callable[[CorralError], object]) -> None:
        """Restart a host that uses too much memory with ``start``; ``on_death`` recovers the new one if it dies."""
        decision = self.decide(HostOutgrew(name))
        assert isinstance(decision, Restart)
        self._recovery.warn(decision.message)
        try:
            start()
        except (WorkerDied, EnvFault) as error:
            on_death(error)

    def drain_counts(self) -> RecoveryCounts:
        """Return how many hosts were restarted since the last call."""
        counts, self._counts = self._counts, RecoveryCounts()
        return counts

    def _reason_to_stop(self, death: HostDied) -> CorralError | None:
        """Return the error that ends the run, or None if the host shall be restarted."""
        by_signal = isinstance(death.error, WorkerDied) and death.error.by_signal
        if not self._recovery.heal or not (self.known_to_work or by_signal):
            return death.error
        if self._count_deaths_at_site(death) >= MAX_DEATHS_WITHOUT_PROGRESS:
            return _no_progress_error(death)
        limit = self._recovery.max_restarts
        if limit is not None and self._restarts >= limit:
            return WorkerDied(f"{death.error}; that was one more than the {limit} of --max-restarts")
        return None

    def _count_deaths_at_site(self, death: HostDied) -> int:
        """Return how often in a row, this death included, the host died without progress in between."""
        site = self._site_of(death)
        deaths = self._deaths_there.get(death.host, 0) + 1 if self._last_site.get(death.host) == site else 1
        self._last_site[death.host], self._deaths_there[death.host] = site, deaths
        self._steps_at_last_death[death.host] = death.steps
        return deaths

    def _site_of(self, death: HostDied) -> Hashable:
        """Return what is equal for two deaths of a host if it made no progress between them."""
        if death.crash_site is None:
            return "between steps", death.steps, death.heartbeat
        if self._restores_episodes:
            location = death.crash_site.location
            return "in a step", location.env, location.episode, location.step
        # All envs began new episodes together after the last restart: compare how long the host lived.
        return "in a step", death.steps - self._steps_at_last_death.get(death.host, 0)


def _no_progress_error(death: HostDied) -> CorralError:
    error, site = death.error, death.crash_site
    if site is not None:
        summary = f"{error}; {MAX_DEATHS_WITHOUT_PROGRESS} times in a row at the same step"
        return EnvFault(summary, site.location, "", False, site.position.reproduction(site.action_row))
    if isinstance(error, WorkerDied):
        return WorkerDied(f"{error}; {MAX_DEATHS_WITHOUT_PROGRESS} times in a row without any progress")
    error.exit_code = 1
    return error


def first_line(error: CorralError) -> str:
    """Return an error in one line, without its advice and without a traceback."""
    return (isinstance(error, WorkerDied) and error.summary) or str(error).splitlines()[0]


def warn_of_lost(envs: list[int], warn: Callable[[str], object]) -> None:
    """Warn about envs that could not be restored to their positions."""
    if envs:
        warn(
            f"env {', '.join(map(str, envs))} could not be restored, so its episode ends as truncated: it belongs to a "
            "vector env such as EnvPool's, or is not deterministic (see `corral doctor`), or its episode is too long"
        )
