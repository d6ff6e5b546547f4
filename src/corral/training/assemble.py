"""Builds a run from its config: device and backend, envs, policy, opponents, rollout source, engine and learner."""

from __future__ import annotations

import contextlib
import dataclasses
import faulthandler
from dataclasses import dataclass
from pathlib import Path

import torch

from corral.autotune.choose_backend import BackendChoice, EnvsChoice, choose_backend
from corral.autotune.choose_device import device_for
from corral.autotune.env_costs import first_stage_mix, try_env
from corral.autotune.measure_costs import Costs, measure_costs
from corral.autotune.run_size import large_run_warning
from corral.config.backends import BACKENDS
from corral.config.schema import TrainConfig
from corral.core.entry_points import import_internal
from corral.core.errors import UsageError
from corral.core.files import is_file
from corral.core.machine import available_cores, limit_compute_threads
from corral.core.spaces import space_to_data
from corral.core.types import ActorSpec, RolloutSource
from corral.envs.factory import EnvFactory
from corral.opponents.frozen_policy import FrozenPolicy
from corral.opponents.league import CHECKPOINT, CURRENT, Opponents
from corral.opponents.sampling import OpponentTableSpec, SharedOpponentTable
from corral.opponents.stages import mix_of, reset_options_of, stages_of
from corral.policy.device import is_slow_in_bf16
from corral.policy.factory import build_policy
from corral.policy.policy import NetworkFactory, Policy
from corral.ppo.engine_torch import TorchEngine
from corral.ppo.learner import Engine, Learner
from corral.ppo.minibatch_shards import set_torch_threads
from corral.ppo.mlp_engine import MlpEngine, numpy_shape, share_setup
from corral.ppo.normalization import ReturnScaler, RunningMoments
from corral.ppo.shares import Shares, ShareSetup
from corral.processes.recovery_config import RecoveryConfig
from corral.reporting.console import SilentConsole
from corral.reporting.process_meter import ProcessMeter
from corral.rollout.actors import actor_spec
from corral.rollout.source import ClusterConfig, HelpingEnvs, RolloutEnvs, SourceSpec
from corral.training.model import load
from corral.training.progress import Progress
from corral.training.run import Run
from corral.training.space_rules import check_env_settings, check_used_settings
from corral.vec import CorralVectorEnv, make_vector_env
from corral.vec.api import EnvInfo

__all__ = ["assemble", "build_opponents"]


@dataclass(frozen=True, slots=True)
class _Plan:
    """The decisions that are made before the first env of the run is created."""

    config: TrainConfig
    seed: int
    factory: EnvFactory
    network: NetworkFactory | None
    device: torch.device
    device_reason: str
    backend: BackendChoice
    recovery: RecoveryConfig
    costs_measured: bool
    """Whether the costs of a step were measured, for which an env was made in another process."""
    n_envs_reason: str | None

    def start_rollout_envs(self) -> RolloutEnvs:
        """Start the envs of the rollouts, in this process or in workers."""
        config = self.config
        spec = SourceSpec(
            backend=self.backend.backend,
            factory=self.factory,
            n_envs=config.n_envs,
            num_workers=self.backend.num_workers,
            n_steps=config.n_steps,
            seed=self.seed,
            start_method=config.parallel_start_method,
            overlap=config.overlap,
            adaptive=config.adaptive,
            recovery=self.recovery,
            cluster=ClusterConfig(
                address=config.ray_address,
                working_dir=config.ray_working_dir,
                resources=config.ray_resources,
                allow_mixed_numerics=config.allow_mixed_numerics,
                node_timeout=config.node_timeout,
            ),
        )
        envs: RolloutEnvs = import_internal(BACKENDS[self.backend.backend])(spec)
        return envs

    def make_single_env(self, seed: int | None) -> CorralVectorEnv:
        """Make one env besides those of the rollouts. Given the run's seed, it is seeded as env 0 is."""
        return make_vector_env(
            self.factory,
            1,
            backend="serial" if self.backend.backend == "serial" else "process",
            num_workers=1,
            start_method=self.config.parallel_start_method,
            seed=seed,
            infos="summed",
            recovery=dataclasses.replace(self.recovery, env_known_to_work=True),
        )


