"""All envs in this process, one after the other: the reference that every parallel path is compared with."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, MutableSequence, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from corral.processes.shared_memory import SharedArrays
from corral.vec import calls, stepper_factory
from corral.vec.api import CallState, CorralVectorEnv, EnvReport, InfoMode, InfoRow, OpponentSamplerSpec
from corral.vec.replay_log import EnvPosition
from corral.vec.stepper_factory import StepperOptions

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
        known_to_work: bool = False,
        heartbeat: MutableSequence[int] | None = None,
        envs: Sequence[gym.Env[Any, Any]] = (),
    ) -> None:
        seed_globals = infos == "summed"  # in training alone: elsewhere these generators are the caller's
        made = list(envs) or stepper_factory.build(factory, first_env, n_envs, seed, seed_globals)
        try:
            super().__init__(stepper_factory.read_env_info(made), n_envs)
        except BaseException:
            stepper_factory.close_all(made, first_env)
            raise
        self.arrays = self._allocate()
        self._asked: Callable[[], list[Any]] = list  # what was begun, until it is waited for
        options = StepperOptions(factory, first_env, seed, infos, heal, known_to_work, heartbeat, seed_globals)
        self.stepper = stepper_factory.stepper_of(made, self.arrays, options)

    @property
    def envs(self) -> list[gym.Env[Any, Any]]:
        """The envs themselves."""
        return self.stepper.envs

    def _begin_reset(
        self, seeds: list[int | None], options: list[dict[str, Any] | None], chosen: npt.NDArray[np.bool_] | None
    ) -> None:
        self._asked = functools.partial(self.stepper.reset, seeds, options, None if chosen is None else chosen.tolist())
        self.state = CallState.RESETTING

    def _finish_reset(self, timeout: float | None = None) -> list[InfoRow]:
        self.state = CallState.FAILED
        asked, self._asked = self._asked, list
        rows: list[InfoRow] = asked()
        self.state = CallState.IDLE
        self.has_masks, self.mask_dtype = self.stepper.has_masks, self.stepper.row_writer.mask_dtype
        return rows

    def send(self) -> None:
        """Begin a step: nothing happens until ``recv``."""
        if self.state is not CallState.IDLE:
            calls.check_state(self, self.state, "send")
        self.state = CallState.STEPPING

    def recv(self, timeout: float | None = None) -> list[InfoRow]:
        """Step every env."""
        if self.state is not CallState.STEPPING:
            calls.check_wait(self, self.state, "step")
        self.state = CallState.FAILED
        rows = self.stepper.step()
        self.state = CallState.IDLE
        return rows

    def _begin_apply(self, function: Callable[[gym.Env[Any, Any]], Any], envs: Sequence[int] | None) -> None:
        wanted = range(self.num_envs) if envs is None else envs
        self._asked = lambda: [function(self.envs[i]) for i in wanted]
        self.state = CallState.CALLING

    def _finish_apply(self, timeout: float | None = None) -> list[Any]:
        asked, self._asked = self._asked, list
        self.state = CallState.IDLE
        return asked()

    def drain(self) -> EnvReport:
        """What there is to say since the last call."""
        return self.stepper.drain()

    def seat(self, setup: OpponentSamplerSpec, shared: SharedArrays) -> None:
        """Build the seats here."""
        self.stepper.opponent_sampler = setup.build(shared.arrays)

    def restore(self, positions: Sequence[EnvPosition], there: Collection[int] = ()) -> list[int]:
        """Bring every env to a position."""
        calls.check_state(self, self.state, "restore")
        assert self.has_masks is not None
        return self.stepper.restore(positions, self.has_masks, there)

    def close_extras(self, **kwargs: Any) -> None:
        """Close the envs."""
        self.state = CallState.CLOSED
        self.stepper.close()
