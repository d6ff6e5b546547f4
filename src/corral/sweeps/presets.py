"""What to try next: a list of presets, in turn. ``optuna_search`` has the plan that learns from what it sees."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from corral.sweeps.request import SweepRequest
from corral.sweeps.trial import Outcome, State, finished, objective, read_summaries

__all__ = ["Entry", "Plan", "PresetPlan"]


@dataclass(frozen=True, slots=True)
class Entry:
    """A trial of the sweep, begun or done."""

    label: str
    """Its number or name, and its directory under ``trials``."""
    varied: Mapping[str, Any]
    """What tells it from the others."""
    state: State
    objective: float | None = None
    error: str | None = None


class Plan(Protocol):
    """Decides what is tried, and remembers what came of it."""

    def next(self) -> Entry | None:
        """A trial to carry out: one that an earlier process began, or a new one. None if there are no more."""
        ...

    def report(self, label: str, seed_index: int, share: float, reward: float | None) -> bool:
        """A trial under way has used ``share`` of its budget and earns ``reward``; whether to give it up."""
        ...

    def tell(self, label: str, outcome: Outcome) -> None:
        """A trial has ended."""
        ...

    def entries(self) -> list[Entry]:
        """All trials so far, in order."""
        ...

    @property
    def total(self) -> int:
        """How many trials there will be."""
        ...


class PresetPlan:
    """Every preset once. What came of them is read from their runs, so nothing else needs to be kept."""

    def __init__(self, request: SweepRequest, trials: Path) -> None:
        assert request.presets is not None
        self._request, self._trials, self._presets = request, trials, request.presets
        self._failed: dict[str, str | None] = {}
        done = {entry.label for entry in self.entries() if entry.state == "complete"}
        self._left = [label for label in self._presets if label not in done]

    @property
    def total(self) -> int:
        """How many presets there are."""
        return len(self._presets)

    def next(self) -> Entry | None:
        """The next preset that is not done."""
        if not self._left:
            return None
        label = self._left.pop(0)
        return Entry(label, self._presets[label], "begun")

    def report(self, label: str, seed_index: int, share: float, reward: float | None) -> bool:
        """All presets are trained to the end."""
        return False

    def tell(self, label: str, outcome: Outcome) -> None:
        """Remember a failure; all else is in the run directory."""
        if outcome.state == "failed":
            self._failed[label] = outcome.error

    def entries(self) -> list[Entry]:
        """The presets that are done, under way or failed."""
        return [entry for label in self._presets if (entry := self._entry(label)) is not None]

    def _entry(self, label: str) -> Entry | None:
        varied, path, seeds = self._presets[label], self._trials / label, self._request.all_seeds
        if label in self._failed:
            return Entry(label, varied, "failed", error=self._failed[label])
        summaries = [summary for summary in read_summaries(path, seeds) if finished(summary)]
        if len(summaries) == len(seeds):
            value = objective(self._request.config_of(varied), summaries)
            return Entry(label, varied, "complete" if value is not None else "failed", value)
        return Entry(label, varied, "begun") if path.exists() else None
