"""The record that both steppers keep of their envs' episodes: how long each is, what went wrong, and which are lost."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from corral.core.errors import EnvFault, EnvLocation, InvalidEnvData
from corral.core.types import LIFE_LOST, InfoSums, RecoveryCounts
from corral.envs.lifecycle import format_action, own_traceback
from corral.vec.api import EnvReport, InfoMode, StepArrays
from corral.vec.replay_log import EnvPosition
from corral.vec.validation import LARGEST, NUMBER, InvalidRow

__all__ = ["MAX_FAULTY_EPISODES", "EpisodeLedger", "VectorInfoSums", "add_numbers"]

MAX_FAULTY_EPISODES = 3  # of one env, or of one vector env, before the run ends
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
        self._counts, self._faults = RecoveryCounts(), list[EnvFault]()

    def count(self, **counts: int) -> None:
        """Add to the counts of ``RecoveryCounts``, by name."""
        self._counts += RecoveryCounts(**counts)

    def mark_lost(self, envs: Iterable[int]) -> None:
        """Note that these envs cannot be brought back to where they were."""
        if newly_lost := set(envs) - self.lost:
            self.lost |= newly_lost
            self.count(inexact=len(newly_lost))

    def keep_fault(self, fault: EnvFault, remedy: str = "the env was made again") -> None:
        """Keep a fault that did not end the run for ``drain``; where infos are full and nobody drains, warn of it."""
        if self._infos == "full":
            warnings.warn(f"{fault.summary} ({fault.location}); {remedy}", stacklevel=3)
        elif len(self._faults) < _MAX_KEPT_FAULTS:
            self._faults.append(fault)

    def count_faulty_episode(self, i: int, fault: EnvFault, how: str) -> None:
        """Note that an episode ends in a fault; too many of those in a row end the run."""
        self.faulty_in_a_row[i] += 1
        if self.faulty_in_a_row[i] >= MAX_FAULTY_EPISODES:
            text = f"{fault.summary}, {how}, and so in {MAX_FAULTY_EPISODES} episodes in a row"
            raise EnvFault(text, fault.location, fault.env_traceback, False, fault.reproduction)
        self.keep_fault(fault)

    def drain(self, infos: list[dict[str, InfoSums]], states: Mapping[int, bytes] | None = None) -> EnvReport:
        """Return the counts and faults since the last call, together with what the stepper itself has to report."""
        drained = EnvReport(infos, self._counts, self._faults, states or {})
        self._counts, self._faults = RecoveryCounts(), []
        return drained

    def write_position(self, i: int, position: EnvPosition) -> None:
        """Write what an env shows at a position, and how far it is there."""
        for path, leaf in position.observation.items():
            self._arrays.observations[path][i] = leaf
        if position.mask is not None:
            self._arrays.masks[i] = position.mask
        self.steps[i], self._arrays.episode[i] = position.steps, position.episode

    # ---- errors that say where an env is -----------------------------------------------------------------------

    def refuse(self, refused: InvalidRow, location: EnvLocation) -> NoReturn:
        """Raise the error for data of an env that the learner cannot use."""
        raise InvalidEnvData(str(refused), location, at_start=not self.completed_first_step) from None

    def fault(self, summary: str, location: EnvLocation, error: BaseException, reproduction: Any = None) -> EnvFault:
        """Return the error for an exception of an env; ``reproduction`` is what is needed to repeat it."""
        return EnvFault(summary, location, own_traceback(error), not self.completed_first_step, reproduction)

    def location(self, i: int, seed: int | None, action: Any) -> EnvLocation:
        """Return where an env is: in which step of which episode, and with which action."""
        text = None if action is None else format_action(action)
        return EnvLocation(self._first_env + i, int(self._arrays.episode[i]), seed, int(self.steps[i]), text)


def add_numbers(sums: dict[str, InfoSums], info: Mapping[str, Any]) -> None:
    """Add the numbers in the info of one env's step to its sums."""
    for key, value in info.items():
        if key != LIFE_LOST and isinstance(value, NUMBER) and abs(value) <= LARGEST:  # type: ignore[operator]
            sums.setdefault(key, InfoSums()).add(float(value))


class VectorInfoSums:
    """The sums of ``n`` envs, by name; names in ``left_out`` are not added up."""

    def __init__(self, n: int, left_out: Collection[str]) -> None:
        self._n, self._left_out = n, left_out
        self._sums: dict[str, _Sums] = {}

    def add(self, infos: Mapping[str, Any], where: npt.NDArray[np.bool_] | None = None) -> None:
        """Add up the numbers in infos, of some envs or of all."""
        for name, value in infos.items():
            if name in self._left_out or not isinstance(value, np.ndarray) or value.shape != (self._n,):
                continue
            if name[0] == "_" or value.dtype.kind not in "biuf":
                continue
            there = np.abs(value) <= LARGEST if value.dtype.kind == "f" else np.ones(self._n, np.bool_)
            if where is not None:
                there &= where
            if (said := infos.get(f"_{name}")) is not None:
                there &= said
            sums = self._sums.setdefault(name, _Sums(self._n))
            sums.total[there] += value[there]
            sums.count += there

    def drain(self) -> list[dict[str, InfoSums]]:
        """The sums since the last call, by env."""
        drained = [
            {
                name: InfoSums(float(found.total[i]), int(found.count[i]))
                for name, found in self._sums.items()
                if found.count[i]
            }
            for i in range(self._n)
        ]
        self._sums = {}
        return drained


class _Sums:
    """Of one number in the infos of N envs."""

    def __init__(self, n: int) -> None:
        self.total = np.zeros(n)
        self.count = np.zeros(n, np.int64)
