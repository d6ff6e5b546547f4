"""Saves checkpoints: every ``checkpoint_freq`` steps, and when a hook requests one."""

from __future__ import annotations

from corral.training.hooks.hook import Hook
from corral.training.iteration import Iteration

__all__ = ["Checkpoints"]


class Checkpoints(Hook):
    """Saves a checkpoint if one is due or was requested. It is called last, after the row of metrics is written."""

    def after_iteration(self, iteration: Iteration) -> None:
        """Save a checkpoint if ``iteration.checkpoint_due``."""
        if iteration.checkpoint_due:
            iteration.run.save_recovery_point(again=True)
