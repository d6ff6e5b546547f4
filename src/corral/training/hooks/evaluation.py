"""Evaluates the policy: every ``eval_freq`` steps, and at the end of the run."""

from __future__ import annotations

from corral.core.schedules import is_due
from corral.training.hooks.hook import Hook
from corral.training.iteration import Iteration

__all__ = ["Evaluation", "FinalEvaluation"]


class Evaluation(Hook):
    """Evaluates the policy if an evaluation is due or a budget is used up."""

    def after_iteration(self, iteration: Iteration) -> None:
        """Evaluate if a multiple of ``eval_freq`` was reached, or if this iteration is the last."""
        eval_freq = iteration.config.eval_freq
        due = is_due(eval_freq, iteration.before.timesteps, iteration.timesteps)
        if due or (eval_freq and iteration.stop_reason is not None):
            iteration.evaluate()


class FinalEvaluation(Hook):
    """Evaluates the final policy if a user's hook stopped the run in an iteration without evaluation."""

    def after_iteration(self, iteration: Iteration) -> None:
        """Evaluate if the run ends with this iteration and the policy has not been evaluated in it."""
        if iteration.stop_reason is not None and iteration.config.eval_freq and not iteration.is_evaluated:
            iteration.evaluate()
