"""The interface of rollout sources. A backend (see ``config.backends``) is a function of a ``SourceSpec``.

It starts the envs and returns them as ``RolloutEnvs``. A policy is built for their spaces. With the policy, ``connect``
makes them a source of rollouts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from corral.core.types import ActorSpec, RolloutSource, Weights
from corral.envs.env_info import EnvInfo
from corral.envs.factory import EnvFactory
from corral.opponents.sampling import SharedOpponentTable
from corral.ppo.shares import Crew, Shares, ShareSetup
from corral.processes.pool import StartMethod
from corral.processes.recovery_config import RecoveryConfig

__all__ = ["ClusterConfig", "HelpingEnvs", "LearnerCrew", "RolloutEnvs", "SourceSpec"]


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """Where the machines of a run are, and how long one may be silent."""

    address: str = "local"
    """``local`` for a Ray on this machine that ends with the run, ``auto`` for the Ray that runs on this machine, or
    ``HOST:PORT`` of a cluster's head."""
    working_dir: str | None = None
    """A directory that is copied to every node, where the env finds its modules and files."""
    resources: Mapping[str, float] = field(default_factory=dict)
    """Ray resources that an env group needs besides its core, by name."""
    allow_mixed_numerics: bool = False
    """Whether machines may take part whose results differ from the trainer's in the last bits."""
    node_timeout: float = 15.0
    """Seconds without a sign of life after which a host's envs are collected elsewhere too."""


@dataclass(frozen=True, slots=True)
class SourceSpec:
    """What a run gives to its backend."""

    backend: str
    factory: EnvFactory
    n_envs: int
    num_workers: int
    """Workers that share the envs; 0 for as many as the backend finds cores."""
    n_steps: int
    """Steps of each env in a rollout."""
    seed: int
    start_method: StartMethod = "auto"
    overlap: bool = False
    """Whether the next rollout may begin while the learner still uses the last one."""
    adaptive: bool = False
    """Whether envs are moved between workers according to the workers' speeds."""
    recovery: RecoveryConfig = field(default_factory=lambda: RecoveryConfig(recover=True))
    first_env: int = 0
    """The number in the run of the first env: not 0 if the source has only some of the run's envs."""
    has_masks: bool | None = None
    """Whether the envs mask actions; None if the source has to find out."""
    cluster: ClusterConfig = field(default_factory=lambda: ClusterConfig())
    """Where the backend ``ray`` finds its machines."""


class RolloutEnvs(Protocol):
    """Envs that have started and wait for a policy."""

    @property
    def env_info(self) -> EnvInfo:
        """Spaces, metadata and opponents of the envs."""
        ...

    @property
    def num_workers(self) -> int:
        """The number of workers that share the envs."""
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


class LearnerCrew(Crew, Protocol):
    """Processes that compute gradients together."""

    shares: Shares


@runtime_checkable
class HelpingEnvs(RolloutEnvs, Protocol):
    """Envs that come with processes which can help the learner to compute gradients."""

    crew: LearnerCrew | None
    """The processes that compute gradients; None if ``connect`` was not asked for helpers."""

    @property
    def max_helpers(self) -> int:
        """How many processes could help."""
        ...

    def connect(
        self,
        actor: ActorSpec,
        weights: Weights,
        opponent_table: SharedOpponentTable | None = None,
        shares: ShareSetup | None = None,
        helpers: int = 0,
    ) -> RolloutSource:
        """Do as ``RolloutEnvs.connect``, with a ``crew`` of this many helpers if there are any."""
        ...
