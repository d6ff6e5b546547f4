"""Checkpoints every so many steps."""

from __future__ import annotations

from corral.core.schedules import is_due
from corral.training.hooks.hook import Hook
from corral.training.iteration import Iteration

__all__ = ["Checkpoints"]


class Checkpoints(Hook):
    """Saves the run if that is due, after its row of metrics is on disk."""

    def after_iteration(self, iteration: Iteration) -> None:
        """Save, if it is time."""
        if is_due(iteration.config.checkpoint_freq, iteration.before.timesteps, iteration.timesteps):
            iteration.run.save_recovery_point(again=True)
