"""The settings that say how workers that die, hang or grow are handled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from corral.core.errors import UsageError

__all__ = ["RecoveryConfig", "check_memory", "ignore_warning"]

_MEMORY_RESERVE = 1.1  # a worker must be able to grow by 10% before it reaches its limit


def ignore_warning(text: str) -> None:
    """Print nothing: for processes whose parent prints the warnings."""


@dataclass(frozen=True, slots=True)
class RecoveryConfig:
    """How workers that die, hang or grow are handled."""

    recover: bool = False
    """Whether workers that die or hang are restarted, and steps that raise are retried."""
    step_timeout: float | None = None
    """Seconds that one env step may take; None: learned from the steps so far."""
    start_timeout: float = 300.0
    """Seconds in which a new worker must have made and reset its envs."""
    max_restarts: int | None = None
    """Restarts of workers after which the next death ends the run; None: no limit."""
    max_rss: float | None = None
    """MB of memory at which a worker is restarted, at the end of an episode."""
    warn: Callable[[str], object] = ignore_warning
    env_known_to_work: bool = False
    """Whether the env has completed steps elsewhere, so that an error in its first step is no wrong set-up."""


def check_memory(max_rss: float | None, used: float) -> None:
    """Raise if a new worker, which uses ``used`` MB, would reach the limit ``max_rss`` at once."""
    if max_rss is not None and used * _MEMORY_RESERVE > max_rss:
        raise UsageError(
            f"worker_max_rss {max_rss:g}: a new worker uses {used:.0f} MB already; "
            f"allow at least {used * 2:.0f}, or put fewer envs in each (--num-workers)"
        )
