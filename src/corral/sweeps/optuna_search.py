"""The search: Optuna chooses the settings of each trial and the trials to prune. No other module imports ``optuna``.

All that Optuna knows is in ``journal.log``, one line per event, in Optuna's own format. The value that a trial gets for
a setting depends only on the seed, the trial's number, the setting's number and the trials recorded before, so that an
interrupted sweep continues as it would have without the interruption.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from corral.core.errors import CorralError, MissingPackage, UsageError, one_line
from corral.core.files import open_regular, parse_json, read_regular
from corral.sweeps.presets import TrialEntry
from corral.sweeps.request import SweepRequest
from corral.sweeps.search_space import Dimension, Range, Space, initial_values
from corral.sweeps.trial import Outcome, State

try:
    import optuna
    from optuna.storages.journal import BaseJournalBackend, JournalStorage
    from optuna.trial import TrialState
except ModuleNotFoundError:
    raise MissingPackage("a search needs Optuna: pip install 'corral[sweep]'; presets do not") from None

__all__ = ["SearchPlan"]

_STUDY_NAME, _ERROR = "sweep", "error"
MAX_BYTES = 1 << 30
"""The largest journal that is read."""
PRUNING_POINTS = 20
"""A trial is compared with the others each time that another twentieth of its budget is used."""
_FIRST_PRUNING_POINT = 6
"""Before this point a trial is not pruned."""
_COMPLETE_BEFORE_PRUNING = 5
"""Trials that have to be complete before any is pruned."""
_STATES: dict[TrialState, State] = {
    TrialState.COMPLETE: "complete",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
    TrialState.RUNNING: "begun",
}


class SearchPlan:
    """The plan of a search: each trial's settings are chosen with what the trials before it achieved."""

    def __init__(self, request: SweepRequest, journal: Path) -> None:
        assert request.trials is not None
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._seed, self._prune, self.total = request.seed, request.prune, request.trials
        self._space, self._path = request.space, journal
        self._running: dict[str, optuna.trial.Trial] = {}
        self._last_points: dict[str, int] = {}
        """The pruning point up to which each trial has reported its reward."""
        with self._journal_errors():
            self._storage = JournalStorage(_Journal(journal))
            self._study = optuna.create_study(
                study_name=_STUDY_NAME,
                storage=self._storage,
                direction="maximize",
                sampler=self._sampler(0, 0),
                pruner=optuna.pruners.MedianPruner(_COMPLETE_BEFORE_PRUNING, _FIRST_PRUNING_POINT),
                load_if_exists=True,
            )
            if self._study.directions != [optuna.study.StudyDirection.MAXIMIZE]:
                raise ValueError("its study does not maximize a single objective")
            earlier_trials = self._study.get_trials(deepcopy=False)
            for trial in earlier_trials:
                _check_trial(trial, request, self._space)
            if not earlier_trials:
                self._study.enqueue_trial(initial_values(self._space, request.base))
            # The sweep's lock makes this process the only writer, so no other process runs these trials.
            self._interrupted = [trial.number for trial in earlier_trials if trial.state == TrialState.RUNNING]

    @contextlib.contextmanager
    def _journal_errors(self) -> Iterator[None]:
        """Turn an error about the journal's content, which Optuna does not check, into one that names the journal."""
        try:
            yield
        except (CorralError, OSError):
            raise
        except Exception as error:
            reason = f"{type(error).__name__}: {one_line(error)}"
            raise _damaged(self._path, f"({reason})") from None

    def next(self) -> TrialEntry | None:
        """Return a trial that an earlier process did not finish, else a new one; None if there are no more."""
        with self._journal_errors():
            trial = self._next_trial()
            if trial is None:
                return None
            for index, (name, dimension) in enumerate(self._space.items()):
                self._study.sampler = self._sampler(trial.number, index)
                _suggest(trial, name, dimension)
            label = str(trial.number)
            self._running[label] = trial
            reported = self._study.get_trials(deepcopy=False)[trial.number].intermediate_values
            self._last_points[label] = max(reported, default=0)
            return TrialEntry(label, trial.params, "begun")

    def _next_trial(self) -> optuna.trial.Trial | None:
        if self._interrupted:
            study_id = self._storage.get_study_id_from_name(_STUDY_NAME)
            number = self._interrupted.pop(0)
            trial_id = self._storage.get_trial_id_from_study_id_trial_number(study_id, number)
            return optuna.trial.Trial(self._study, trial_id)
        return self._study.ask() if len(self.entries()) < self.total else None

    def report(self, label: str, seed_index: int, share: float, reward: float | None) -> bool:
        """Compare the trial with others at the same share of the budget; return whether it is below their median.

        A trial with several seeds is compared only while it trains with the first.
        """
        point = min(PRUNING_POINTS, int(share * PRUNING_POINTS + 1e-9))
        if seed_index > 0 or point <= self._last_points[label]:
            return False
        # Report at each point that was passed, because trials with shorter rollouts report at each of them.
        passed_points = range(self._last_points[label] + 1, point + 1)
        self._last_points[label] = point
        if reward is None:
            return False
        for passed in passed_points:
            self._running[label].report(reward, passed)
        return self._prune and point < PRUNING_POINTS and bool(self._running[label].should_prune())

    def record(self, label: str, outcome: Outcome) -> None:
        """Record the outcome of a trial in the study."""
        trial = self._running.pop(label)
        if outcome.state == "complete":
            self._study.tell(trial, outcome.objective)
        elif outcome.state == "pruned":
            self._study.tell(trial, state=TrialState.PRUNED)
        else:
            trial.set_user_attr(_ERROR, outcome.error)
            self._study.tell(trial, state=TrialState.FAIL)

    def entries(self) -> list[TrialEntry]:
        """Return all trials that have begun, in order."""
        entries = []
        for trial in self._study.get_trials(deepcopy=False):
            if trial.state in _STATES:
                state = _STATES[trial.state]
                value = trial.value if state == "complete" else None
                entries.append(TrialEntry(str(trial.number), trial.params, state, value, trial.user_attrs.get(_ERROR)))
        return entries

    def _sampler(self, number: int, setting: int) -> optuna.samplers.BaseSampler:
        """Return the sampler for one setting of one trial, by their numbers.

        It is a tree-structured Parzen estimator (Bergstra et al., 2011, Algorithms for Hyper-Parameter Optimization).
        It samples one setting at a time: so the settings of a trial that a kill left incomplete do not depend on when
        the kill came.
        """
        seed = int(np.random.SeedSequence(self._seed, spawn_key=(number, setting)).generate_state(1)[0])
        n_random_trials = min(10, max(4, self.total // 3))
        return optuna.samplers.TPESampler(seed=seed, n_startup_trials=n_random_trials, multivariate=False)


class _Journal(BaseJournalBackend):
    """The journal as a file with one writer.

    The sweep's lock keeps other writers out, so that the journal needs no lock, which a killed process would leave
    behind. A last line that is incomplete is removed: its event was never acknowledged.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        data = read_regular(path, MAX_BYTES) if path.exists() else b""
        complete_lines = data[: data.rfind(b"\n") + 1]
        self._lines = complete_lines.splitlines()
        for number, line in enumerate(self._lines, 1):
            try:
                if not isinstance(parse_json(line), dict):
                    raise ValueError
            except ValueError:
                raise _damaged(path, f"at line {number}") from None
        if complete_lines != data:
            _truncate(path, len(complete_lines))

    def read_logs(self, log_number_from: int) -> Iterable[dict[str, Any]]:
        """Return the events from that number on."""
        return [json.loads(line) for line in self._lines[log_number_from:]]

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Append events; they are on disk when this returns."""
        lines = [json.dumps(log, separators=(",", ":")).encode() for log in logs]
        size = self._path.stat().st_size if self._path.exists() else 0
        try:
            with os.fdopen(open_regular(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab") as file:
                file.write(b"\n".join(lines) + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            with contextlib.suppress(OSError):
                _truncate(self._path, size)  # the next event must not be appended to an incomplete line
            raise CorralError(f"{self._path} cannot be written: {error.strerror or error}") from None
        self._lines += lines


def _damaged(path: Path, where: str) -> UsageError:
    return UsageError(f"{path} is damaged {where}; start the sweep again in another --output-dir")


def _truncate(path: Path, size: int) -> None:
    """Truncate a regular file; raise an OSError for a symbolic or hard link."""
    descriptor = open_regular(path, os.O_RDWR)
    try:
        os.ftruncate(descriptor, size)
    finally:
        os.close(descriptor)


def _check_trial(trial: optuna.trial.FrozenTrial, request: SweepRequest, space: Space) -> None:
    """Raise a ValueError for a trial that this search cannot have made."""
    values = [*trial.intermediate_values.items(), *((0, value) for value in trial.values or ())]
    if not all(isinstance(step, int) and isinstance(value, int | float) for step, value in values):
        raise ValueError(f"trial {trial.number} has a value that is not a number")
    if trial.state == TrialState.COMPLETE and not math.isfinite(trial.value or 0.0):
        raise ValueError(f"trial {trial.number} has a value that is not finite")
    if not isinstance(trial.user_attrs.get(_ERROR), str | None):
        raise ValueError(f"trial {trial.number} has an error that is not text")
    if not trial.params.keys() <= space.keys():
        raise ValueError(f"trial {trial.number} has settings that are not searched")
    if outside := [name for name, value in trial.params.items() if not space[name].contains(value)]:
        raise ValueError(f"trial {trial.number} has a value of {outside[0]} that is not searched")
    if len(trial.params) < len(space):
        if trial.state in (TrialState.RUNNING, TrialState.WAITING):
            return  # the sweep ended before the trial had all of its settings
        raise ValueError(f"trial {trial.number} ended without some of its settings")
    try:
        request.config_of(trial.params)
    except UsageError as error:
        raise ValueError(f"trial {trial.number}: {error}") from None


def _suggest(trial: optuna.trial.Trial, name: str, dimension: Dimension) -> None:
    """Give the trial a value for a setting, unless it has one."""
    if not isinstance(dimension, Range):
        trial.suggest_categorical(name, dimension.values)
    elif dimension.is_integer:
        trial.suggest_int(name, int(dimension.low), int(dimension.high), log=dimension.log)
    else:
        trial.suggest_float(name, dimension.low, dimension.high, log=dimension.log)
