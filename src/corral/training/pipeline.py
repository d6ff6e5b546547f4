"""Rollouts one after the other; with overlap, the next one is collected while the last is learned from."""

from __future__ import annotations

import time

import numpy as np

from corral.core.errors import DeadlinePassed
from corral.core.types import Rollout, Weights
from corral.training.progress import Stopwatch, seconds_left
from corral.training.run import Run

__all__ = ["RolloutPipeline"]

_LAG_ROWS = 512
"""Rows sampled to estimate policy lag."""


class RolloutPipeline:
    """Begins rollouts and returns them; tells the run's opponents before and after each."""

    def __init__(self, run: Run) -> None:
        self._run = run
        run.watch = Stopwatch(run.progress)  # training time begins here
        self._begun = False
        self.stage_ended: str | None = None
        """What to say if a stage ended with the last rollout."""
        duration = run.config.duration
        left = None if duration is None else seconds_left(duration, run.progress)
        self._deadline = None if left is None else time.perf_counter() + left

    def next(self) -> Rollout | None:
        """Return the next rollout [T, N]; None if the run's duration ends first, which discards the rollout."""
        run, source = self._run, self._run.source
        run.watch.start_rollout()
        if self._deadline is not None and run.progress.iteration > 0:  # a run completes one iteration at least
            source.set_deadline(self._deadline)
        if not self._begun:
            self._begin_first()
        try:
            rollout = source.collect()
        except DeadlinePassed:
            return None
        steps = run.progress.timesteps + run.config.rollout_size
        self.stage_ended = None if run.opponents is None else run.opponents.note(rollout.episodes, steps)
        self._begun = run.config.overlap and not self._is_last()
        if self._begun:  # with the weights as they are; PPO's ratio, which is to these, corrects for the lag
            self._prepare(run.learner.policy.state_dict(), steps)
            source.begin(run.progress.iteration + 1)
        run.watch.end_rollout()
        return rollout

    def measure_lag(self, rollout: Rollout) -> float | None:
        """Return the mean importance weight, clipped at 1, of a rollout that an older policy collected."""
        config = self._run.config
        if not config.overlap:
            return None
        every = max(1, config.rollout_size // _LAG_ROWS)
        log_probs, _ = self._run.learner.engine.evaluate(rollout, every)
        return float(np.minimum(np.exp(log_probs - rollout.log_probs[::every]), 1).mean())

    def _begin_first(self) -> None:
        """Begin the first rollout, or the first after a resume, which lags behind if the run does."""
        run, iteration = self._run, self._run.progress.iteration
        assert run.recovery_point is not None
        lagged = run.recovery_point.lagged_weights
        self._prepare(lagged or run.learner.policy.state_dict(), run.progress.timesteps)
        if lagged is None:
            run.source.begin(iteration)
            return
        run.source.publish(lagged, iteration - 1)
        run.source.begin(iteration)
        run.source.publish(run.learner.policy.state_dict(), iteration)

    def _prepare(self, weights: Weights, timesteps: int) -> None:
        """Choose the opponents of the next rollout."""
        if self._run.opponents is not None:
            self._run.opponents.prepare(weights, timesteps, self._run.source.opponents())

    def _is_last(self) -> bool:
        """Whether the iteration under way uses up the budget of steps."""
        config = self._run.config
        return config.timesteps is not None and self._run.progress.timesteps + config.rollout_size >= config.timesteps
