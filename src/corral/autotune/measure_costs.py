"""A short look at this run's own env, policy and learner on this machine: what a step, an action and an update cost."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from corral.autotune.env_costs import EnvCosts, first_mix, measure_env, measure_vector_step
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
from corral.ppo.gae import Advantages
from corral.ppo.learner import Engine
from corral.ppo.minibatch_shards import MIN_SHARD_ROWS, ShardThreads, set_torch_threads, shares_of
from corral.ppo.mlp_engine import MlpEngine, numpy_shape, share_setup
from corral.ppo.shares import Shares
from corral.processes.supervision import RecoveryConfig, ignore_warning
from corral.rollout.actors import actor_setup
from corral.rollout.buffers import named_columns

__all__ = ["Costs", "measure_costs"]

_REPEATS = 7
_LONG = 1e6  # microseconds; what takes longer is measured once
_ROWS, _BYTES = 4096, 2**24  # of a gradient step that is measured


@dataclass(frozen=True, slots=True)
class Costs:
    """Microseconds, and MB."""

    step: float
    """Mean time of a step of one env, resets included."""
    step_deviation: float
    act: float
    """Choosing actions for one tile of envs."""
    act_per_env: float
    """And what each env of further tiles adds to it."""
    gradient_per_row: float
    """A gradient step, alone, by the rows of its minibatch."""
    memory_mb: float
    """Of one env; 0 if it was not asked for."""
    helped: bool = True
    """Whether workers could help with gradients."""
    gradient_threads: int = 1
    """That a gradient step was measured with."""
    call: float = 0.0
    """Of a vector env: what a step costs for however many envs. ``step`` is then what each adds to it."""
    gain: float = 1.0
    """How much faster such envs step with a thread on every core than with one."""
    tile: int = 1
    """Envs whose actions take no longer to choose than that of one (see ``rollout.batch_layout``)."""

    def stepping(self, n: int, processes: int, cores: int) -> float:
        """A step of ``n`` envs in one of so many processes."""
        threads = max(1, cores // processes)
        gain = 1 + (self.gain - 1) * (threads - 1) / max(1, cores - 1)
        return self.call + n * self.step / gain

    def acting(self, n: int) -> float:
        """An action for ``n`` envs."""
        return self.act + self.act_per_env * self.tile * (-(-n // self.tile) - 1)


def measure_costs(
    config: TrainConfig,
    factory: EnvFactory,
    network: NetworkFactory | None,
    device: torch.device,
    note: Callable[[str], object],
    warn: Callable[[str], object] = ignore_warning,
    memory: bool = False,
) -> Costs:
    """Step, act and learn a little, with the real parts and throw-away weights; ``memory``: measure that of an env."""
    note(f"measuring a step of {factory.name}, the policy and the learner ...")
    recovery = RecoveryConfig(
        heal=True,
        step_timeout=config.step_timeout,
        start_timeout=config.start_timeout,
        max_restarts=config.max_restarts,
        warn=warn,
    )
    alone, start, n = factory.for_processes(available_cores()), config.parallel_start_method, config.n_envs
    env = measure_env(alone, n if factory.is_vector else 1, first_mix(config), recovery, start, memory)
    env_info = env.env_info
    policy = build_policy(config, env_info.observation_space, env_info.action_space, network).to(device).eval()
    if (advice := large_run_warning(config, env_info, policy, env.masks is not None)) is not None:
        warn(advice)
    set_torch_threads(policy, config)
    setup = actor_setup(policy, network, device, n)
    step, call, gain = statistics.fmean(env.step_times), 0.0, 1.0
    if factory.is_vector and n > 1:
        one = measure_vector_step(alone, 1, 0.0, recovery, start)
        all_ = measure_vector_step(factory, n, _median(_actions(env, setup, policy, n)), recovery, start)
        whole, step = n * step, max(0.0, n * step - one) / (n - 1)
        call = max(0.0, whole - n * step)
        gain = max(1.0, (whole - call) / max(1.0, all_ - call))
    few = setup.batch_layout.tile
    many = few * max(2, -(-n // few))
    acting = [_median(_actions(env, setup, policy, some)) for some in (few, many)]
    return Costs(
        step=step,
        step_deviation=statistics.pstdev(env.step_times),
        act=acting[0],
        act_per_env=max(0.0, (acting[1] - acting[0]) / (many - few)),
        gradient_per_row=_gradient_time(config, policy, env, device),
        memory_mb=env.memory_mb,
        helped=numpy_shape(policy, config, device) is not None,
        gradient_threads=ShardThreads(shares_of(policy, config), config.learner_threads).n_threads,
        call=call,
        gain=gain,
        tile=few,
    )


def _actions(env: EnvCosts, setup: ActorSpec, policy: Policy, n: int) -> Callable[[], object]:
    """Chooses actions for ``n`` envs."""
    actor = setup.build(0, n)
    actor.load(policy.state_dict())
    rows = np.zeros(n, np.int64)
    observations = {path: leaf[rows] for path, leaf in env.observations.items()}
    masks = None if env.masks is None else env.masks[rows]
    noise = np.full((n, ActionCodec(env.env_info.action_space).n_actions), 0.5, np.float32)
    states = np.zeros((n, actor.n_state), np.float32) if actor.n_state else None
    return lambda: actor.act(observations, masks, noise, states)


def _gradient_time(config: TrainConfig, policy: Policy, env: EnvCosts, device: torch.device) -> float:
    """A gradient step on a rollout that says nothing, by row; on fewer rows than a run's, if those are many."""
    layout, codec = Layout(env.env_info.observation_space), ActionCodec(env.env_info.action_space)
    row_bytes = sum(int(leaf[0].nbytes) for leaf in env.observations.values()) + 4 * codec.n_params
    rows = min(config.minibatch_size, _ROWS, max(64, _BYTES // max(row_bytes, 1)))
    rows = max(1, rows // (length := config.sequence_length or 1)) * length
    size = {"n_steps": rows, "n_envs": 1, "n_epochs": 1, "batch_size": rows}
    most = max(1, min(rows // MIN_SHARD_ROWS, rows // length))
    shares = config.shares if policy.pictures is None else min(shares_of(policy, config), most)
    small = config.model_copy(update={**size, "learner_shares": min(shares, rows)})
    masked = env.masks is not None
    shape = numpy_shape(policy, config, device)
    engine: Engine
    if shape is None:
        engine = TorchEngine(policy, small.model_copy(update={"compile": False}), device)
    else:
        engine = MlpEngine(policy, small, Shares.here(share_setup(policy, shape, small, masked)))
    named = named_columns(layout, codec, rows, 1, masked, stacks={}, n_state=policy.n_state)
    rollout = Rollout.from_arrays({name: np.zeros(shape, dtype) for name, (shape, dtype) in named.items()})
    for path, leaf in env.observations.items():
        rollout.observations[path][...] = leaf[0]
    rollout.actions[...] = codec.random(env.masks, 1, np.random.default_rng(0))
    if rollout.masks is not None:
        rollout.masks[...] = env.masks
    zeros = np.zeros((rows, 1), np.float32)
    engine.load(rollout, Advantages(zeros, zeros), zeros.T.copy(), np.arange(rows)[None])

    def step() -> None:
        engine.gradient(0)
        engine.apply(0.0)
        engine.kl()

    found = _median(step)
    engine.finish(_REPEATS, _REPEATS)
    return found / rows


def _median(action: Callable[[], object]) -> float:
    if (first := _microseconds(action)) > _LONG:
        return first
    return statistics.median(_microseconds(action) for _ in range(_REPEATS))


def _microseconds(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return (time.perf_counter() - started) * 1e6
