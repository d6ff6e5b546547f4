"""The policy that ``kl_ref_coef`` stays near: the one that the run starts from."""

from __future__ import annotations

from corral.training.hooks.hook import Hook
from corral.training.iteration import Start

__all__ = ["KlReference"]


class KlReference(Hook):
    """Takes the policy as the reference, after a warm start and the user's hooks and before the first rollout."""

    def on_start(self, start: Start) -> None:
        """Take it, unless the run has one."""
        learner = start.run.learner
        if start.config.kl_ref_coef and learner.reference is None:
            learner.set_reference(learner.policy.state_dict())
