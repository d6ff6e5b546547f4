"""Measures what a step of an env costs, in a child process, where an env may crash or hang."""

from __future__ import annotations

import contextlib
import copy
import functools
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil

from corral.config.schema import TrainConfig
from corral.core.errors import CorralError
from corral.core.sums import normalized_shares
from corral.core.types import Leaves
from corral.envs.factory import EnvFactory
from corral.envs.opponent_protocol import OPPONENT
from corral.opponents.stages import mix_of, reset_options_of, stages_of
from corral.processes.pool import StartMethod
from corral.processes.recovery_config import RecoveryConfig
from corral.rollout import worker
from corral.vec.api import EnvInfo
from corral.vec.child_call import Heartbeat, call_in_child
from corral.vec.serial import SerialVectorEnv

__all__ = ["EnvCosts", "first_stage_mix", "measure_env", "measure_vector_step", "try_env"]

_MEASURE_SECONDS, _MEASURE_STEPS = 1.0, 400
"""The longest measurement, and the most steps of it."""
_TRY_SECONDS, _TRY_STEPS = 0.2, 20
"""The longest trial of an env that is not measured, and the most steps of it."""


@dataclass(frozen=True, slots=True)
class EnvCosts:
    """An env's spaces, one of its observations, and what its steps cost."""

    env_info: EnvInfo
    observations: Leaves
    """One observation; each leaf is [1, ...]."""
    masks: npt.NDArray[np.bool_] | None
    """The mask [1, A] that belongs to the observation; None if the env has no masks."""
    step_times: list[float]
    """Microseconds of steps of one env, resets included."""
    memory_mb: float
    """Memory of one env; 0 if it was not measured."""


@dataclass(frozen=True, slots=True)
class FirstStageMix:
    """The opponent mix of a run's first stage, for measurements."""

    shares: Mapping[str, float]
    """Share of episodes against each opponent, by name."""
    options: Mapping[str, Mapping[str, Any]] | None
    """The env's reset options for each opponent; None if they follow from the env's list of ``opponents``."""

    def opponent_sampler(self, opponents: Sequence[str]) -> EnvOnlySampler | None:
        """Return a sampler of the mix's opponents that the env offers; None if it offers none of them."""
        options = {name: {OPPONENT: name} for name in opponents} if self.options is None else self.options
        shares = {name: share for name, share in self.shares.items() if name in options}
        if not shares:
            return None
        return EnvOnlySampler([options[name] for name in shares], list(normalized_shares(shares).values()))


class EnvOnlySampler:
    """Draws opponents that the env plays itself; past policies and policies of other runs are left out."""

    is_recurrent = False

    def __init__(self, options: Sequence[Mapping[str, Any]], shares: Sequence[float]) -> None:
        self._options, self._shares = options, shares

    def draw(self, seed: int) -> int:
        """Return the number of a random opponent."""
        return int(np.random.default_rng(seed).choice(len(self._options), p=self._shares))

    def options(self, opponent: int) -> dict[str, Any]:
        """Return the env's reset options for an opponent."""
        return copy.deepcopy(dict(self._options[opponent]))


def measure_env(
    factory: EnvFactory,
    n_envs: int,
    mix: FirstStageMix | None,
    recovery: RecoveryConfig,
    start_method: StartMethod,
    memory: bool = False,
) -> EnvCosts:
    """Make an env in a child process and step it for a second; if it is a vector env, with ``n_envs`` sub-envs.

    ``memory``: afterwards make a second env there, to measure how much memory it takes.
    """
    function = functools.partial(_measure_in_child, factory=factory, n_envs=n_envs, mix=mix, memory=memory)
    return call_in_child(function, f"measuring {factory.name}", recovery, start_method, worker.__name__)


def try_env(
    factory: EnvFactory,
    n_envs: int,
    seed: int,
    mix: FirstStageMix | None,
    recovery: RecoveryConfig,
    start_method: StartMethod,
) -> None:
    """Make envs in a child process and take a few steps, so that a crash or a hang happens there."""
    if multiprocessing.current_process().daemon:  # a daemon may not start children
        return
    function = functools.partial(_try_in_child, factory=factory, n_envs=n_envs, seed=seed, mix=mix)
    activity = f"trying out {factory.name}"
    if n_envs > 1:
        activity += f", {n_envs} envs in one process"
        if not factory.is_vector:
            activity += " (if a process can hold only one: set --num-workers to the number of --n-envs)"
    call_in_child(function, activity, recovery, start_method, worker.__name__)