@dataclass(frozen=True, slots=True)
class _Parts:
    """The parts of a run that need running envs."""

    env_info: EnvInfo
    opponents: Opponents | None
    source: RolloutSource
    num_workers: int
    has_masks: bool
    batch_layout: str
    learner: Learner
    eval_actor: ActorSpec
    eval_env: CorralVectorEnv | None


@dataclass(frozen=True, slots=True)
class _Connection:
    """A rollout source and the engine that learns from its rollouts."""

    source: RolloutSource
    has_masks: bool
    engine: Engine


def assemble(
    config: TrainConfig,
    seed: int,
    factory: EnvFactory,
    network: NetworkFactory | None,
    console: SilentConsole,
    envs_choice: EnvsChoice | None = None,
    env_known_to_work: bool = False,
) -> Run:
    """Build all parts of a run. Errors of env, policy or machine are raised here, before any file is written.

    ``envs_choice`` is how ``n_envs: auto`` was resolved. ``env_known_to_work`` says that the env has taken steps in
    this run before, so that a worker that fails at its start is replaced.
    """
    plan = _make_plan(config, seed, factory, network, console, envs_choice, env_known_to_work)
    if plan.backend.backend == "serial":
        if config.backend == "auto" and not env_known_to_work:  # the user has not chosen to have envs in this process
            _try_env_in_child(plan)
        _enable_crash_tracebacks()
    return _make_run(plan, _build_parts(plan, console))


# ---- before the first env ------------------------------------------------------------------------------------


def _make_plan(
    config: TrainConfig,
    seed: int,
    factory: EnvFactory,
    network: NetworkFactory | None,
    console: SilentConsole,
    envs_choice: EnvsChoice | None,
    env_known_to_work: bool,
) -> _Plan:
    """Choose device and backend; measure the costs of a step if the choice depends on them."""
    device, device_reason = device_for(config.device, config.cnn, factory, network)
    limit_compute_threads()
    torch.set_num_threads(1)
    measurements = [] if envs_choice is None else [envs_choice.costs]

    def costs() -> Costs:
        if not measurements:
            measurements.append(measure_costs(config, factory, network, device, console.note, console.warn))
        return measurements[0]

    backend = choose_backend(config, costs, on_accelerator=device.type != "cpu")
    recovery = RecoveryConfig(
        recover=True,
        step_timeout=config.step_timeout,
        start_timeout=config.start_timeout,
        max_restarts=config.max_restarts,
        max_rss=config.worker_max_rss,
        warn=console.warn,
        env_known_to_work=env_known_to_work,
    )
    return _Plan(
        config=config,
        seed=seed,
        factory=factory,
        network=network,
        device=device,
        device_reason=device_reason,
        backend=backend,
        recovery=recovery,
        costs_measured=bool(measurements),
        n_envs_reason=None if envs_choice is None else envs_choice.why,
    )


def _try_env_in_child(plan: _Plan) -> None:
    """Make envs in a child process and take a few steps, so that a crash or hang does not end this process."""
    config, factory = plan.config, plan.factory
    if factory.is_vector:
        n_envs = 0 if plan.costs_measured else config.n_envs
    elif config.n_envs > 1 or config.eval_freq:
        n_envs = 2  # an env may work alone and crash when a second one is made in the same process
    else:
        n_envs = 0 if plan.costs_measured else 1
    if n_envs:
        try_env(factory, n_envs, plan.seed, first_stage_mix(config), plan.recovery, config.parallel_start_method)


