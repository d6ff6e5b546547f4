"""``get_state`` and ``set_state``: envs that can say where they are need not be replayed.

An env takes part if it has ``get_state() -> bytes`` and ``set_state(bytes)``, with everything in those bytes that
decides how it goes on: its random generator too. A wrapper around it has a state of its own (``TimeLimit`` counts
steps), so it must offer the two itself; only wrappers that keep nothing are looked through.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker

__all__ = ["StateMethods", "state_methods"]

_STATELESS = (OrderEnforcing, PassiveEnvChecker)


@dataclass(frozen=True, slots=True)
class StateMethods:
    """The two methods of an env."""

    get_raw: Callable[[], Any]
    set: Callable[[bytes], Any]

    def get(self) -> bytes | None:
        """The env's state; None if what it calls a state is something else, or it cannot say."""
        try:
            state = self.get_raw()
        except Exception:  # an env's own idea of get_state may want arguments, or another moment
            return None
        return bytes(state) if isinstance(state, bytes | bytearray) else None


def state_methods(env: gym.Env[Any, Any]) -> StateMethods | None:
    """The env's methods, or None if it has none that can be relied on."""
    while isinstance(env, _STATELESS):
        env = env.env
    if callable(getattr(type(env), "get_state", None)) and callable(getattr(type(env), "set_state", None)):
        return StateMethods(env.get_state, env.set_state)  # type: ignore[attr-defined]
    return None
