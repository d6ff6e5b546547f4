"""The serial backend: all envs in this process. Every parallel backend is tested for the same results."""

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
from corral.vec.stepper_options import StepperOptions

__all__ = ["SerialVectorEnv"]


class SerialVectorEnv(CorralVectorEnv):
    """N envs in this process.

    ``first_env`` is the index of the first env in the run. ``recover``: replace envs that raise by new ones.
    ``env_known_to_work``: the env has completed steps elsewhere, so that an exception is no mistake in the set-up.
    ``heartbeat``: cells that a parent process watches. ``envs``: use these envs instead of making new ones.
    """

    def __init__(
        self,
        factory: Callable[[], gym.Env[Any, Any]],
        n_envs: int,
        *,
        seed: int | None = None,
        infos: InfoMode = "full",
        first_env: int = 0,
        recover: bool = False,
        env_known_to_work: bool = False,
        heartbeat: MutableSequence[int] | None = None,
        envs: Sequence[gym.Env[Any, Any]] = (),
    ) -> None:
        seed_globals = infos == "summed"  # only in training; otherwise the global generators belong to the caller
        made_envs = list(envs) or stepper_factory.make_envs(factory, first_env, n_envs, seed, seed_globals)
        try:
            super().__init__(stepper_factory.read_env_info(made_envs), n_envs)
        except BaseException:
            stepper_factory.close_envs(made_envs, first_env)
            raise
        self.arrays = self._allocate()
        self._pending_call: Callable[[], list[Any]] = list  # the reset or apply to execute when it is waited for
        options = StepperOptions(
            factory=factory,
            first_env=first_env,
            seed=seed,
            infos=infos,
            recover=recover,
            env_known_to_work=env_known_to_work,
            heartbeat=heartbeat,
            seed_globals=seed_globals,
        )
        self.stepper = stepper_factory.make_stepper(made_envs, self.arrays, options)

    @property
    def envs(self) -> list[gym.Env[Any, Any]]:
        """The envs, or, of a vector env, a view of each of its envs."""
        return self.stepper.envs

    def _begin_reset(
        self, seeds: list[int | None], options: list[dict[str, Any] | None], chosen: npt.NDArray[np.bool_] | None
    ) -> None:
        reset_mask = None if chosen is None else chosen.tolist()
        self._pending_call = functools.partial(self.stepper.reset, seeds, options, reset_mask)
        self.state = CallState.RESETTING

    def _finish_reset(self, timeout: float | None = None) -> list[InfoRow]:
        self.state = CallState.FAILED
        pending_call, self._pending_call = self._pending_call, list
        rows: list[InfoRow] = pending_call()
        self.state = CallState.IDLE
        self.has_masks, self.mask_dtype = self.stepper.has_masks, self.stepper.row_writer.mask_dtype
        return rows

    def send(self) -> None:
        """Begin a step. The envs are stepped in ``recv``."""
        if self.state is not CallState.IDLE:
            calls.check_state(self, self.state, "send")
        self.state = CallState.STEPPING

    def recv(self, timeout: float | None = None) -> list[InfoRow]:
        """Step every env and return the infos."""
        if self.state is not CallState.STEPPING:
            calls.check_wait(self, self.state, "step")
        self.state = CallState.FAILED
        rows = self.stepper.step()
        self.state = CallState.IDLE
        return rows

    def _begin_apply(self, function: Callable[[gym.Env[Any, Any]], Any], envs: Sequence[int] | None) -> None:
        indices = range(self.num_envs) if envs is None else envs
        self._pending_call = lambda: [function(self.envs[i]) for i in indices]
        self.state = CallState.CALLING

    def _finish_apply(self, timeout: float | None = None) -> list[Any]:
        pending_call, self._pending_call = self._pending_call, list
        self.state = CallState.IDLE
        return pending_call()

    def take_report(self) -> EnvReport:
        """Return what happened in the envs since the last call."""
        return self.stepper.take_report()

    def set_opponent_sampler(self, setup: OpponentSamplerSpec, shared: SharedArrays) -> None:
        """Choose the opponents of new episodes by this sampler."""
        self.stepper.opponent_sampler = setup.build(shared.arrays)

    def restore(self, positions: Sequence[EnvPosition], already_there: Collection[int] = ()) -> list[int]:
        """Bring every env to its position, except those in ``already_there``; return those that cannot be restored."""
        calls.check_state(self, self.state, "restore")
        assert self.has_masks is not None
        return self.stepper.restore(positions, self.has_masks, already_there)

    def close_extras(self, **kwargs: Any) -> None:
        """Close the envs."""
        self.state = CallState.CLOSED
        self.stepper.close()
