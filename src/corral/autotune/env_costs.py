"""What a step of an env costs. It is measured in a process of its own, where an env may crash or hang."""

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
from corral.processes.supervision import RecoveryConfig
from corral.rollout import worker
from corral.vec.api import EnvInfo
from corral.vec.child_call import Heartbeat, call_in_child
from corral.vec.serial import SerialVectorEnv

__all__ = ["EnvCosts", "FirstMix", "first_mix", "measure_env", "measure_vector_step", "try_env"]

_STEP_SECONDS, _STEPS = 1.0, 400
_TRY_SECONDS, _TRY_STEPS = 0.2, 20


@dataclass(frozen=True, slots=True)
class EnvCosts:
    """What the measured env is like, and what it costs."""

    env_info: EnvInfo
    observations: Leaves
    """Each [1, ...]: one that it showed."""
    masks: npt.NDArray[np.bool_] | None
    """[1, A]: the mask of the same moment, if it has masks."""
    step_times: list[float]
    """Microseconds of one env's steps, resets included."""
    memory_mb: float
    """Of one env; 0 if it was not asked for."""


@dataclass(frozen=True, slots=True)
class FirstMix:
    """The opponents of a run's first stage, as far as the env plays them itself."""

    shares: Mapping[str, float]
    options: Mapping[str, Mapping[str, Any]] | None
    """What the env is reset with for each of them; None if the env's own ``opponents`` say so."""

    def opponent_sampler(self, opponents: Sequence[str]) -> EnvOnlySampler | None:
        """Seats for an env with these opponents; None if the mix has none of them."""
        own = {name: {OPPONENT: name} for name in opponents} if self.options is None else self.options
        met = {name: share for name, share in self.shares.items() if name in own}
        return EnvOnlySampler([own[name] for name in met], list(normalized_shares(met).values())) if met else None


class EnvOnlySampler:
    """Seats none but the env's own opponents."""

    is_recurrent = False

    def __init__(self, options: Sequence[Mapping[str, Any]], shares: Sequence[float]) -> None:
        self._options, self._shares = options, shares

    def draw(self, seed: int) -> int:
        return int(np.random.default_rng(seed).choice(len(self._options), p=self._shares))

    def options(self, opponent: int) -> dict[str, Any]:
        return copy.deepcopy(dict(self._options[opponent]))


def measure_env(
    factory: EnvFactory,
    n_envs: int,
    mix: FirstMix | None,
    recovery: RecoveryConfig,
    start_method: StartMethod,
    memory: bool = False,
) -> EnvCosts:
    """Make an env in another process and step it for a second; a vector env with ``n_envs`` of its envs.

    ``memory``: make another one there afterwards, to see how much memory it takes.
    """
    function = functools.partial(_measure, factory=factory, n_envs=n_envs, mix=mix, memory=memory)
    return call_in_child(function, f"measuring {factory.name}", recovery, start_method, worker.__name__)


def try_env(
    factory: EnvFactory,
    n_envs: int,
    seed: int,
    mix: FirstMix | None,
    recovery: RecoveryConfig,
    start_method: StartMethod,
) -> None:
    """Make envs in another process and take a few steps, so that a crash or a hang shows there."""
    if multiprocessing.current_process().daemon:  # it may not have children
        return
    function = functools.partial(_try, factory=factory, n_envs=n_envs, seed=seed, mix=mix)
    what = f"trying out {factory.name}"
    if n_envs > 1:
        what += f", {n_envs} envs in one process"
        if not factory.is_vector:
            what += " (if there can be only one: --num-workers as many as --n-envs)"
    call_in_child(function, what, recovery, start_method, worker.__name__)


def measure_vector_step(
    factory: EnvFactory, n_envs: int, pause: float, recovery: RecoveryConfig, start_method: StartMethod
) -> float:
    """Microseconds of a step of ``n_envs`` envs of a vector env, with so many microseconds of other work before each.

    The threads of such envs fall asleep between steps.
    """
    function = functools.partial(_measure_vector, factory=factory, n_envs=n_envs, pause=pause)
    return call_in_child(function, f"measuring {factory.name}", recovery, start_method, worker.__name__)


