"""The record that both kinds of steppers keep of their envs: steps of episodes, faults, recoveries."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from corral.core.errors import EnvFault, EnvLocation, InvalidEnvData
from corral.core.types import LIFE_LOST, FaultCounts, InfoSums
from corral.envs.lifecycle import format_action, format_env_traceback
from corral.vec.api import EnvReport, StepArrays
from corral.vec.replay_log import EnvPosition
from corral.vec.stepper_options import StepperOptions
from corral.vec.validation import MAX_VALUE, NUMBER_TYPES, InvalidRow

__all__ = ["MAX_FAULTY_EPISODES", "EpisodeLedger", "VectorInfoSums", "add_numbers"]

MAX_FAULTY_EPISODES = 3
"""The run ends when so many episodes in a row of one env, or of one vector env, have ended in a fault."""
_MAX_KEPT_FAULTS = 10  # faults kept until the next ``take_report``; further ones are only counted


class EpisodeLedger:
    """Counts the steps, faults and recoveries of envs; ``take_report`` reports the counts.

    ``steps`` is the list or array in which the stepper counts the steps of each env's episode.
    """

    def __init__(self, arrays: StepArrays, steps: Any, options: StepperOptions) -> None:
        self._arrays, self._first_env, self._info_mode = arrays, options.first_env, options.infos
        self.steps = steps
        """The steps that each env has taken in its current episode."""
        self.unrestored_envs: set[int] = set()
        """Envs that could not be restored to their position; their episodes are truncated in the next step."""
        self.consecutive_faulty_episodes = [0] * len(arrays.rewards)
        """By env: how many episodes have ended in a fault since the last one that did not."""
        self.completed_first_step = options.env_known_to_work
        """Whether a step was ever completed, here or elsewhere. Before that, a fault counts as a mistake in the set-up
        (exit code 2), and the env is not replaced."""
        self._counts, self._faults = FaultCounts(), list[EnvFault]()

    def count(self, **counts: int) -> None:
        """Add to the counts of ``FaultCounts``, by name."""
        self._counts += FaultCounts(**counts)

    def mark_unrestored_envs(self, envs: Iterable[int]) -> None:
        """Mark envs that could not be restored to their position, and count their episodes as ``inexact``."""
        if newly_marked := set(envs) - self.unrestored_envs:
            self.unrestored_envs |= newly_marked
            self.count(inexact=len(newly_marked))

    def keep_fault(self, fault: EnvFault, remedy: str = "the env was replaced by a new one") -> None:
        """Keep a fault that did not end the run until ``take_report``; in mode ``full``, warn instead."""
        if self._info_mode == "full":
            warnings.warn(f"{fault.summary} ({fault.location}); {remedy}", stacklevel=3)
        elif len(self._faults) < _MAX_KEPT_FAULTS:
            self._faults.append(fault)

    def record_successful_retry(self, fault: EnvFault) -> None:
        """Count a call that raised ``fault`` and then succeeded in a new env; keep the fault."""
        self.count(retries=1)
        self.keep_fault(fault)

    def record_repeated_fault(self, i: int, fault: EnvFault, call: str) -> None:
        """Count an episode that ends because a new env raised the same exception as env ``i`` in the same ``call``.

        Keeps the fault. Raises an ``EnvFault`` if this is the last of ``MAX_FAULTY_EPISODES`` such episodes in a row.
        """
        self.count(env_faults=1)
        self._record_faulty_episode(i, fault, f"so did a new env in the same {call}")

    def record_failed_restore(self, i: int, fault: EnvFault) -> None:
        """Count an episode that ends because env ``i`` raised and could not be restored to its position.

        Keeps the fault, and raises in the same case as ``record_repeated_fault``.
        """
        self.mark_unrestored_envs([i])
        self._record_faulty_episode(i, fault, "the env could not be restored")

    def _record_faulty_episode(self, i: int, fault: EnvFault, reason: str) -> None:
        """Count an episode that ends in a fault; raise if there were ``MAX_FAULTY_EPISODES`` in a row."""
        self.consecutive_faulty_episodes[i] += 1
        if self.consecutive_faulty_episodes[i] >= MAX_FAULTY_EPISODES:
            summary = f"{fault.summary}; {reason}, in {MAX_FAULTY_EPISODES} episodes in a row"
            raise EnvFault(summary, fault.location, fault.env_traceback, False, fault.reproduction)
        self.keep_fault(fault)

    def take_report(self, info_sums: list[dict[str, InfoSums]], states: Mapping[int, bytes] | None = None) -> EnvReport:
        """Return the counts and faults since the last call, with the stepper's own sums of infos and env states."""
        report = EnvReport(info_sums, self._counts, self._faults, states or {})
        self._counts, self._faults = FaultCounts(), []
        return report

    def write_position(self, i: int, position: EnvPosition) -> None:
        """Write the observation, mask, step and episode number that env ``i`` has at a position."""
        for path, leaf in position.observation.items():
            self._arrays.observations[path][i] = leaf
        if position.mask is not None:
            self._arrays.masks[i] = position.mask
        self.steps[i], self._arrays.episode[i] = position.steps, position.episode

    # ---- errors ----------------------------------------------------------------------------------------------

    def raise_invalid_data(self, invalid: InvalidRow, location: EnvLocation) -> NoReturn:
        """Raise the error for values of an env that the learner cannot use."""
        raise InvalidEnvData(str(invalid), location, at_start=not self.completed_first_step) from None

    def make_fault(
        self, summary: str, location: EnvLocation, error: BaseException, reproduction: Any = None
    ) -> EnvFault:
        """Return the ``EnvFault`` for an exception of an env; ``reproduction`` is the data that repeats it."""
        return EnvFault(summary, location, format_env_traceback(error), not self.completed_first_step, reproduction)

    def location(self, i: int, seed: int | None, action: Any) -> EnvLocation:
        """Return the episode, seed, step and action (None during a reset) of env ``i``, for error messages."""
        text = None if action is None else format_action(action)
        return EnvLocation(self._first_env + i, int(self._arrays.episode[i]), seed, int(self.steps[i]), text)


