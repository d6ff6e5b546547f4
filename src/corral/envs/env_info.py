"""What is known of an env before its first step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym

from corral.core.errors import UsageError
from corral.core.frame_stacks import checked_stacks, stacks_of
from corral.envs.opponent_protocol import curriculum_of, opponents_of
from corral.envs.vector_adapter import VectorEnv, plain_metadata

__all__ = ["EnvInfo"]

Env = gym.Env[Any, Any]


@dataclass(frozen=True, slots=True)
class EnvInfo:
    """What must be known of an env before memory can be laid out; every env of a run must agree on it."""

    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]
    metadata: Mapping[str, Any]
    render_mode: str | None
    opponents: tuple[str, ...] = ()
    """The env's own opponents, if it has any (see ``envs.opponent_protocol``)."""
    curriculum: tuple[Mapping[str, Any], ...] = ()
    """The stages that the env says it is best learned in, if it does."""
    stacks: Mapping[str, int] = field(default_factory=dict)
    """Its observations that are several frames (see ``core.frame_stacks``)."""

    @classmethod
    def from_env(cls, env: Env) -> EnvInfo:
        """Read them off an env."""
        spaces = env.observation_space, env.action_space
        asked = opponents_of(env), curriculum_of(env)
        return cls(*spaces, dict(env.metadata or {}), env.render_mode, *asked, stacks=stacks_of(env))

    @classmethod
    def from_vector_env(cls, vector: VectorEnv) -> EnvInfo:
        """Read them off the envs of a vector env."""
        spaces = vector.single_observation_space, vector.single_action_space
        stacks = checked_stacks(getattr(vector, "frame_stacks", {}), spaces[0])
        return cls(*spaces, plain_metadata(vector), vector.render_mode, stacks=stacks)

    def check_same(self, other: EnvInfo) -> None:
        """Refuse envs of one run that differ."""
        for name in ("observation_space", "action_space", "stacks"):
            one, two = getattr(self, name), getattr(other, name)
            if one != two:
                what = name if name.endswith("s") else f"{name}s"
                raise UsageError(f"envs of one run must be alike, but their {what} differ: {one} and {two}")