def _measure(heartbeat: Heartbeat, factory: EnvFactory, n_envs: int, mix: FirstMix | None, memory: bool) -> EnvCosts:
    with _opened(heartbeat, factory, n_envs, 0, mix) as env:
        times = _step_times(env)
        observations = {path: leaf[:1].copy() for path, leaf in env.arrays.observations.items()}
        masks = None if env.masks is None else env.masks[:1].copy()
        memory_mb = 0.0
        if memory:
            with heartbeat.making():
                memory_mb = _memory_of_another(factory, heartbeat)
        return EnvCosts(env.env_info, observations, masks, times, memory_mb)


def _try(heartbeat: Heartbeat, factory: EnvFactory, n_envs: int, seed: int, mix: FirstMix | None) -> None:
    with _opened(heartbeat, factory, n_envs, seed, mix) as env:
        _step_times(env, seconds=_TRY_SECONDS, most=_TRY_STEPS)


@contextlib.contextmanager
def _opened(
    heartbeat: Heartbeat, factory: EnvFactory, n_envs: int, seed: int, mix: FirstMix | None = None
) -> Iterator[SerialVectorEnv]:
    """Envs that were reset, with opponents of the mix."""
    with heartbeat.making():
        env = SerialVectorEnv(factory, n_envs, seed=seed, infos="summed", heal=True, heartbeat=heartbeat.cells)
    try:
        with heartbeat.making():
            env.stepper.opponent_sampler = None if mix is None else mix.opponent_sampler(env.env_info.opponents)
            env.reset_arrays()
        yield env
    finally:
        env.close()


def _memory_of_another(factory: EnvFactory, heartbeat: Heartbeat) -> float:
    """MB of one env more; the first one also loaded what all of them share. 0 if there can be only one in a process."""
    before = psutil.Process().memory_info().rss
    try:
        env = SerialVectorEnv(factory, 1, seed=1, infos="summed", heal=True, heartbeat=heartbeat.cells)
    except CorralError:
        return 0.0
    try:
        env.reset_arrays()
        return max(0.0, (psutil.Process().memory_info().rss - before) / 2**20)
    except CorralError:
        return 0.0
    finally:
        env.close()


def _measure_vector(heartbeat: Heartbeat, factory: EnvFactory, n_envs: int, pause: float) -> float:
    with _opened(heartbeat, factory, n_envs, 0) as env:
        return n_envs * statistics.fmean(_step_times(env, lambda: _work(pause)))


def _step_times(
    env: SerialVectorEnv,
    between: Callable[[], object] = lambda: None,
    seconds: float = _STEP_SECONDS,
    most: int = _STEPS,
) -> list[float]:
    """Times of one step of one env with random legal actions."""
    times: list[float] = []
    random = np.random.default_rng(0)
    end = time.perf_counter() + seconds
    while len(times) < most and (time.perf_counter() < end or len(times) < 3):
        env.codec.decode(env.codec.random(env.masks, env.num_envs, random), env.arrays.actions)
        between()
        env.send()
        started = time.perf_counter()
        env.recv()
        times.append((time.perf_counter() - started) * 1e6 / env.num_envs)
    return times[1:]  # the first has caches to fill


def _work(microseconds: float) -> None:
    """Keep the processor busy, as a policy that chooses actions does."""
    end = time.perf_counter() + microseconds / 1e6
    while time.perf_counter() < end:
        pass


def first_mix(config: TrainConfig) -> FirstMix | None:
    """The opponents of a run's first stage; None if it leaves them to the env."""
    stages = stages_of(config)
    if not stages:
        return None
    return FirstMix(mix_of(stages[0]), dict(reset_options_of(stages, ())) if stages[0].opponent is None else None)
