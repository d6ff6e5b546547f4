"""The order of trials: the protocol of a plan, and the plan that tries presets in turn.

The plan that searches with Optuna is in ``optuna_search``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from corral.sweeps.request import SweepRequest
from corral.sweeps.trial import Outcome, State, finished, objective, read_summaries

__all__ = ["Plan", "PresetPlan", "TrialEntry"]


@dataclass(frozen=True, slots=True)
class TrialEntry:
    """A trial of the sweep that has begun or ended."""

    label: str
    """The trial's number or the preset's name; also the name of its directory under ``trials``."""
    varied: Mapping[str, Any]
    """The settings in which trials differ."""
    state: State
    objective: float | None = None
    error: str | None = None


class Plan(Protocol):
    """Chooses the trials of a sweep and records their outcomes."""

    def next(self) -> TrialEntry | None:
        """Return a trial to run, one that an earlier process began or a new one; None if there are no more."""
        ...

    def report(self, label: str, seed_index: int, share: float, reward: float | None) -> bool:
        """Take note of a running trial that has used ``share`` of its budget; return whether to prune it."""
        ...

    def record(self, label: str, outcome: Outcome) -> None:
        """Record the outcome of a trial that has ended."""
        ...

    def entries(self) -> list[TrialEntry]:
        """Return all trials that have begun, in order."""
        ...

    @property
    def total(self) -> int:
        """Number of trials of the whole sweep."""
        ...


class PresetPlan:
    """Tries every preset once. The results are read from the run directories, so that it has no file of its own."""

    def __init__(self, request: SweepRequest, trials: Path) -> None:
        assert request.presets is not None
        self._request, self._trials, self._presets = request, trials, request.presets
        self._errors: dict[str, str | None] = {}
        """Errors of the presets that failed in this process."""
        complete = {entry.label for entry in self.entries() if entry.state == "complete"}
        self._to_run = [label for label in self._presets if label not in complete]

    @property
    def total(self) -> int:
        """Number of presets."""
        return len(self._presets)

    def next(self) -> TrialEntry | None:
        """Return the next preset that is not complete; None if there are no more."""
        if not self._to_run:
            return None
        label = self._to_run.pop(0)
        return TrialEntry(label, self._presets[label], "begun")

    def report(self, label: str, seed_index: int, share: float, reward: float | None) -> bool:
        """Return False: presets are never pruned."""
        return False

    def record(self, label: str, outcome: Outcome) -> None:
        """Record the error of a preset that failed; everything else is in its run directories."""
        if outcome.state == "failed":
            self._errors[label] = outcome.error

    def entries(self) -> list[TrialEntry]:
        """Return the presets that have begun, in order."""
        return [entry for label in self._presets if (entry := self._entry(label)) is not None]

    def _entry(self, label: str) -> TrialEntry | None:
        """Return the entry of a preset; None if it has not begun."""
        varied, path, seeds = self._presets[label], self._trials / label, self._request.all_seeds
        if label in self._errors:
            return TrialEntry(label, varied, "failed", error=self._errors[label])
        summaries = [summary for summary in read_summaries(path, seeds) if finished(summary)]
        if len(summaries) == len(seeds):
            value = objective(self._request.config_of(varied), summaries)
            return TrialEntry(label, varied, "complete" if value is not None else "failed", value)
        return TrialEntry(label, varied, "begun") if path.exists() else None