def add_numbers(sums: dict[str, InfoSums], info: Mapping[str, Any]) -> None:
    """Add the numbers in the info of one step of an env to the env's sums."""
    for key, value in info.items():
        if key != LIFE_LOST and isinstance(value, NUMBER_TYPES) and abs(value) <= MAX_VALUE:  # type: ignore[operator]
            sums.setdefault(key, InfoSums()).add(float(value))


class VectorInfoSums:
    """Sums of the numbers in the infos of a vector env with ``n`` envs, by name, without ``excluded`` names."""

    def __init__(self, n: int, excluded: Collection[str]) -> None:
        self._n, self._excluded = n, excluded
        self._sums: dict[str, _Sums] = {}

    def add(self, infos: Mapping[str, Any], env_mask: npt.NDArray[np.bool_] | None = None) -> None:
        """Add the numbers in the infos of one step, of all envs or of those where ``env_mask`` [N] is true."""
        for name, value in infos.items():
            if name in self._excluded or not isinstance(value, np.ndarray) or value.shape != (self._n,):
                continue
            if name[0] == "_" or value.dtype.kind not in "biuf":
                continue
            is_counted = np.abs(value) <= MAX_VALUE if value.dtype.kind == "f" else np.ones(self._n, np.bool_)  # [N]
            if env_mask is not None:
                is_counted &= env_mask
            # Gymnasium's convention: ``_name`` is true for the envs whose info has ``name``.
            if (has_value := infos.get(f"_{name}")) is not None:
                is_counted &= has_value
            sums = self._sums.setdefault(name, _Sums(self._n))
            sums.total[is_counted] += value[is_counted]
            sums.count += is_counted

    def take(self) -> list[dict[str, InfoSums]]:
        """Return the sums since the last call: for each env a dictionary by name."""
        sums_by_env = [
            {
                name: InfoSums(float(sums.total[i]), int(sums.count[i]))
                for name, sums in self._sums.items()
                if sums.count[i]
            }
            for i in range(self._n)
        ]
        self._sums = {}
        return sums_by_env


class _Sums:
    """Sum and count of one number in the infos, for each of N envs."""

    def __init__(self, n: int) -> None:
        self.total = np.zeros(n)  # [N]
        self.count = np.zeros(n, np.int64)  # [N]
