"""The row of metrics: to the files and to the progress bar."""

from __future__ import annotations

from corral.training.hooks.hook import Hook
from corral.training.iteration import Iteration
from corral.training.progress import budgets_of

__all__ = ["Writers"]


class Writers(Hook):
    """Writes the row of each iteration, whatever the hooks before it did."""

    def after_iteration(self, iteration: Iteration) -> None:
        """Write the row; one with more in it than every row has is never left out."""
        run, config = iteration.run, iteration.config
        more = len(iteration.metrics) > iteration.n_measured
        ends = iteration.stage_ended is not None or iteration.stop_reason is not None
        keep = more or iteration.checkpoint_due or ends
        run.reporter.write(iteration.metrics, budgets_of(config, run.progress)[0].done, keep)
