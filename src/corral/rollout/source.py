"""The interface of rollout sources. A backend (see ``config.backends``) is a function of a ``SourceSpec``.

It starts the envs and returns them as ``RolloutEnvs``. A policy is built for their spaces. With the policy, ``connect``
makes them a source of rollouts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from corral.core.types import ActorSpec, RolloutSource, Weights
from corral.envs.env_info import EnvInfo
from corral.envs.factory import EnvFactory
from corral.opponents.sampling import SharedOpponentTable
from corral.processes.pool import StartMethod
from corral.processes.recovery_config import RecoveryConfig

__all__ = ["RolloutEnvs", "SourceSpec"]


@dataclass(frozen=True, slots=True)
class SourceSpec:
    """What a run gives to its backend."""

    backend: str
    factory: EnvFactory
    n_envs: int
    num_workers: int
    n_steps: int
    """Steps of each env in a rollout."""
    seed: int
    start_method: StartMethod = "auto"
    overlap: bool = False
    """Whether the next rollout may begin while the learner still uses the last one."""
    adaptive: bool = False
    """Whether envs are moved between workers according to the workers' speeds."""
    recovery: RecoveryConfig = field(default_factory=lambda: RecoveryConfig(recover=True))


class RolloutEnvs(Protocol):
    """Envs that have started and wait for a policy."""

    @property
    def env_info(self) -> EnvInfo:
        """Spaces, metadata and opponents of the envs."""
        ...

    @property
    def has_masks(self) -> bool | None:
        """Whether the envs mask actions."""
        ...

    def connect(
        self, actor: ActorSpec, weights: Weights, opponent_table: SharedOpponentTable | None = None
    ) -> RolloutSource:
        """Return a source of rollouts in which ``actor`` chooses the actions, with these weights at first.

        ``opponent_table`` holds the opponents if the run chooses them, instead of the env.
        """
        ...

    def close(self) -> None:
        """Close the envs."""
        ...