def measure_vector_step(
    factory: EnvFactory, n_envs: int, pause: float, recovery: RecoveryConfig, start_method: StartMethod
) -> float:
    """Return the microseconds of a step of a vector env with ``n_envs`` sub-envs.

    Before each step, this process is busy for ``pause`` microseconds, because a vector env's threads fall asleep
    between steps and take time to wake up.
    """
    function = functools.partial(_measure_vector_in_child, factory=factory, n_envs=n_envs, pause=pause)
    return call_in_child(function, f"measuring {factory.name}", recovery, start_method, worker.__name__)


def _measure_in_child(
    heartbeat: Heartbeat, factory: EnvFactory, n_envs: int, mix: FirstStageMix | None, memory: bool
) -> EnvCosts:
    with _open_envs(heartbeat, factory, n_envs, 0, mix) as env:
        step_times = _step_times(env)
        observations = {path: leaf[:1].copy() for path, leaf in env.arrays.observations.items()}
        masks = None if env.masks is None else env.masks[:1].copy()
        memory_mb = 0.0
        if memory:
            with heartbeat.making_envs():
                memory_mb = _memory_of_second_env(factory, heartbeat)
        return EnvCosts(env.env_info, observations, masks, step_times, memory_mb)


def _try_in_child(heartbeat: Heartbeat, factory: EnvFactory, n_envs: int, seed: int, mix: FirstStageMix | None) -> None:
    with _open_envs(heartbeat, factory, n_envs, seed, mix) as env:
        _step_times(env, max_seconds=_TRY_SECONDS, max_steps=_TRY_STEPS)


@contextlib.contextmanager
def _open_envs(
    heartbeat: Heartbeat, factory: EnvFactory, n_envs: int, seed: int, mix: FirstStageMix | None = None
) -> Iterator[SerialVectorEnv]:
    """Make and reset envs, with opponents of the mix, and close them afterwards."""
    with heartbeat.making_envs():
        env = SerialVectorEnv(factory, n_envs, seed=seed, infos="summed", recover=True, heartbeat=heartbeat.cells)
    try:
        with heartbeat.making_envs():
            env.stepper.opponent_sampler = None if mix is None else mix.opponent_sampler(env.env_info.opponents)
            env.reset_arrays()
        yield env
    finally:
        env.close()


def _memory_of_second_env(factory: EnvFactory, heartbeat: Heartbeat) -> float:
    """Return the MB that a second env takes, because the first one also loads what all envs of a process share.

    Return 0 if a process can have only one env.
    """
    before = psutil.Process().memory_info().rss
    try:
        env = SerialVectorEnv(factory, 1, seed=1, infos="summed", recover=True, heartbeat=heartbeat.cells)
    except CorralError:
        return 0.0
    try:
        env.reset_arrays()
        return max(0.0, (psutil.Process().memory_info().rss - before) / 2**20)
    except CorralError:
        return 0.0
    finally:
        env.close()


def _measure_vector_in_child(heartbeat: Heartbeat, factory: EnvFactory, n_envs: int, pause: float) -> float:
    with _open_envs(heartbeat, factory, n_envs, 0) as env:
        return n_envs * statistics.fmean(_step_times(env, before_step=lambda: _keep_busy(pause)))


def _step_times(
    env: SerialVectorEnv,
    before_step: Callable[[], object] = lambda: None,
    max_seconds: float = _MEASURE_SECONDS,
    max_steps: int = _MEASURE_STEPS,
) -> list[float]:
    """Return the microseconds of steps with random legal actions, divided by the number of envs."""
    times: list[float] = []
    generator = np.random.default_rng(0)
    end = time.perf_counter() + max_seconds
    while len(times) < max_steps and (time.perf_counter() < end or len(times) < 3):
        env.codec.decode(env.codec.random(env.masks, env.num_envs, generator), env.arrays.actions)
        before_step()
        env.send()
        started = time.perf_counter()
        env.recv()
        times.append((time.perf_counter() - started) * 1e6 / env.num_envs)
    return times[1:]  # the first step fills caches


def _keep_busy(microseconds: float) -> None:
    """Keep the CPU busy, as a policy does that chooses actions."""
    end = time.perf_counter() + microseconds / 1e6
    while time.perf_counter() < end:
        pass


def first_stage_mix(config: TrainConfig) -> FirstStageMix | None:
    """Return the opponent mix of a run's first stage; None if the run does not choose opponents."""
    stages = stages_of(config)
    if not stages:
        return None
    options = dict(reset_options_of(stages, ())) if stages[0].opponent is None else None
    return FirstStageMix(mix_of(stages[0]), options)
