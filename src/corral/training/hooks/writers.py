"""Writes the row of metrics of each iteration to the files and to the progress bar."""

from __future__ import annotations

from corral.training.hooks.hook import Hook
from corral.training.iteration import Iteration
from corral.training.progress import budget_used

__all__ = ["Writers"]


class Writers(Hook):
    """Writes the row of each iteration, even if a hook raised."""

    def after_iteration(self, iteration: Iteration) -> None:
        """Write the row.

        Late in a long run of short iterations, the reporter leaves rows out of the files. It never leaves out a row
        with metrics of an evaluation or a hook, nor the row of a checkpoint or of the end of a stage or of the run.
        """
        run = iteration.run
        has_more_metrics = len(iteration.metrics) > iteration.n_common_metrics
        is_end = iteration.stage_end_message is not None or iteration.stop_reason is not None
        keep = has_more_metrics or iteration.checkpoint_due or is_end
        run.reporter.write(iteration.metrics, budget_used(run.config, run.progress), keep)
