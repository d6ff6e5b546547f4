"""Collects one rollout after the other. With ``overlap``, the next one is collected during the update."""

from __future__ import annotations

import time

import numpy as np

from corral.core.errors import DeadlinePassed
from corral.core.types import Rollout, Weights
from corral.training.progress import Stopwatch, seconds_left
from corral.training.run import Run

__all__ = ["RolloutPipeline"]

_RATIO_ROWS = 512
"""About how many rows' probability ratios are averaged."""


class RolloutPipeline:
    """Begins and returns the rollouts of a run; chooses opponents before each one and records its games after it."""

    def __init__(self, run: Run) -> None:
        self._run = run
        run.stopwatch = Stopwatch(run.progress)  # training time starts here
        self._has_begun = False
        """Whether the next rollout is being collected already."""
        self.stage_end_message: str | None = None
        """A line for the console if a stage of opponents ended with the last rollout."""
        duration = run.config.duration
        seconds = None if duration is None else seconds_left(duration, run.progress)
        self._deadline = None if seconds is None else time.perf_counter() + seconds

    def next_rollout(self) -> Rollout | None:
        """Return the next rollout [T, N]; None, and the rollout is discarded, if the run's duration ends before it."""
        run, source = self._run, self._run.source
        run.stopwatch.start_rollout()
        if self._deadline is not None and run.progress.iteration > 0:  # a run completes at least one iteration
            source.set_deadline(self._deadline)
        if not self._has_begun:
            self._begin_first_rollout()
        try:
            rollout = source.collect()
        except DeadlinePassed:
            return None
        steps = run.progress.timesteps + run.config.rollout_size
        self.stage_end_message = None if run.opponents is None else run.opponents.record_games(rollout.episodes, steps)
        self._has_begun = run.config.overlap and not self._is_last()
        if self._has_begun:
            # Collected with the weights from before this iteration's update. The rollout records the log-probabilities
            # under these weights, so that PPO's probability ratio corrects for the difference.
            self._choose_opponents(run.learner.policy.state_dict(), steps)
            source.begin(run.progress.iteration + 1)
        run.stopwatch.end_rollout()
        return rollout

    def mean_clipped_ratio(self, rollout: Rollout) -> float | None:
        """Return the mean importance weight, clipped at 1, of a rollout of an older policy; None without ``overlap``.

        The clipped importance weight is the rho of V-trace (Espeholt et al. 2018, arXiv:1802.01561).
        """
        config = self._run.config
        if not config.overlap:
            return None
        every = max(1, config.rollout_size // _RATIO_ROWS)
        log_probs, _ = self._run.learner.engine.log_probs_and_values(rollout, every)
        return float(np.minimum(np.exp(log_probs - rollout.log_probs[::every]), 1).mean())

    def _begin_first_rollout(self) -> None:
        """Begin the first rollout after a start or a resume.

        A resumed run with ``overlap`` was interrupted while a rollout was collected with the weights of one iteration
        earlier. The checkpoint holds these weights, so that the rollout is collected again as it was.
        """
        run, iteration = self._run, self._run.progress.iteration
        assert run.recovery_point is not None
        lagged_weights = run.recovery_point.lagged_weights
        self._choose_opponents(lagged_weights or run.learner.policy.state_dict(), run.progress.timesteps)
        if lagged_weights is None:
            run.source.begin(iteration)
            return
        run.source.publish(lagged_weights, iteration - 1)
        run.source.begin(iteration)
        run.source.publish(run.learner.policy.state_dict(), iteration)

    def _choose_opponents(self, weights: Weights, timesteps: int) -> None:
        """Let the league choose the opponents of the next rollout; ``weights`` are those of the policy that plays."""
        if self._run.opponents is not None:
            self._run.opponents.prepare(weights, timesteps, self._run.source.opponents())

    def _is_last(self) -> bool:
        """Whether the current iteration uses up the budget of steps."""
        config = self._run.config
        return config.timesteps is not None and self._run.progress.timesteps + config.rollout_size >= config.timesteps
