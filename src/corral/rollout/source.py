"""What every source of rollouts is given, and what it gives before the policy is known: see ``config.backends``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from corral.core.types import ActorSpec, RolloutSource, Weights
from corral.envs.env_info import EnvInfo
from corral.envs.factory import EnvFactory
from corral.opponents.table import SharedOpponentTable
from corral.processes.pool import StartMethod
from corral.processes.supervision import RecoveryConfig

__all__ = ["RolloutEnvs", "SourceSpec"]


@dataclass(frozen=True, slots=True)
class SourceSpec:
    """What a run asks of its source."""

    backend: str
    factory: EnvFactory
    n_envs: int
    num_workers: int
    n_steps: int
    """Steps of each env in a rollout."""
    seed: int
    start_method: StartMethod
    overlap: bool
    """Whether a rollout may begin while the last one is still in use."""
    adaptive: bool
    recovery: RecoveryConfig


class RolloutEnvs(Protocol):
    """Envs that have started. Their spaces decide the policy; with it, they become a source of rollouts."""

    @property
    def env_info(self) -> EnvInfo:
        """What the envs are like."""
        ...

    @property
    def has_masks(self) -> bool | None:
        """Whether they offer action masks."""
        ...

    def connect(
        self, actor: ActorSpec, weights: Weights, opponent_table: SharedOpponentTable | None = None
    ) -> RolloutSource:
        """Return the source in which ``actor`` acts; ``opponent_table`` plays the other side where the run chooses who does."""
        ...

    def close(self) -> None:
        """Close the envs."""
        ...
