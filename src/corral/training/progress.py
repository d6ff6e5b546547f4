"""How far a run is, when it is over, and what it learned with: counters and schedules, as plain data."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from corral.config.schema import TrainConfig
from corral.core.files import to_data
from corral.core.types import RecoveryCounts, Rollout

__all__ = ["Budget", "Progress", "Stopwatch", "budgets_of", "ended_by", "learning_rate", "seconds_left"]

RECENT = 100


@dataclass(slots=True)
class Progress:
    """Counters of a run; everything here is in its checkpoints."""

    iteration: int = 0
    timesteps: int = 0
    episodes: int = 0
    seconds: float = 0.0
    """Time spent collecting and learning."""
    eval_seconds: float = 0.0
    discarded_seconds: float = 0.0
    """Time spent on a rollout that the end of the duration cut short."""
    recent: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=RECENT))
    """Reward and length of the last episodes."""
    best_reward: float | None = None
    last_eval_reward: float | None = None
    recovery_counts: RecoveryCounts = field(default_factory=RecoveryCounts)

    def advance(self, rollout: Rollout, seconds: float) -> None:
        """Count a rollout that was learned from."""
        self.iteration += 1
        self.timesteps += rollout.n_steps * rollout.n_envs
        self.episodes += len(rollout.episodes)
        self.seconds += seconds
        self.recovery_counts += rollout.recovery_counts
        self.recent.extend((episode.reward, episode.length) for episode in rollout.episodes)

    @property
    def fps(self) -> float:
        """Steps per second, learning included."""
        return self.timesteps / self.seconds if self.seconds else 0.0

    @property
    def mean_reward(self) -> float | None:
        """Mean reward of the last episodes."""
        return float(np.mean([reward for reward, _ in self.recent])) if self.recent else None

    @property
    def mean_length(self) -> float | None:
        """Mean length of the last episodes."""
        return float(np.mean([length for _, length in self.recent])) if self.recent else None

    def state(self) -> dict[str, Any]:
        """Plain data for a checkpoint."""
        recent, recovery_counts = [list(item) for item in self.recent], self.recovery_counts.counts()
        return {**to_data(self, PROGRESS_KEYS), "recent": recent, "mishaps": recovery_counts}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Progress:
        """Go on from ``state``."""
        known = {"discarded_seconds": 0.0, **state}  # older checkpoints lack it
        progress = cls(**{attribute: known[key] for attribute, key in PROGRESS_KEYS.items()})
        progress.recent = deque(((float(r), int(n)) for r, n in state["recent"]), maxlen=RECENT)
        progress.recovery_counts = RecoveryCounts.from_counts(state["mishaps"])
        return progress


PROGRESS_KEYS = {
    "iteration": "iteration",
    "timesteps": "timesteps",
    "episodes": "episodes",
    "seconds": "seconds",
    "eval_seconds": "eval_seconds",
    "discarded_seconds": "discarded_seconds",
    "recent": "recent",
    "best_reward": "best_reward",
    "last_eval_reward": "last_eval_reward",
    "recovery_counts": "mishaps",
}
"""Names of a run's counters in ``state.json``."""


class Stopwatch:
    """Seconds of each rollout and update, and of training as a whole: those of evaluations do not count."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._mark = time.perf_counter() - progress.eval_seconds
        self._started = self._collected = 0.0
        self.collect_seconds = self.update_seconds = 0.0
        self.seconds_to_rollout = 0.0
        """Training from the last update to the end of this rollout."""

    def start_rollout(self) -> None:
        """The loop begins to wait for a rollout."""
        self._started = time.perf_counter()

    def end_rollout(self) -> None:
        """The loop has a rollout."""
        self._collected = time.perf_counter()
        self.collect_seconds = self._collected - self._started
        self.seconds_to_rollout = self.since_update()

    def end_update(self) -> float:
        """An update is done; returns the seconds of training since the last one."""
        self.update_seconds, seconds = time.perf_counter() - self._collected, self.since_update()
        self._mark += seconds
        return seconds

    def since_update(self) -> float:
        """Seconds of training since the last update."""
        return time.perf_counter() - self._progress.eval_seconds - self._mark


class Budget(NamedTuple):
    """A limit of the run, and how much of it is used."""

    name: str
    total: float
    done: float


def budgets_of(config: TrainConfig, progress: Progress) -> list[Budget]:
    """Every budget that was given; the first is the one a progress bar shows."""
    hours = (progress.seconds + progress.eval_seconds + progress.discarded_seconds) / 3600
    given = [
        ("timesteps", config.timesteps, progress.timesteps),
        ("num_episodes", config.num_episodes, progress.episodes),
        ("duration", config.duration, hours),
    ]
    return [Budget(name, float(total), done) for name, total, done in given if total is not None]


def seconds_left(duration: float, progress: Progress) -> float:
    """What is left of a ``duration`` in hours."""
    return duration * 3600 - progress.seconds - progress.eval_seconds - progress.discarded_seconds


def ended_by(config: TrainConfig, progress: Progress) -> str | None:
    """The budget that is used up, or None."""
    return next((budget.name for budget in budgets_of(config, progress) if budget.done >= budget.total), None)


def learning_rate(config: TrainConfig, timesteps: int) -> float:
    """Constant, or on the line from ``learning_rate`` to ``learning_rate_end`` over the budget of steps."""
    if config.learning_rate_end is None:
        return config.learning_rate
    assert config.timesteps is not None
    remaining = max(0.0, 1.0 - timesteps / config.timesteps)
    return config.learning_rate_end + (config.learning_rate - config.learning_rate_end) * remaining
