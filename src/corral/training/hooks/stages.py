"""The stages of a run: a line when one ends."""

from __future__ import annotations

from corral.training.hooks.hook import Hook
from corral.training.iteration import Iteration

__all__ = ["Stages"]


class Stages(Hook):
    """Says that a stage ended, and how; the end of the last one is a budget of the run."""

    def after_iteration(self, iteration: Iteration) -> None:
        """Say it."""
        if iteration.stage_ended is not None:
            iteration.run.reporter.console.note(iteration.stage_ended)
