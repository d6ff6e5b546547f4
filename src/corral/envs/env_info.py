"""The spaces and other properties of an env that must be known before its first step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym

from corral.core.errors import UsageError
from corral.core.frame_stacks import find_frame_stacks, validate_frame_stacks
from corral.envs.opponent_protocol import curriculum_of, opponents_of
from corral.envs.vector_adapter import VectorEnv, single_env_metadata

__all__ = ["EnvInfo"]

Env = gym.Env[Any, Any]


@dataclass(frozen=True, slots=True)
class EnvInfo:
    """Properties of an env that must be known before buffers can be allocated. All envs of a run must agree on them."""

    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]
    metadata: Mapping[str, Any]
    render_mode: str | None
    opponents: tuple[str, ...] = ()
    """Names of the scripted opponents that are part of the env (see ``envs.opponent_protocol``)."""
    curriculum: tuple[Mapping[str, Any], ...] = ()
    """Training stages that the env recommends."""
    stacks: Mapping[str, int] = field(default_factory=dict)
    """Frames of each observation leaf that stacks several (see ``core.frame_stacks``)."""
    is_vector: bool = False
    """Whether the envs of a process are one vector env, which is stepped as a whole."""

    @classmethod
    def from_env(cls, env: Env) -> EnvInfo:
        """Return the properties of an env."""
        return cls(
            observation_space=env.observation_space,
            action_space=env.action_space,
            metadata=dict(env.metadata or {}),
            render_mode=env.render_mode,
            opponents=opponents_of(env),
            curriculum=curriculum_of(env),
            stacks=find_frame_stacks(env),
        )

    @classmethod
    def from_vector_env(cls, vector: VectorEnv) -> EnvInfo:
        """Return the properties of the single envs of a vector env."""
        return cls(
            observation_space=vector.single_observation_space,
            action_space=vector.single_action_space,
            metadata=single_env_metadata(vector),
            render_mode=vector.render_mode,
            stacks=validate_frame_stacks(getattr(vector, "frame_stacks", {}), vector.single_observation_space),
            is_vector=True,
        )

    def check_same(self, other: EnvInfo) -> None:
        """Raise a UsageError if two envs of one run differ in their spaces or frame stacks."""
        for name in ("observation_space", "action_space", "stacks"):
            mine, others = getattr(self, name), getattr(other, name)
            if mine != others:
                plural = name if name.endswith("s") else f"{name}s"
                raise UsageError(f"envs of one run must be alike, but their {plural} differ: {mine} and {others}")