def _enable_crash_tracebacks() -> None:
    """Print a traceback if an env crashes this process; by default Python prints nothing."""
    if not faulthandler.is_enabled():
        with contextlib.suppress(OSError, RuntimeError, ValueError, AttributeError):  # there is no standard error
            faulthandler.enable()


# ---- with running envs ---------------------------------------------------------------------------------------


def _build_parts(plan: _Plan, console: SilentConsole) -> _Parts:
    """Start the envs and build what depends on their spaces; close everything that was started if a part fails."""
    config = plan.config
    envs = plan.start_rollout_envs()
    opponents: Opponents | None = None
    try:
        check_env_settings(config, envs.env_info, is_resumed=plan.recovery.env_known_to_work)
        policy = _build_policy(plan, envs, console)
        actor = actor_spec(policy, plan.network, plan.device, config.n_envs)
        single_actor = actor_spec(policy, plan.network, plan.device, 1)
        opponents = build_opponents(config, envs.env_info, policy, single_actor)
        connection = _connect(plan, envs, policy, actor, None if opponents is None else opponents.opponent_table)
        return _Parts(
            env_info=envs.env_info,
            opponents=opponents,
            source=connection.source,
            num_workers=envs.num_workers,
            has_masks=connection.has_masks,
            batch_layout=str(actor.batch_layout),
            learner=Learner(policy, config, plan.seed, plan.device, connection.engine),
            eval_actor=single_actor,
            eval_env=plan.make_single_env(None) if config.eval_freq else None,
        )
    except BaseException:
        envs.close()
        if opponents is not None:
            opponents.close()
        raise


def _build_policy(plan: _Plan, envs: RolloutEnvs, console: SilentConsole) -> Policy:
    """Build the policy for the spaces of the envs; check the settings that depend on them, and warn of slow ones."""
    config, env_info = plan.config, envs.env_info
    policy = build_policy(config, env_info.observation_space, env_info.action_space, plan.network, plan.seed)
    policy = policy.to(plan.device)
    check_used_settings(config, policy)
    if not plan.costs_measured:  # otherwise the measurement has given this warning
        warning = large_run_warning(config, env_info, policy, bool(envs.has_masks))
        if warning is not None:
            console.warn(warning)
    if config.bf16 and is_slow_in_bf16(plan.device):
        console.warn("this processor has no instructions for bfloat16, so bf16 makes the run several times slower")
    set_torch_threads(policy, config)
    return policy


def _connect(
    plan: _Plan,
    envs: RolloutEnvs,
    policy: Policy,
    actor: ActorSpec,
    opponent_table: SharedOpponentTable | None,
) -> _Connection:
    """Give the envs an actor, which makes them a rollout source, and make the engine that computes gradients."""
    config = plan.config
    weights = policy.state_dict()
    try:
        if isinstance(envs, HelpingEnvs):
            has_masks = bool(envs.has_masks)
            shares = _share_setup(plan, policy, has_masks)
            can_help = shares is not None and not config.overlap  # workers are idle while numpy computes the update
            n_helpers = min(config.shares - 1, available_cores() - 1, envs.max_helpers) if can_help else 0
            source: RolloutSource = envs.connect(actor, weights, opponent_table, shares, n_helpers)
            crew = envs.crew
        else:
            crew = None
            source = envs.connect(actor, weights, opponent_table)
            has_masks = bool(envs.has_masks)  # known after the first reset, which `connect` does
            shares = _share_setup(plan, policy, has_masks)
        if shares is None:
            engine: Engine = TorchEngine(policy, config, plan.device)
        elif crew is None:
            engine = MlpEngine(policy, config, Shares.here(shares))
        else:
            engine = MlpEngine(policy, config, crew.shares, crew)
    except MemoryError as error:
        raise UsageError(
            f"a rollout of n_steps {config.n_steps} x n_envs {config.n_envs} does not fit: {error}"
        ) from None
    return _Connection(source, has_masks, engine)


