"""All envs in this process, one after the other: the reference that every parallel path is compared with."""

from __future__ import annotations

from collections.abc import Callable, Collection, MutableSequence, Sequence
from typing import Any

import gymnasium as gym

from corral.vec import steppers
from corral.vec.api import CallState, CorralVectorEnv, Drained, InfoMode, InfoRow, SeatsSetup
from corral.vec.history import EnvPosition
from corral.vec.shared_memory import SharedArrays

__all__ = ["SerialVectorEnv"]


class SerialVectorEnv(CorralVectorEnv):
    """N envs stepped in a loop."""

    def __init__(
        self,
        factory: Callable[[], gym.Env[Any, Any]],
        n_envs: int,
        *,
        seed: int | None = None,
        infos: InfoMode = "full",
        first_env: int = 0,
        heal: bool = False,
        proven: bool = False,
        pulse: MutableSequence[int] | None = None,
        envs: Sequence[gym.Env[Any, Any]] = (),
    ) -> None:
        seed_globals = infos == "summed"  # in training alone: elsewhere these generators are the caller's
        made = list(envs) or steppers.build(factory, first_env, n_envs, seed, seed_globals)
        try:
            super().__init__(steppers.facts_from(made), n_envs)
        except BaseException:
            steppers.close_all(made, first_env)
            raise
        self.arrays = self._allocate()
        how: dict[str, Any] = {"first_env": first_env, "seed": seed, "infos": infos, "heal": heal}
        how |= {"proven": proven, "pulse": pulse, "seed_globals": seed_globals}
        self.stepper = steppers.stepper_of(made, self.arrays, factory, **how)

    @property
    def envs(self) -> list[gym.Env[Any, Any]]:
        """The envs themselves."""
        return self.stepper.envs

    def _reset(self, seeds: list[int | None], options: list[dict[str, Any] | None]) -> list[InfoRow]:
        self.state = CallState.FAILED
        rows = self.stepper.reset(seeds, options)
        self.state = CallState.IDLE
        self.has_masks = self.stepper.has_masks
        return rows

    def send(self) -> None:
        """Begin a step: nothing happens until ``recv``."""
        self._expect(CallState.IDLE, "step")
        self.state = CallState.STEPPING

    def recv(self) -> list[InfoRow]:
        """Step every env."""
        self._expect(CallState.STEPPING, "finish a step of")
        self.state = CallState.FAILED
        rows = self.stepper.step()
        self.state = CallState.IDLE
        return rows

    def apply(self, function: Callable[[gym.Env[Any, Any]], Any], envs: Sequence[int] | None = None) -> list[Any]:
        """Call ``function(env)`` on some of the envs, or on all."""
        self._expect(CallState.IDLE, "use")
        return [function(self.envs[i]) for i in (range(self.num_envs) if envs is None else envs)]

    def drain(self) -> Drained:
        """What there is to say since the last call."""
        return self.stepper.drain()

    def seat(self, setup: SeatsSetup, shared: SharedArrays) -> None:
        """Build the seats here."""
        self.stepper.seats = setup.build(shared.arrays)

    def restore(self, positions: Sequence[EnvPosition], there: Collection[int] = ()) -> list[int]:
        """Bring every env to a position."""
        self._expect(CallState.IDLE, "restore")
        assert self.has_masks is not None
        return self.stepper.restore(positions, self.has_masks, there)

    def close_extras(self, **kwargs: Any) -> None:
        """Close the envs."""
        self.state = CallState.CLOSED
        self.stepper.close()
