"""The search: Optuna chooses what to try next and which trials to give up. The only importer of ``optuna``.

Everything it knows is in ``journal.log``, one line per event, in Optuna's own format. What a trial tries for a setting
is a function of the seed, of the numbers of both and of what is known by then, so a sweep that was interrupted goes on
as it would have.
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
from corral.sweeps.presets import Entry
from corral.sweeps.request import SweepRequest
from corral.sweeps.search_space import Dimension, Range, Space, first_values
from corral.sweeps.trial import Outcome, State

try:
    import optuna
    from optuna.storages.journal import BaseJournalBackend, JournalStorage
    from optuna.trial import TrialState
except ModuleNotFoundError:
    raise MissingPackage("a search needs Optuna: pip install 'corral[sweep]'; presets do not") from None

__all__ = ["SearchPlan"]

_NAME, _ERROR = "sweep", "error"
MOST_BYTES = 1 << 30
"""Size of a journal that is read."""
MARKS = 20
"""A trial is compared with the others whenever another twentieth of its budget is used."""
_FIRST_MARK = 6
"""Before this, it is too early to tell."""
_COMPLETE_BEFORE_PRUNING = 5
_STATES: dict[TrialState, State] = {
    TrialState.COMPLETE: "complete",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
    TrialState.RUNNING: "begun",
}


class SearchPlan:
    """Trials that learn from those before them."""

    def __init__(self, request: SweepRequest, journal: Path) -> None:
        assert request.trials is not None
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._seed, self._prune, self.total = request.seed, request.prune, request.trials
        self._space, self._path = request.space, journal
        self._trials: dict[str, optuna.trial.Trial] = {}
        self._marks: dict[str, int] = {}
        with self._reading():
            self._storage = JournalStorage(_Journal(journal))
            self._study = optuna.create_study(
                study_name=_NAME,
                storage=self._storage,
                direction="maximize",
                sampler=self._sampler(0, 0),
                pruner=optuna.pruners.MedianPruner(_COMPLETE_BEFORE_PRUNING, _FIRST_MARK),
                load_if_exists=True,
            )
            if self._study.directions != [optuna.study.StudyDirection.MAXIMIZE]:
                raise ValueError("its study is another")
            known = self._study.get_trials(deepcopy=False)
            for trial in known:
                _check_trial(trial, request, self._space)
            if not known:
                self._study.enqueue_trial(first_values(self._space, request.base))
            # We are the only writer, so nobody works at these.
            self._left_over = [trial.number for trial in known if trial.state == TrialState.RUNNING]

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        """Name the journal in an error about what it holds: Optuna believes whatever it reads."""
        try:
            yield
        except (CorralError, OSError):
            raise
        except Exception as error:
            what = f"{type(error).__name__}: {one_line(error)}"
            raise UsageError(f"{self._path} is damaged ({what}); start the sweep again elsewhere") from None

    def next(self) -> Entry | None:
        """A trial that was under way when the sweep ended, else a new one."""
        with self._reading():
            return self._next()

    def _next(self) -> Entry | None:
        if self._left_over:
            number = self._left_over.pop(0)
            study_id = self._storage.get_study_id_from_name(_NAME)
            trial_id = self._storage.get_trial_id_from_study_id_trial_number(study_id, number)
            trial = optuna.trial.Trial(self._study, trial_id)
        else:
            number = len(self.entries())
            if number >= self.total:
                return None
            trial = self._study.ask()
        for index, (name, dimension) in enumerate(self._space.items()):
            self._study.sampler = self._sampler(number, index)
            _suggest(trial, name, dimension)
        label = str(trial.number)
        self._trials[label] = trial
        self._marks[label] = max(self._reported(trial), default=0)
        return Entry(label, trial.params, "begun")

    def report(self, label: str, seed_index: int, share: float, reward: float | None) -> bool:
        """Compare the trial with others at the same share of the budget; those below the median are given up.

        A trial with several seeds is judged while it trains with the first.
        """
        mark = min(MARKS, int(share * MARKS + 1e-9))
        if seed_index > 0 or mark <= self._marks[label]:
            return False
        passed = range(self._marks[label] + 1, mark + 1)  # others, with shorter rollouts, stop at each of them
        self._marks[label] = mark
        if reward is None:
            return False
        for step in passed:
            self._trials[label].report(reward, step)
        return self._prune and mark < MARKS and bool(self._trials[label].should_prune())

    def tell(self, label: str, outcome: Outcome) -> None:
        """Let the study know."""
        trial = self._trials.pop(label)
        if outcome.state == "complete":
            self._study.tell(trial, outcome.objective)
        elif outcome.state == "pruned":
            self._study.tell(trial, state=TrialState.PRUNED)
        else:
            trial.set_user_attr(_ERROR, outcome.error)
            self._study.tell(trial, state=TrialState.FAIL)

    def entries(self) -> list[Entry]:
        """The trials so far."""
        found = []
        for trial in self._study.get_trials(deepcopy=False):
            if trial.state in _STATES:
                state = _STATES[trial.state]
                value = trial.value if state == "complete" else None
                found.append(Entry(str(trial.number), trial.params, state, value, trial.user_attrs.get(_ERROR)))
        return found

    def _reported(self, trial: optuna.trial.Trial) -> Iterable[int]:
        return self._study.get_trials(deepcopy=False)[trial.number].intermediate_values

    def _sampler(self, number: int, setting: int) -> optuna.samplers.BaseSampler:
        seed = int(np.random.SeedSequence(self._seed, spawn_key=(number, setting)).generate_state(1)[0])
        startup = min(10, max(4, self.total // 3))
        # One setting at a time: what is left of a trial after a kill does not depend on when the kill came.
        return optuna.samplers.TPESampler(seed=seed, n_startup_trials=startup, multivariate=False)


class _Journal(BaseJournalBackend):
    """The journal in a file with one writer: the sweep's lock keeps others out, so no lock of its own can stay behind.

    A last line that was cut off is dropped; what it told of had not happened yet.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        data = read_regular(path, MOST_BYTES) if path.exists() else b""
        whole = data[: data.rfind(b"\n") + 1]
        self._lines = whole.splitlines()
        for number, line in enumerate(self._lines, 1):
            try:
                if not isinstance(parse_json(line), dict):
                    raise ValueError
            except ValueError:
                raise UsageError(f"{path} is damaged at line {number}; start the sweep again elsewhere") from None
        if whole != data:
            _cut(path, len(whole))

    def read_logs(self, log_number_from: int) -> Iterable[dict[str, Any]]:
        """The events from that number on."""
        return [json.loads(line) for line in self._lines[log_number_from:]]

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Add events; they are on disk when this returns."""
        lines = [json.dumps(log, separators=(",", ":")).encode() for log in logs]
        size = self._path.stat().st_size if self._path.exists() else 0
        try:
            with os.fdopen(open_regular(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab") as file:
                file.write(b"\n".join(lines) + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            with contextlib.suppress(OSError):
                _cut(self._path, size)  # no half of a line, to which the next would be added
            raise CorralError(f"{self._path} cannot be written: {error.strerror or error}") from None
        self._lines += lines


def _cut(path: Path, size: int) -> None:
    """Shorten a file that has no other name."""
    descriptor = open_regular(path, os.O_RDWR)
    try:
        os.ftruncate(descriptor, size)
    finally:
        os.close(descriptor)


def _check_trial(trial: optuna.trial.FrozenTrial, request: SweepRequest, space: Space) -> None:
    """Refuse a trial that this search cannot have made."""
    reached = [*trial.intermediate_values.items(), *((0, value) for value in trial.values or ())]
    if not all(isinstance(step, int) and isinstance(value, int | float) for step, value in reached):
        raise ValueError(f"trial {trial.number} has reached something that is no number")
    if trial.state == TrialState.COMPLETE and not math.isfinite(trial.value or 0.0):
        raise ValueError(f"trial {trial.number} has reached something that is no number")
    if not isinstance(trial.user_attrs.get(_ERROR), str | None):
        raise ValueError(f"trial {trial.number} has an error that is no text")
    if not trial.params.keys() <= space.keys():
        raise ValueError(f"trial {trial.number} has settings that are not searched")
    if outside := [name for name, value in trial.params.items() if not space[name].has(value)]:
        raise ValueError(f"trial {trial.number} has another {outside[0]} than those that are searched")
    if len(trial.params) < len(space):
        if trial.state in (TrialState.RUNNING, TrialState.WAITING):
            return  # the sweep ended before the trial had all of its settings
        raise ValueError(f"trial {trial.number} ended without some of its settings")
    try:
        request.config_of(trial.params)
    except UsageError as error:
        raise ValueError(f"trial {trial.number}: {error}") from None


def _suggest(trial: optuna.trial.Trial, name: str, dimension: Dimension) -> None:
    """Let the trial have a value; one that it has already stays."""
    if not isinstance(dimension, Range):
        trial.suggest_categorical(name, dimension.values)
    elif dimension.whole:
        trial.suggest_int(name, int(dimension.low), int(dimension.high), log=dimension.log)
    else:
        trial.suggest_float(name, dimension.low, dimension.high, log=dimension.log)
