"""What to do about a worker that died: where it was, whether to start another, and when to give up."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np

from corral.core.errors import CorralError, EnvFault, EnvPlace, WorkerDied
from corral.processes.supervision import Care
from corral.vec.replay_log import EnvPosition

__all__ = ["Restarts", "Scene", "warn_of_lost"]


_WITHOUT_PROGRESS = 3


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
