"""Reports the end of each stage of opponents."""

from __future__ import annotations

from corral.training.hooks.hook import Hook
from corral.training.iteration import Iteration

__all__ = ["Stages"]


class Stages(Hook):
    """Prints a line when a stage ends. The end of the last stage ends the run (see ``Run.exhausted_budget``)."""

    def after_iteration(self, iteration: Iteration) -> None:
        """Print the line if a stage ended with this rollout."""
        if iteration.stage_end_message is not None:
            iteration.run.reporter.console.note(iteration.stage_end_message)
