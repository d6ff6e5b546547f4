"""The options that all kinds of steppers have."""

from __future__ import annotations

from collections.abc import Callable, MutableSequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym

from corral.vec.api import InfoMode

__all__ = ["StepperOptions"]


@dataclass(frozen=True, slots=True)
class StepperOptions:
    """How a stepper seeds its envs, recovers from their exceptions, and reports."""

    factory: Callable[[], gym.Env[Any, Any]]
    """Makes new envs."""
    first_env: int = 0
    """The index in the run of the stepper's first env."""
    seed: int | None = None
    """The root seed, from which the seeds of all episodes follow."""
    infos: InfoMode = "full"
    """Whether infos are returned or summed."""
    recover: bool = False
    """Whether envs that raise are replaced by new ones."""
    env_known_to_work: bool = False
    """Whether the env has completed steps elsewhere. If not, an exception before its first such step ends the run."""
    heartbeat: MutableSequence[int] | None = None
    """Cells that the stepper changes while it makes progress (see ``env_stepper``)."""
    seed_globals: bool = False
    """Whether Python's and numpy's global random generators are seeded when an env is made or reset."""
