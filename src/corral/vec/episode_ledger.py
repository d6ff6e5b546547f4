"""The record that both steppers keep of their envs' episodes: how long each is, what went wrong, and which are lost."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from corral.core.errors import BadEnvData, EnvFault, EnvPlace
from corral.core.types import InfoSums, Mishaps
from corral.envs.lifecycle import own_traceback, shown
from corral.vec.api import Drained, InfoMode, StepArrays
from corral.vec.replay_log import EnvPosition
from corral.vec.validation import Refused

__all__ = ["MAX_FAULTS_IN_A_ROW", "EpisodeLedger"]

MAX_FAULTS_IN_A_ROW = 3  # of one env, or of one vector env, before the run ends
_MAX_KEPT_FAULTS = 10  # until the next ``drain``; further faults are only counted


class EpisodeLedger:
    """The record of the episodes of ``len(arrays.rewards)`` envs. A stepper updates it, ``drain`` reports it."""

    def __init__(self, arrays: StepArrays, steps: Any, first_env: int, infos: InfoMode, known_to_work: bool) -> None:
        self._arrays, self._first_env, self._infos = arrays, first_env, infos
        self.steps = steps
        """The steps that each env has taken in its episode: a list or an array, whichever its stepper counts faster."""
        self.lost: set[int] = set()
        """Envs that are not where they should be: their episodes end with the next step."""
        self.faulty_in_a_row = [0] * len(arrays.rewards)
        """How many episodes of each env have ended in a fault since the last one that did not."""
        self.completed_first_step = known_to_work
        """Whether a step was completed, here or elsewhere. From then on a fault is an accident, not a wrong set-up."""
        self._counts, self._faults = Mishaps(), list[EnvFault]()

    def count(self, **counts: int) -> None:
        """Add to the counts of ``Mishaps``, by name."""
        self._counts += Mishaps(**counts)

    def mark_lost(self, envs: Iterable[int]) -> None:
        """Note that these envs cannot be brought back to where they were."""
        if newly_lost := set(envs) - self.lost:
            self.lost |= newly_lost
            self.count(inexact=len(newly_lost))

    def keep_fault(self, fault: EnvFault, remedy: str = "the env was made again") -> None:
        """Keep a fault that did not end the run for ``drain``; where infos are full and nobody drains, warn of it."""
        if self._infos == "full":
            warnings.warn(f"{fault.summary} ({fault.place}); {remedy}", stacklevel=3)
        elif len(self._faults) < _MAX_KEPT_FAULTS:
            self._faults.append(fault)

    def count_faulty_episode(self, i: int, fault: EnvFault, how: str) -> None:
        """Note that an episode ends in a fault; too many of those in a row end the run."""
        self.faulty_in_a_row[i] += 1
        if self.faulty_in_a_row[i] >= MAX_FAULTS_IN_A_ROW:
            text = f"{fault.summary}, {how}, and so in {MAX_FAULTS_IN_A_ROW} episodes in a row"
            raise EnvFault(text, fault.place, fault.env_traceback, False, fault.script)
        self.keep_fault(fault)

    def drain(self, infos: list[dict[str, InfoSums]], states: Mapping[int, bytes] | None = None) -> Drained:
        """Return the counts and faults since the last call, together with what the stepper itself has to report."""
        drained = Drained(infos, self._counts, self._faults, states or {})
        self._counts, self._faults = Mishaps(), []
        return drained

    def write_position(self, i: int, position: EnvPosition) -> None:
        """Write what an env shows at a position, and how far it is there."""
        for path, leaf in position.observation.items():
            self._arrays.observations[path][i] = leaf
        if position.mask is not None:
            self._arrays.masks[i] = position.mask
        self.steps[i], self._arrays.episode[i] = position.steps, position.episode

    # ---- errors that say where an env is -----------------------------------------------------------------------

    def refuse(self, refused: Refused, place: EnvPlace) -> NoReturn:
        """Raise the error for data of an env that the learner cannot use."""
        raise BadEnvData(str(refused), place, at_start=not self.completed_first_step) from None

    def fault(self, summary: str, place: EnvPlace, error: BaseException, script: Any = None) -> EnvFault:
        """Return the error for an exception of an env; ``script`` is what is needed to repeat it."""
        return EnvFault(summary, place, own_traceback(error), not self.completed_first_step, script)

    def place(self, i: int, seed: int | None, action: Any) -> EnvPlace:
        """Return where an env is: in which step of which episode, and with which action."""
        text = None if action is None else shown(action)
        return EnvPlace(self._first_env + i, int(self._arrays.episode[i]), seed, int(self.steps[i]), text)
