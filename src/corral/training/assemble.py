"""Builds a run from its config: envs, policy, opponents, rollout source and learner."""

from __future__ import annotations

import contextlib
import dataclasses
import faulthandler
from collections.abc import Callable
from pathlib import Path

import torch

from corral.autotune.choose_backend import EnvsChoice, choose_backend
from corral.autotune.choose_device import device_for
from corral.autotune.env_costs import first_mix, try_env
from corral.autotune.measure_costs import Costs, measure_costs
from corral.autotune.run_size import large_run_warning
from corral.config.backends import BACKENDS
from corral.config.schema import TrainConfig
from corral.core.entry_points import import_own
from corral.core.errors import UsageError
from corral.core.files import is_file
from corral.core.machine import available_cores, limit_compute_threads
from corral.core.spaces import space_to_data
from corral.core.types import ActorSpec, RolloutSource
from corral.envs.factory import EnvFactory
from corral.opponents.frozen_policy import FrozenPolicy
from corral.opponents.league import CHECKPOINT, CURRENT, Opponents
from corral.opponents.stages import mix_of, reset_options_of, stages_of
from corral.opponents.table import OpponentTableSpec, SharedOpponentTable
from corral.policy.device import is_slow_in_bf16
from corral.policy.factory import build_policy
from corral.policy.policy import NetworkFactory, Policy
from corral.ppo.engine_torch import TorchEngine
from corral.ppo.learner import Engine, Learner
from corral.ppo.minibatch_shards import set_torch_threads
from corral.ppo.mlp_engine import MlpEngine, numpy_shape, share_setup
from corral.ppo.normalization import ReturnScaler, RunningMoments
from corral.ppo.shares import Shares
from corral.processes.supervision import RecoveryConfig
from corral.reporting.process_meter import ProcessMeter
from corral.rollout.actors import actor_setup
from corral.rollout.source import RolloutEnvs, SourceSpec
from corral.rollout.source_workers import WorkerSource
from corral.training.model import load
from corral.training.progress import Progress
from corral.training.run import Run
from corral.training.space_rules import check_used_settings
from corral.vec import CorralVectorEnv, make_vector_env
from corral.vec.api import EnvInfo
from corral.vec.stepper_factory import is_inseparable

__all__ = ["assemble", "seat_opponents"]


def seat_opponents(config: TrainConfig, env_info: EnvInfo, policy: Policy, actor: ActorSpec) -> Opponents | None:
    """The opponents that a config asks for; None if it leaves them to the env."""
    stages = stages_of(config)
    if not stages:
        return None
    own = reset_options_of(stages, env_info.opponents)
    if not own:
        raise UsageError(
            f"{config.env} has no opponents to choose from; an env offers them as docs/environments.md says"
        )
    named = {name for stage in stages for name in mix_of(stage)}
    others = sorted(named - {*dict(own), CURRENT, CHECKPOINT})
    frozen_policies = tuple(_load_frozen_policy(name, env_info) for name in others)
    # One slot for each past self and the next, the policy as it is now and as it was in the rollout before, and whoever
    # an episode still plays against after leaving the pool.
    slots = config.pool_size + config.n_envs + 3 if named & {CURRENT, CHECKPOINT} else 0
    spaces = env_info.observation_space, env_info.action_space
    setup = OpponentTableSpec(own, frozen_policies, slots, actor if slots else None, *spaces)
    return Opponents(config, SharedOpponentTable(setup, {name: w.cpu() for name, w in policy.state_dict().items()}))


def _load_frozen_policy(name: str, env_info: EnvInfo) -> FrozenPolicy:
    """The policy of another run as an opponent."""
    if not is_file(Path(name) / "config.yaml"):
        raise UsageError(
            f"unknown opponent {name!r}; there are {', '.join(env_info.opponents)}, {CURRENT}, {CHECKPOINT}, "
            "a run directory, or a mix as in mixed:random=1,greedy=3"
        )
    model = load(name)
    if (model.observation_space, model.action_space) != (env_info.observation_space, env_info.action_space):
        raise UsageError(f"the policy of {name} was trained on other observations or actions than this env has")
    return model.frozen(name)


