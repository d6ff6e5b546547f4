"""The ``local`` source: this process runs the policy, on a vector env of either kind."""

from __future__ import annotations

from corral.core.types import Actor, Rollout, Weights
from corral.rollout.collector import Collector
from corral.vec.api import CorralVectorEnv

__all__ = ["LocalSource"]


class LocalSource:
    """A collector and its envs. The actor shares the learner's weights, so there is nothing to publish."""

    def __init__(self, env: CorralVectorEnv, actor: Actor, n_steps: int, seed: int) -> None:
        self.env = env
        self._collector = Collector(env, actor, n_steps, seed)

    def publish(self, weights: Weights, version: int) -> None:
        """Nothing to do: the weights are already where the actor looks."""

    def collect(self, iteration: int) -> Rollout:
        """Collect one rollout."""
        return self._collector.collect(iteration)

    def close(self) -> None:
        """Close the envs."""
        self.env.close()
