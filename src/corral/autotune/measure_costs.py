"""Measures what a step, an action and a gradient step cost on this machine, with the run's env, policy and learner.

Each cost is a small linear model. ``measure_costs`` takes the times, and the ``_fit_`` functions turn them into
parameters of the model. ``choose_backend`` predicts the speed of a run from them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from corral.autotune.env_costs import EnvCosts, first_stage_mix, measure_env, measure_vector_step
from corral.autotune.run_size import large_run_warning
from corral.config.schema import TrainConfig
from corral.core.actions import ActionCodec
from corral.core.machine import available_cores
from corral.core.spaces import Layout
from corral.core.types import ActorSpec, Rollout
from corral.envs.factory import EnvFactory
from corral.policy.factory import build_policy
from corral.policy.policy import NetworkFactory, Policy
from corral.ppo.engine_torch import TorchEngine
from corral.ppo.learner import Engine
from corral.ppo.minibatch_shards import MIN_SHARD_ROWS, ShardThreads, set_torch_threads, shard_count
from corral.ppo.mlp_engine import MlpEngine, numpy_shape, share_setup
from corral.ppo.shares import Shares
from corral.processes.recovery_config import RecoveryConfig, ignore_warning
from corral.rollout.actors import actor_spec
from corral.rollout.buffers import column_specs

__all__ = ["Costs", "measure_costs"]

_REPEATS = 7
_SLOW_CALL = 1e6  # microseconds; a slower call is measured once
_MAX_GRADIENT_ROWS = 4096  # of the minibatch whose gradient is measured
_MAX_GRADIENT_BYTES = 2**24  # of its observations and action parameters, unless that is less than 64 rows


@dataclass(frozen=True, slots=True)
class Costs:
    """What a run's env, policy and learner cost: times in microseconds, memory in MB."""

    step: float
    """Mean time of a step of one env, resets included. In a vector env: what each env adds to ``vector_overhead``."""
    step_deviation: float
    """Standard deviation of the time of a step of one env."""
    act: float
    """Time to choose actions for one tile of envs."""
    act_per_env: float
    """Time that each env of further tiles adds to ``act``."""
    gradient_per_row: float
    """Time of a gradient step in this process alone, divided by the rows of its minibatch."""
    memory_mb: float
    """Memory of one env; 0 if it was not measured."""
    workers_compute_gradients: bool = True
    """Whether worker processes can compute shards of a gradient: those of the built-in MLP in numpy."""
    gradient_threads: int = 1
    """Threads with which ``gradient_per_row`` was measured."""
    vector_overhead: float = 0.0
    """Time of a step of a vector env that does not depend on its number of envs; 0 for other envs."""
    thread_speedup: float = 1.0
    """How many times faster a vector env steps with a thread on every core than with one thread."""
    tile: int = 1
    """Rows of a tile. Batches are padded to whole tiles, so acting for one env takes as long as for a tile of envs.

    See ``rollout.batch_layout``.
    """

    def step_time(self, n_envs: int, n_processes: int, cores: int) -> float:
        """Return the time of a step of ``n_envs`` envs in one of ``n_processes`` processes that share the cores."""
        threads = max(1, cores // n_processes)
        speedup = 1 + (self.thread_speedup - 1) * (threads - 1) / max(1, cores - 1)
        return self.vector_overhead + n_envs * self.step / speedup

    def act_time(self, n_envs: int) -> float:
        """Return the time to choose actions for ``n_envs`` envs."""
        n_tiles = -(-n_envs // self.tile)
        return self.act + self.act_per_env * self.tile * (n_tiles - 1)


def measure_costs(
    config: TrainConfig,
    factory: EnvFactory,
    network: NetworkFactory | None,
    device: torch.device,
    note: Callable[[str], object],
    warn: Callable[[str], object] = ignore_warning,
    memory: bool = False,
) -> Costs:
    """Step, act and learn for a short time with the run's env and network and with throw-away weights.

    ``memory``: also measure how much memory an env takes.
    """
    note(f"measuring a step of {factory.name}, the policy and the learner ...")
    n_envs, start_method, recovery = config.n_envs, config.parallel_start_method, _recovery_config(config, warn)
    single_threaded = factory.for_processes(available_cores())  # a vector env then has one thread in each process
    env = measure_env(
        single_threaded, n_envs if factory.is_vector else 1, first_stage_mix(config), recovery, start_method, memory
    )
    env_info = env.env_info
    policy = build_policy(config, env_info.observation_space, env_info.action_space, network).to(device).eval()
    if (advice := large_run_warning(config, env_info, policy, env.masks is not None)) is not None:
        warn(advice)
    set_torch_threads(policy, config)
    actor = actor_spec(policy, network, device, n_envs)

    def measure_act(n: int) -> float:
        return _median_time(_prepare_act(env, actor, policy, n))

    step = _StepCosts(step=statistics.fmean(env.step_times))
    if factory.is_vector and n_envs > 1:
        step = _fit_vector_step(
            n_envs,
            one_env=measure_vector_step(single_threaded, 1, 0.0, recovery, start_method),
            all_envs=n_envs * step.step,
            # Threads of a vector env sleep between steps, so a step follows a pause as long as acting takes.
            all_envs_threaded=measure_vector_step(factory, n_envs, measure_act(n_envs), recovery, start_method),
        )
    tile = actor.batch_layout.tile
    many_envs = tile * max(2, -(-n_envs // tile))  # whole tiles, at least two
    act, act_many = measure_act(tile), measure_act(many_envs)
    return Costs(
        step=step.step,
        step_deviation=statistics.pstdev(env.step_times),
        act=act,
        act_per_env=max(0.0, (act_many - act) / (many_envs - tile)),
        gradient_per_row=_measure_gradient(config, policy, env, device),
        memory_mb=env.memory_mb,
        workers_compute_gradients=numpy_shape(policy, config, device) is not None,
        gradient_threads=ShardThreads(shard_count(policy, config), config.learner_threads).n_threads,
        vector_overhead=step.vector_overhead,
        thread_speedup=step.thread_speedup,
        tile=tile,
    )


def _recovery_config(config: TrainConfig, warn: Callable[[str], object]) -> RecoveryConfig:
    """Return the run's time-outs and restarts, for the process in which an env is measured."""
    return RecoveryConfig(
        recover=True,
        step_timeout=config.step_timeout,
        start_timeout=config.start_timeout,
        max_restarts=config.max_restarts,
        warn=warn,
    )


class _StepCosts(NamedTuple):
    """The parameters of ``Costs`` for the time of a step."""

    step: float
    vector_overhead: float = 0.0
    thread_speedup: float = 1.0


def _fit_vector_step(n_envs: int, one_env: float, all_envs: float, all_envs_threaded: float) -> _StepCosts:
    """Fit ``vector_overhead + n * step / thread_speedup`` to three measured times of a vector env's step.

    The times are those of one env and of ``n_envs`` envs with one thread, and of ``n_envs`` with a thread on each core.
    """
    step = max(0.0, all_envs - one_env) / (n_envs - 1)
    overhead = max(0.0, all_envs - n_envs * step)
    speedup = max(1.0, (all_envs - overhead) / max(1.0, all_envs_threaded - overhead))
    return _StepCosts(step, overhead, speedup)


def _prepare_act(env: EnvCosts, spec: ActorSpec, policy: Policy, n_envs: int) -> Callable[[], object]:
    """Return a function that chooses actions for ``n_envs`` envs, which all show the measured observation."""
    actor = spec.build(0, n_envs)
    actor.load(policy.state_dict())
    rows = np.zeros(n_envs, np.int64)
    observations = {path: leaf[rows] for path, leaf in env.observations.items()}
    masks = None if env.masks is None else env.masks[rows]
    noise = np.full((n_envs, ActionCodec(env.env_info.action_space).n_actions), 0.5, np.float32)
    states = np.zeros((n_envs, actor.n_state), np.float32) if actor.n_state else None
    return lambda: actor.act(observations, masks, noise, states)


def _measure_gradient(config: TrainConfig, policy: Policy, env: EnvCosts, device: torch.device) -> float:
    """Return the time of a gradient step, divided by its rows.

    The minibatch has as many rows as the run's, or fewer if those are very many. Its content does not matter for the
    time: every row is the measured observation, with an advantage of 0.
    """
    codec = ActionCodec(env.env_info.action_space)
    rows = _count_gradient_rows(config, codec, env)
    rollout = _constant_rollout(rows, policy, codec, env)
    engine = _build_engine(_single_minibatch(config, policy, rows), policy, device, env.masks is not None)
    zeros = np.zeros((rows, 1), np.float32)
    engine.load(rollout, zeros, zeros.T.copy(), np.arange(rows)[None])

    def gradient_step() -> None:
        engine.compute_gradient(0)
        engine.apply(0.0)
        engine.kl()  # waits for the device

    duration = _median_time(gradient_step)
    engine.finish(_REPEATS, _REPEATS)
    return duration / rows


def _count_gradient_rows(config: TrainConfig, codec: ActionCodec, env: EnvCosts) -> int:
    """Return the rows of the minibatch whose gradient is measured: whole sequences that fit into the limits."""
    row_bytes = sum(int(leaf[0].nbytes) for leaf in env.observations.values()) + 4 * codec.n_params
    rows = min(config.minibatch_size, _MAX_GRADIENT_ROWS, max(64, _MAX_GRADIENT_BYTES // max(row_bytes, 1)))
    length = config.sequence_length or 1
    return max(1, rows // length) * length


def _single_minibatch(config: TrainConfig, policy: Policy, rows: int) -> TrainConfig:
    """Return the config of a rollout that is one minibatch of ``rows`` rows, with shards as in the run.

    Where the minibatch of images is smaller than the run's, it has fewer shards, so that these are not smaller than
    usual.
    """
    if policy.pictures is None:
        shards = min(config.shares, rows)
    else:
        sequences = rows // (config.sequence_length or 1)
        shards = min(shard_count(policy, config), max(1, min(rows // MIN_SHARD_ROWS, sequences)))
    update = {"n_steps": rows, "n_envs": 1, "n_epochs": 1, "batch_size": rows, "learner_shares": shards}
    return config.model_copy(update=update)


def _build_engine(config: TrainConfig, policy: Policy, device: torch.device, has_masks: bool) -> Engine:
    """Return the engine that the run will use, without workers that help and without compilation."""
    shape = numpy_shape(policy, config, device)
    if shape is None:
        return TorchEngine(policy, config.model_copy(update={"compile": False}), device)
    return MlpEngine(policy, config, Shares.here(share_setup(policy, shape, config, has_masks)))


def _constant_rollout(n_steps: int, policy: Policy, codec: ActionCodec, env: EnvCosts) -> Rollout:
    """Return a rollout of one env that shows the measured observation at every step."""
    layout = Layout(env.env_info.observation_space)
    columns = column_specs(layout, codec, n_steps, 1, env.masks is not None, stacks={}, n_state=policy.n_state)
    rollout = Rollout.from_arrays({name: np.zeros(shape, dtype) for name, (shape, dtype) in columns.items()})
    for path, leaf in env.observations.items():
        rollout.observations[path][...] = leaf[0]
    rollout.actions[...] = codec.random(env.masks, 1, np.random.default_rng(0))
    if rollout.masks is not None:
        rollout.masks[...] = env.masks
    return rollout


def _median_time(call: Callable[[], object]) -> float:
    """Return the median time of several calls after a first one, in microseconds; or of one, if it takes long."""
    if (first := _time_of(call)) > _SLOW_CALL:
        return first
    return statistics.median(_time_of(call) for _ in range(_REPEATS))


def _time_of(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return (time.perf_counter() - started) * 1e6