def assemble(
    config: TrainConfig,
    seed: int,
    factory: EnvFactory,
    network: NetworkFactory | None,
    note: Callable[[str], object] = lambda text: None,
    envs_choice: EnvsChoice | None = None,
    warn: Callable[[str], object] = lambda text: None,
    known_to_work: bool = False,
) -> Run:
    """Build every part; whatever is wrong with env, policy or machine shows here, before anything is written.

    ``known_to_work``: the env has taken steps in this run before, so that a worker that fails at start is replaced.
    """
    if config.adaptive and is_inseparable(factory):
        raise UsageError(f"adaptive moves envs between workers, which {factory.name} does not allow; leave it out")
    device, why_device = device_for(config.device, config.cnn, factory, network)
    limit_compute_threads()
    torch.set_num_threads(1)
    central = device.type != "cpu"

    measured = envs_choice is not None

    def costs() -> Costs:
        nonlocal measured
        measured = True
        return measure_costs(config, factory, network, device, note, warn) if envs_choice is None else envs_choice.costs

    backend = choose_backend(config, costs, central)
    recovery = RecoveryConfig(
        heal=True,
        step_timeout=config.step_timeout,
        start_timeout=config.start_timeout,
        max_restarts=config.max_restarts,
        max_rss=config.worker_max_rss,
        warn=warn,
        known_to_work=known_to_work,
    )
    if backend.backend == "serial":
        if config.backend == "auto" and not known_to_work:  # nobody asked for envs in this process
            n = _envs_to_try(config, factory, measured)
            if n:
                try_env(factory, n, seed, first_mix(config), recovery, config.parallel_start_method)
        _show_crashes()

    def single_env(root: int | None) -> CorralVectorEnv:
        return make_vector_env(
            factory,
            1,
            backend="serial" if backend.backend == "serial" else "process",
            num_workers=1,
            start_method=config.parallel_start_method,
            seed=root,
            infos="summed",
            recovery=dataclasses.replace(recovery, known_to_work=True),
        )

    opponents: Opponents | None = None
    spec = SourceSpec(
        backend.backend,
        factory,
        config.n_envs,
        backend.num_workers,
        config.n_steps,
        seed,
        config.parallel_start_method,
        config.overlap,
        config.adaptive,
        recovery,
    )
    envs: RolloutEnvs = import_own(BACKENDS[backend.backend])(spec)
    try:
        env_info = envs.env_info
        policy = build_policy(config, env_info.observation_space, env_info.action_space, network, seed).to(device)
        check_used_settings(config, policy)
        if not measured and (advice := large_run_warning(config, env_info, policy, bool(envs.has_masks))) is not None:
            warn(advice)
        if config.bf16 and is_slow_in_bf16(device):
            warn("this processor has no instructions for bfloat16, so bf16 makes the run several times slower")
        set_torch_threads(policy, config)
        setup, alone = (actor_setup(policy, network, device, n) for n in (config.n_envs, 1))
        opponents = seat_opponents(config, env_info, policy, alone)
        opponent_table = None if opponents is None else opponents.opponent_table
        source, masked, engine = _connect(envs, policy, setup, config, device, backend.num_workers, opponent_table)
        learner = Learner(policy, config, seed, device, engine)
        eval_env = single_env(None) if config.eval_freq else None
    except BaseException:
        envs.close()
        if opponents is not None:
            opponents.close()
        raise
    normalizer = policy.normalizer
    shapes = {leaf.path: leaf.shape for leaf in policy.layout.leaves}
    return Run(
        config=config,
        factory=factory,
        recovery=recovery,
        seed=seed,
        backend=backend,
        why_device=why_device,
        batch_layout=str(setup.batch_layout),
        source=source,
        actor=alone.build(0, 1),
        learner=learner,
        eval_env=eval_env,
        single_env=single_env,
        return_scaler=ReturnScaler(config.n_envs, config.gamma) if config.normalize_reward else None,
        moments={path: RunningMoments(shapes[path]) for path in (normalizer.paths if normalizer else ())},
        spaces={
            "observation": space_to_data(env_info.observation_space),
            "action": space_to_data(env_info.action_space),
        },
        masked=masked,
        env_opponents=env_info.opponents,
        render_modes=env_info.metadata.get("render_modes") or (),
        progress=Progress(),
        opponents=opponents,
        meter=ProcessMeter(source.pids),
        network=network,
        why_envs=None if envs_choice is None else envs_choice.why,
    )


def _envs_to_try(config: TrainConfig, factory: EnvFactory, measured: bool) -> int:
    """How many envs to try out before this process makes them; ``measured``: one was made, or one vector env."""
    if factory.is_vector:
        return 0 if measured else config.n_envs
    if config.n_envs > 1 or config.eval_freq:
        return 2  # a second env may end a process, too
    return 0 if measured else 1


def _show_crashes() -> None:
    """Let a crash of an env that lives in this process say where it happened: Python would end without a word."""
    if not faulthandler.is_enabled():
        with contextlib.suppress(OSError, RuntimeError, ValueError, AttributeError):  # there is no standard error
            faulthandler.enable()


def _connect(
    envs: RolloutEnvs,
    policy: Policy,
    setup: ActorSpec,
    config: TrainConfig,
    device: torch.device,
    workers: int,
    opponent_table: SharedOpponentTable | None,
) -> tuple[RolloutSource, bool, Engine]:
    """Bring envs, actor and learner together: the source of rollouts, whether it has masks, and what learns from it."""
    shape = numpy_shape(policy, config, device)
    try:
        crew = None
        if isinstance(envs, WorkerSource):
            masked = bool(envs.has_masks)
            shares = None if shape is None else share_setup(policy, shape, config, masked)
            busy = config.overlap or shares is None  # then nobody is free to help
            helpers = 0 if busy else min(config.shares, available_cores(), workers + 1) - 1
            source: RolloutSource = envs.connect(setup, policy.state_dict(), opponent_table, shares, helpers)
            crew = envs.crew
        else:
            source = envs.connect(setup, policy.state_dict(), opponent_table)
            masked = bool(envs.has_masks)
            shares = None if shape is None else share_setup(policy, shape, config, masked)
        if shares is None:
            return source, masked, TorchEngine(policy, config, device)
        if crew is None:
            return source, masked, MlpEngine(policy, config, Shares.here(shares))
        return source, masked, MlpEngine(policy, config, crew.shares, crew)
    except MemoryError as error:
        raise UsageError(
            f"a rollout of n_steps {config.n_steps} x n_envs {config.n_envs} does not fit: {error}"
        ) from None
