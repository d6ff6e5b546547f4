"""Parts of checks that make the env, called in another process, where it may crash or hang."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from corral.envs.factory import EnvFactory
from corral.processes.supervision import RecoveryConfig
from corral.vec.child_call import call_in_child

__all__ = ["apart"]

T = TypeVar("T")


def apart(function: Callable[..., T], factory: EnvFactory, **arguments: Any) -> T:
    """Return ``function(heartbeat, factory=factory, **arguments)``, called in a new process with the time-outs of a run."""
    bound: Callable[..., T] = functools.partial(function, factory=factory, **arguments)
    return call_in_child(bound, f"trying out {factory.name}", RecoveryConfig(heal=True))
