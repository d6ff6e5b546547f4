"""Evaluations: every so many steps, and of the final policy."""

from __future__ import annotations

from corral.core.schedules import is_due
from corral.training.hooks.hook import Hook
from corral.training.iteration import Iteration

__all__ = ["Evaluation", "FinalEvaluation"]


class Evaluation(Hook):
    """Evaluates the policy if that is due, and when a budget is used up."""

    def after_iteration(self, iteration: Iteration) -> None:
        """Evaluate, if it is time."""
        every = iteration.config.eval_freq
        due = is_due(every, iteration.before.timesteps, iteration.timesteps)
        if due or (every and iteration.stop_reason is not None):
            iteration.evaluate()


class FinalEvaluation(Hook):
    """Evaluates the policy if a hook stopped the run and nobody evaluated it in this iteration."""

    def after_iteration(self, iteration: Iteration) -> None:
        """Evaluate, if it is the last chance."""
        evaluated = "eval/mean_reward" in iteration.metrics or not iteration.config.eval_freq
        if iteration.stop_reason is not None and not evaluated:
            iteration.evaluate()
