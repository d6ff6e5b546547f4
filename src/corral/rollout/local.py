"""The ``local`` source: this process runs the policy, on a vector env of either kind."""

from __future__ import annotations

from corral.core.types import Actor, Rollout, Weights
from corral.rollout.arrays import allocate
from corral.rollout.collector import Collector, Segment, join
from corral.vec.api import CorralVectorEnv

__all__ = ["LocalSource"]


class LocalSource:
    """A collector and its envs. With ``overlap`` a rollout may begin while the last one is still in use."""

    def __init__(self, env: CorralVectorEnv, actor: Actor, n_steps: int, seed: int, overlap: bool = False) -> None:
        self.env = env
        self._actor = actor
        env.reset_arrays()
        self._collector = Collector(env, actor, n_steps, seed)
        shape = n_steps, env.num_envs, bool(env.has_masks)
        self._slots = [allocate(env.layout, env.codec, *shape) for _ in range(2 if overlap else 1)]
        self._begun = 0
        self._segment: Segment | None = None

    def publish(self, weights: Weights, version: int) -> None:
        """Give the actor its weights."""
        self._actor.load(weights)

    def begin(self, iteration: int) -> None:
        """Collect one rollout, here and now."""
        self._begun += 1
        self._segment = self._collector.collect(iteration, self._slots[self._begun % len(self._slots)])

    def collect(self) -> Rollout:
        """The rollout that was begun."""
        assert self._segment is not None
        return join(self._slots[self._begun % len(self._slots)], [self._segment])

    def pids(self) -> list[int]:
        """The workers of a process env."""
        return list(getattr(self.env, "pids", ()))

    def close(self) -> None:
        """Close the envs."""
        self.env.close()
