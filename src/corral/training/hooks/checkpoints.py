"""Checkpoints: every so many steps, and whenever a hook asks for one."""

from __future__ import annotations

from corral.training.hooks.hook import Hook
from corral.training.iteration import Iteration

__all__ = ["Checkpoints"]


class Checkpoints(Hook):
    """Saves the run if that is due or a hook asked for it, after all hooks and the row of metrics."""

    def after_iteration(self, iteration: Iteration) -> None:
        """Save, if it is time."""
        if iteration.checkpoint_due:
            iteration.run.save_recovery_point(again=True)
