"""Calls checks that make the env in a child process, where the env may crash or hang."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from corral.envs.factory import EnvFactory
from corral.processes.recovery_config import RecoveryConfig
from corral.vec.child_call import call_in_child

__all__ = ["call_isolated"]

T = TypeVar("T")


def call_isolated(function: Callable[..., T], factory: EnvFactory, **arguments: Any) -> T:
    """Return ``function(heartbeat, factory=factory, **arguments)``, called in a new process with a run's time-outs."""
    bound: Callable[..., T] = functools.partial(function, factory=factory, **arguments)
    return call_in_child(bound, f"trying out {factory.name}", RecoveryConfig(recover=True))
