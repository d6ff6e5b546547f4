"""The flag ``--log-episodes``: prints a line for every epoch and every update."""

from __future__ import annotations

from corral.reporting.episode_lines import epoch_line, update_line
from corral.training.hooks.hook import Hook
from corral.training.iteration import Iteration

__all__ = ["UpdateLog"]


class UpdateLog(Hook):
    """Prints a line for each completed epoch, and one for the update."""

    def after_iteration(self, iteration: Iteration) -> None:
        """Print the lines."""
        run, config = iteration.run, iteration.config
        epochs = (
            (run.learner.n_gradient_steps - iteration.before.n_gradient_steps)
            * config.minibatch_size
            / config.rollout_size
        )
        for epoch in range(1, int(epochs) + 1):
            run.reporter.console.note(epoch_line(epoch, config.n_epochs))
        run.reporter.console.note(update_line(iteration.metrics, epochs, config.rollout_size, run.progress.seconds))
