"""The reference policy of the KL penalty ``kl_ref_coef``: the policy with which the run starts."""

from __future__ import annotations

from corral.training.hooks.hook import Hook
from corral.training.iteration import Start

__all__ = ["KlReference"]


class KlReference(Hook):
    """Keeps a copy of the policy as reference, after a warm start and the user's hooks, before the first rollout."""

    def on_start(self, start: Start) -> None:
        """Copy the policy, unless a resumed run has a reference already."""
        learner = start.run.learner
        if start.config.kl_ref_coef and learner.reference is None:
            learner.set_reference(learner.policy.state_dict())
