"""``get_state`` and ``set_state``: the methods of envs that can save and restore their state, and need no replay.

An env takes part if it has ``get_state() -> bytes`` and ``set_state(bytes)``. The bytes must hold everything that
decides how the episode continues, including the random generator. A wrapper may have a state too (``TimeLimit`` counts
steps), so a wrapped env takes part only if the wrapper has both methods, or is one that is known to have no state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker

__all__ = ["StateMethods", "state_methods"]

_STATELESS = (OrderEnforcing, PassiveEnvChecker)
"""Wrappers without a state that matters."""


@dataclass(frozen=True, slots=True)
class StateMethods:
    """The methods of an env that save and restore its state."""

    get_raw: Callable[[], Any]
    """The env's ``get_state``."""
    set: Callable[[bytes], Any]
    """The env's ``set_state``."""

    def get(self) -> bytes | None:
        """Return the env's state; None if ``get_state`` raises or does not return bytes."""
        try:
            state = self.get_raw()
        except Exception:  # the env may use the name for a method with arguments, or one that works only at times
            return None
        return bytes(state) if isinstance(state, bytes | bytearray) else None


def state_methods(env: gym.Env[Any, Any]) -> StateMethods | None:
    """Return the env's state methods; None if it, or a wrapper around it that may have a state, lacks them."""
    while isinstance(env, _STATELESS):
        env = env.env
    if callable(getattr(type(env), "get_state", None)) and callable(getattr(type(env), "set_state", None)):
        return StateMethods(get_raw=env.get_state, set=env.set_state)  # type: ignore[attr-defined]
    return None
