"""Evaluations: every so many steps, and of the final policy."""

from __future__ import annotations

from corral.core.schedules import is_due
from corral.training.evaluate import evaluate_run
from corral.training.hooks.hook import Hook
from corral.training.iteration import Discarded, Iteration
from corral.training.metrics_row import progress_row
from corral.training.progress import budgets_of

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

    def after_discarded_rollout(self, discarded: Discarded) -> None:
        """Evaluate the policy as it is, in a row of metrics of its own."""
        run = discarded.run
        if run.config.eval_freq and not discarded.evaluated:
            measured = evaluate_run(run, discarded.signals)
            run.reporter.write(progress_row(run) | measured, budgets_of(run.config, run.progress)[0].done)
