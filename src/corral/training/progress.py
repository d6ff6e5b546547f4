"""Counters, budgets and the learning rate schedule of a run, as plain data."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from corral.config.schema import TrainConfig
from corral.core.files import to_data
from corral.core.types import FaultCounts, Rollout

__all__ = [
    "Budget",
    "Progress",
    "Stopwatch",
    "budget_used",
    "budgets_of",
    "exhausted_budget",
    "learning_rate",
    "seconds_left",
]

RECENT_EPISODES = 100
"""The number of last episodes over which reward and length are averaged, as in Stable-Baselines3."""


@dataclass(slots=True)
class Progress:
    """The counters of a run. Checkpoints contain all of them."""

    iteration: int = 0
    timesteps: int = 0
    episodes: int = 0
    seconds: float = 0.0
    """Time spent collecting and learning."""
    eval_seconds: float = 0.0
    discarded_seconds: float = 0.0
    """Time spent on a rollout that was discarded because the run's ``duration`` ended before it was complete."""
    recent: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=RECENT_EPISODES))
    """Reward and length of the last episodes."""
    best_reward: float | None = None
    """The best mean reward of an evaluation so far."""
    last_eval_reward: float | None = None
    fault_counts: FaultCounts = field(default_factory=FaultCounts)

    def advance(self, rollout: Rollout, seconds: float) -> None:
        """Count a rollout that was learned from; collecting and learning took ``seconds``."""
        self.iteration += 1
        self.timesteps += rollout.n_steps * rollout.n_envs
        self.episodes += len(rollout.episodes)
        self.seconds += seconds
        self.fault_counts += rollout.fault_counts
        self.recent.extend((episode.reward, episode.length) for episode in rollout.episodes)

    @property
    def fps(self) -> float:
        """Steps per second of collecting and learning."""
        return self.timesteps / self.seconds if self.seconds else 0.0

    @property
    def mean_reward(self) -> float | None:
        """Mean reward of the last episodes; None before the first episode has ended."""
        return float(np.mean([reward for reward, _ in self.recent])) if self.recent else None

    @property
    def mean_length(self) -> float | None:
        """Mean length of the last episodes; None before the first episode has ended."""
        return float(np.mean([length for _, length in self.recent])) if self.recent else None

    def state(self) -> dict[str, Any]:
        """Return the counters as plain data for ``state.json``."""
        recent, fault_counts = [list(item) for item in self.recent], self.fault_counts.counts()
        return {**to_data(self, PROGRESS_KEYS), "recent": recent, "mishaps": fault_counts}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Progress:
        """Return the counters that ``state`` wrote."""
        values = {"discarded_seconds": 0.0, **state}  # checkpoints of earlier versions lack this key
        progress = cls(**{attribute: values[key] for attribute, key in PROGRESS_KEYS.items()})
        progress.recent = deque(((float(r), int(n)) for r, n in state["recent"]), maxlen=RECENT_EPISODES)
        progress.fault_counts = FaultCounts.from_counts(state["mishaps"])
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
    "fault_counts": "mishaps",
}
"""The key of each counter in ``state.json``."""


class Stopwatch:
    """Measures the seconds of each rollout, of each update, and of training without evaluations."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._last_update_end = time.perf_counter() - progress.eval_seconds
        """When the last update ended (at first: when training started), on a clock that stops during evaluations."""
        self._rollout_start = self._rollout_end = 0.0
        self.collect_seconds = self.update_seconds = 0.0
        """How long the loop waited for the last rollout, and how long the last update took."""
        self.seconds_to_rollout = 0.0
        """Training time from the end of the last update to the end of this rollout."""

    def start_rollout(self) -> None:
        """Note that the loop starts to wait for a rollout."""
        self._rollout_start = time.perf_counter()

    def end_rollout(self) -> None:
        """Note that the loop has received a rollout."""
        self._rollout_end = time.perf_counter()
        self.collect_seconds = self._rollout_end - self._rollout_start
        self.seconds_to_rollout = self.since_update()

    def end_update(self) -> float:
        """Note that an update is complete; return the seconds of training since the update before it."""
        self.update_seconds, seconds = time.perf_counter() - self._rollout_end, self.since_update()
        self._last_update_end += seconds
        return seconds

    def since_update(self) -> float:
        """Return the seconds of training since the last update."""
        return time.perf_counter() - self._progress.eval_seconds - self._last_update_end


class Budget(NamedTuple):
    """A limit of the run, and how much of it is used."""

    name: str
    total: float
    done: float


def budgets_of(config: TrainConfig, progress: Progress) -> list[Budget]:
    """Return the budgets that the config sets. The first one is shown by the progress bar."""
    hours = (progress.seconds + progress.eval_seconds + progress.discarded_seconds) / 3600
    limits = [
        ("timesteps", config.timesteps, progress.timesteps),
        ("num_episodes", config.num_episodes, progress.episodes),
        ("duration", config.duration, hours),
    ]
    return [Budget(name, float(total), done) for name, total, done in limits if total is not None]


def budget_used(config: TrainConfig, progress: Progress) -> float:
    """Return how much of the first budget is used, in its unit, for the progress bar."""
    return budgets_of(config, progress)[0].done


def seconds_left(duration: float, progress: Progress) -> float:
    """Return how many seconds are left of a ``duration``, which is given in hours."""
    return duration * 3600 - progress.seconds - progress.eval_seconds - progress.discarded_seconds


def exhausted_budget(config: TrainConfig, progress: Progress) -> str | None:
    """Return the name of the first budget that is used up; None if the run may continue."""
    return next((budget.name for budget in budgets_of(config, progress) if budget.done >= budget.total), None)


def learning_rate(config: TrainConfig, timesteps: int) -> float:
    """Return the learning rate: constant, or linear from ``learning_rate`` to ``learning_rate_end`` over all steps."""
    if config.learning_rate_end is None:
        return config.learning_rate
    assert config.timesteps is not None
    remaining = max(0.0, 1.0 - timesteps / config.timesteps)
    return config.learning_rate_end + (config.learning_rate - config.learning_rate_end) * remaining