def _share_setup(plan: _Plan, policy: Policy, has_masks: bool) -> ShareSetup | None:
    """Return what the numpy engine needs to compute gradients; None if the torch engine computes them."""
    shape = numpy_shape(policy, plan.config, plan.device)
    return None if shape is None else share_setup(policy, shape, plan.config, has_masks)


def _make_run(plan: _Plan, parts: _Parts) -> Run:
    """Return a new run with these parts, whose counters and statistics are zero."""
    config, policy, env_info = plan.config, parts.learner.policy, parts.env_info
    shapes = {leaf.path: leaf.shape for leaf in policy.layout.leaves}
    normalized_paths = () if policy.normalizer is None else policy.normalizer.paths
    return Run(
        config=config,
        factory=plan.factory,
        recovery=plan.recovery,
        seed=plan.seed,
        backend=dataclasses.replace(plan.backend, num_workers=parts.num_workers),
        device_reason=plan.device_reason,
        batch_layout=parts.batch_layout,
        source=parts.source,
        actor=parts.eval_actor.build(0, 1),
        learner=parts.learner,
        eval_env=parts.eval_env,
        make_single_env=plan.make_single_env,
        return_scaler=ReturnScaler(config.n_envs, config.gamma) if config.normalize_reward else None,
        observation_moments={path: RunningMoments(shapes[path]) for path in normalized_paths},
        spaces={
            "observation": space_to_data(env_info.observation_space),
            "action": space_to_data(env_info.action_space),
        },
        has_masks=parts.has_masks,
        env_opponents=env_info.opponents,
        render_modes=env_info.metadata.get("render_modes") or (),
        progress=Progress(),
        opponents=parts.opponents,
        meter=ProcessMeter(parts.source.pids),
        network=plan.network,
        n_envs_reason=plan.n_envs_reason,
    )


# ---- opponents -----------------------------------------------------------------------------------------------


def build_opponents(config: TrainConfig, env_info: EnvInfo, policy: Policy, actor: ActorSpec) -> Opponents | None:
    """Return the opponents that the config asks for; None if it leaves them to the env."""
    stages = stages_of(config)
    if not stages:
        return None
    reset_options = reset_options_of(stages, env_info.opponents)
    if not reset_options:
        raise UsageError(f"{config.env} has no opponents to choose from; docs/opponents.md says how an env offers them")
    names = {name for stage in stages for name in mix_of(stage)}
    run_directories = sorted(names - {*dict(reset_options), CURRENT, CHECKPOINT})
    frozen_policies = tuple(_load_frozen_policy(name, env_info) for name in run_directories)
    # Slots for weights of this run's policy: one for each past policy in the pool and one for the next, one for the
    # current policy and one for that of the rollout before, and one for each env, whose episode may still be played
    # against a policy that has left the pool.
    slots = config.pool_size + config.n_envs + 3 if names & {CURRENT, CHECKPOINT} else 0
    spec = OpponentTableSpec(
        reset_options,
        frozen_policies,
        slots,
        actor if slots else None,
        env_info.observation_space,
        env_info.action_space,
    )
    weights = {name: weight.cpu() for name, weight in policy.state_dict().items()}
    return Opponents(config, SharedOpponentTable(spec, weights))


def _load_frozen_policy(name: str, env_info: EnvInfo) -> FrozenPolicy:
    """Return the policy of another run, whose directory is ``name``, as an opponent."""
    if not is_file(Path(name) / "config.yaml"):
        raise UsageError(
            f"unknown opponent {name!r}; there are {', '.join(env_info.opponents)}, {CURRENT}, {CHECKPOINT}, "
            "a run directory, or a mix as in mixed:random=1,greedy=3"
        )
    model = load(name)
    if (model.observation_space, model.action_space) != (env_info.observation_space, env_info.action_space):
        raise UsageError(f"the policy of {name} was trained on other observations or actions than this env has")
    return model.frozen(name)
