"""Reports exceptions of envs that did not end the run: a warning and a file for each of the first few."""

from __future__ import annotations

from corral.training.hooks.hook import Hook
from corral.training.iteration import Iteration

__all__ = ["FaultLog"]


class FaultLog(Hook):
    """Logs the exceptions that envs raised in the rollout."""

    def after_iteration(self, iteration: Iteration) -> None:
        """Log the rollout's faults."""
        iteration.run.log_faults(iteration.rollout.faults)
