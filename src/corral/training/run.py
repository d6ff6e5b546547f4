"""All the parts of a training run, put together from a config, and what of them a checkpoint holds."""

from __future__ import annotations

import contextlib
import dataclasses
import faulthandler
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from corral.autotune.choose_device import device_for
from corral.config.schema import TrainConfig
from corral.core.errors import CheckpointError, UsageError, one_line
from corral.core.machine import available_cores, limit_compute_threads
from corral.core.spaces import space_to_data
from corral.core.types import Actor, ActorSpec, RolloutSource
from corral.envs.factory import EnvFactory
from corral.monitor.processes import ProcessMeter
from corral.policy.device import is_slow_in_bf16
from corral.policy.factory import build_policy, check_encoding
from corral.policy.images import is_normalizable
from corral.policy.observation_encoder import ENCODING
from corral.policy.policy import NetworkFactory, Policy
from corral.ppo.engine_torch import TorchEngine
from corral.ppo.learner import Engine, Learner
from corral.ppo.minibatch_shards import set_torch_threads, shares_of
from corral.ppo.mlp_engine import MlpEngine, numpy_shape, share_setup
from corral.ppo.normalization import ReturnScaler, RunningMoments
from corral.ppo.shares import Shares
from corral.processes.supervision import Care
from corral.rollout.actors import actor_setup
from corral.rollout.env_costs import try_env
from corral.rollout.env_positions import Positions
from corral.rollout.opponents import SharedLineup
from corral.rollout.source_local import LocalSource
from corral.rollout.source_workers import WorkerSource
from corral.rollout.state_trial import try_states
from corral.training.calibrate import Costs, measure
from corral.training.checkpoint import Checkpoint
from corral.training.choose import BackendChoice, EnvsChoice, choose_backend
from corral.training.fitting import check_envs, check_tensors
from corral.training.opponents import Opponents, first_mix, seat_opponents
from corral.training.progress import Progress
from corral.training.run_size import large_run_warning
from corral.vec import CorralVectorEnv, make_vector_env
from corral.vec.stepper_factory import stays_together

__all__ = ["Run", "assemble", "capture", "restore", "weights_hash"]


class Stateful(Protocol):
    """Something whose state belongs into checkpoints, as plain JSON data."""

    def state(self) -> dict[str, Any]:
        """What it is now."""
        ...

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        ...


@dataclass(slots=True)
class Run:
    """Everything that trains, with nothing on disk yet."""

    config: TrainConfig
    factory: EnvFactory
    care: Care
    seed: int
    backend: BackendChoice
    why_device: str
    placement: str
    """How rows lie in inference batches, so that their results do not depend on the number of workers."""
    source: RolloutSource
    actor: Actor
    learner: Learner
    eval_env: CorralVectorEnv | None
    single_env: Callable[[int | None], CorralVectorEnv]
    """Makes an env beside those of the rollouts; given the run's seed, as env 0 was made."""
    return_scaler: ReturnScaler | None
    moments: dict[str, RunningMoments]
    spaces: dict[str, Any]
    masked: bool
    env_opponents: Sequence[str]
    """Names of the env's own opponents."""
    render_modes: Sequence[str]
    progress: Progress
    opponents: Opponents | None
    """Who plays the other side, where that is for Corral to say."""
    meter: ProcessMeter
    """Processor time and memory of the trainer and its workers."""
    why_envs: str | None = None
    """Why ``auto`` chose so many envs."""
    safe: Checkpoint | None = None
    """The last whole iteration."""
    faults_told: int = 0
    replayed: bool = False
    """Whether it was tried if the env repeats itself."""
    saved_at: int | None = None
    """The step of the last checkpoint; None if the last save failed."""

    @property
    def parts(self) -> dict[str, Stateful]:
        """What has a state that is saved and restored, by name."""
        parts: dict[str, Stateful] = {f"moments/{path}": moments for path, moments in self.moments.items()}
        return parts if self.return_scaler is None else {**parts, "return_scaler": self.return_scaler}

    @property
    def own_options(self) -> list[Mapping[str, Any]]:
        """What the env is reset with to give each of its opponents, by number, if the run chooses among them."""
        return [] if self.opponents is None else [options for _, options in self.opponents.lineup.setup.own]

    def close(self) -> None:
        """Release envs and processes."""
        try:
            self.source.close()
        finally:
            if self.eval_env is not None:
                self.eval_env.close()
            if self.opponents is not None:
                self.opponents.close()


def assemble(
    config: TrainConfig,
    seed: int,
    factory: EnvFactory,
    network: NetworkFactory | None,
    note: Callable[[str], object] = lambda text: None,
    envs_choice: EnvsChoice | None = None,
    warn: Callable[[str], object] = lambda text: None,
    proven: bool = False,
) -> Run:
    """Build every part; whatever is wrong with env, policy or machine shows here, before anything is written.

    ``proven``: the env has taken steps in this run before, so that a worker that fails at start is replaced.
    """
    if config.adaptive and stays_together(factory):
        raise UsageError(f"adaptive moves envs between workers, which {factory.name} does not allow; leave it out")
    device, why_device = device_for(config.device, config.cnn, factory, network)
    limit_compute_threads()
    torch.set_num_threads(1)
    central = device.type != "cpu"

    measured = envs_choice is not None

    def costs() -> Costs:
        nonlocal measured
        measured = True
        return measure(config, factory, network, device, note, warn) if envs_choice is None else envs_choice.costs

    backend = choose_backend(config, costs, central)
    care = Care(
        heal=True,
        step_timeout=config.step_timeout,
        start_timeout=config.start_timeout,
        max_restarts=config.max_restarts,
        max_rss=config.worker_max_rss,
        warn=warn,
        proven=proven,
    )
    if backend.backend == "serial":
        if config.backend == "auto" and not proven:  # nobody asked for envs in this process
            n = _envs_to_try(config, factory, measured)
            if n:
                try_env(factory, n, seed, first_mix(config), care, config.parallel_start_method)
        _show_crashes()

    def vector_env(n: int, workers: int, root: int | None, proven: bool = proven) -> CorralVectorEnv:
        return make_vector_env(
            factory,
            n,
            backend="serial" if backend.backend == "serial" else "process",
            num_workers=workers,
            start_method=config.parallel_start_method,
            seed=root,
            infos="summed",
            care=dataclasses.replace(care, proven=proven),
        )

    def single_env(root: int | None) -> CorralVectorEnv:
        return vector_env(1, 1, root, proven=True)

    opponents: Opponents | None = None
    envs: WorkerSource | CorralVectorEnv
    if backend.backend == "worker":
        how = config.parallel_start_method, config.overlap, config.adaptive, care
        envs = WorkerSource(factory, config.n_envs, backend.num_workers, config.n_steps, seed, *how)
    else:
        envs = vector_env(config.n_envs, backend.num_workers, seed)
    try:
        facts = envs.facts
        policy = build_policy(config, facts.observation_space, facts.action_space, network, seed).to(device)
        _check_used(config, policy)
        if not measured and (advice := large_run_warning(config, facts, policy, bool(envs.has_masks))) is not None:
            warn(advice)
        if config.bf16 and is_slow_in_bf16(device):
            warn("this processor has no instructions for bfloat16, so bf16 makes the run several times slower")
        set_torch_threads(policy, config)
        setup, alone = (actor_setup(policy, network, device, n) for n in (config.n_envs, 1))
        opponents = seat_opponents(config, facts, policy, alone)
        lineup = None if opponents is None else opponents.lineup
        source, masked, engine = _connect(envs, policy, setup, config, seed, device, backend.num_workers, warn, lineup)
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
        care=care,
        seed=seed,
        backend=backend,
        why_device=why_device,
        placement=str(setup.placement),
        source=source,
        actor=alone.build(0, 1),
        learner=learner,
        eval_env=eval_env,
        single_env=single_env,
        return_scaler=ReturnScaler(config.n_envs, config.gamma) if config.normalize_reward else None,
        moments={path: RunningMoments(shapes[path]) for path in (normalizer.paths if normalizer else ())},
        spaces={
            "observation": space_to_data(facts.observation_space),
            "action": space_to_data(facts.action_space),
        },
        masked=masked,
        env_opponents=facts.opponents,
        render_modes=facts.metadata.get("render_modes") or (),
        progress=Progress(),
        opponents=opponents,
        meter=ProcessMeter(source.pids),
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
    envs: WorkerSource | CorralVectorEnv,
    policy: Policy,
    setup: ActorSpec,
    config: TrainConfig,
    seed: int,
    device: torch.device,
    workers: int,
    warn: Callable[[str], object],
    lineup: SharedLineup | None,
) -> tuple[RolloutSource, bool, Engine]:
    """Bring envs, actor and learner together: the source of rollouts, whether it has masks, and what learns from it."""
    shape = numpy_shape(policy, config, device)
    try:
        if isinstance(envs, WorkerSource):
            masked = bool(envs.has_masks)
            shares = None if shape is None else share_setup(policy, shape, config, masked)
            busy = config.overlap or shares is None  # then nobody is free to help
            helpers = 0 if busy else min(config.shares, available_cores(), workers + 1) - 1
            crew = envs.connect(setup, policy.state_dict(), shares, helpers, lineup)
            source: RolloutSource = envs
        else:
            actor = setup.build(0, config.n_envs)
            source = LocalSource(envs, actor, config.n_steps, seed, config.overlap, warn, lineup)
            masked, crew = bool(envs.has_masks), None
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


def _check_used(config: TrainConfig, policy: Policy) -> None:
    """Refuse settings that these spaces have no use for: whatever is asked is done or refused, never ignored."""
    if config.normalize_obs and not any(map(is_normalizable, policy.state_layout.leaves)):
        raise UsageError(
            "normalize_obs scales floats, and integers that are no picture, but this env shows neither; leave it out"
        )
    if policy.pictures is None and not policy.custom:
        for name, value in (("cnn", config.cnn), ("cnn_features", config.cnn_features), ("bf16", config.bf16)):
            if value not in (type(config).model_fields[name].default, "none"):
                raise UsageError(f"{name} {value} is for pictures, but none is seen here; leave it out")
    if policy.pictures is not None and config.learner == "numpy":
        raise UsageError("learner numpy is for networks that numpy runs, but this one sees pictures; leave it out")
    if policy.pictures is not None and config.compile and (config.learner_threads or 1) > 1:
        raise UsageError("compile and learner_threads: with pictures, only one of them; leave one out")
    if policy.pictures is not None and policy.log_std.device.type != "cpu" and config.learner_shares is not None:
        raise UsageError(f"learner_shares is for the CPU, but device is {policy.log_std.device}; leave it out")
    if policy.pictures is not None and 1 < (shares := shares_of(policy, config)) < (config.learner_threads or 1):
        raise UsageError(
            f"learner_threads {config.learner_threads} is more than the {shares} parts of a minibatch; give it fewer, "
            "or more parts with a larger batch_size or with learner_shares"
        )
    sequences = config.minibatch_size // (config.sequence_length or 1)
    if policy.n_state and (config.learner_shares or 1) > sequences:
        raise UsageError(
            f"learner_shares {config.learner_shares} is more than the {sequences} sequences in a minibatch; give it "
            "fewer, or a larger batch_size, or a smaller sequence_length"
        )
    if policy.pictures is None and config.learner == "torch" and config.learner_shares is not None:
        raise UsageError("learner_shares with learner torch is for pictures, but none is seen here; leave it out")
    if config.log_std_init != 0 and not any(policy.codec.gaussian):
        raise UsageError("log_std_init is for continuous actions, but this env has none; leave it out")


def capture(run: Run) -> Checkpoint:
    """A copy of everything that decides how the run goes on. Cheap enough to take in every iteration."""
    weights, optimizer = run.learner.engine.copies()
    buffers = {name: buffer.clone() for name, buffer in run.learner.policy.named_buffers()}
    behind = None
    if run.config.overlap and run.safe is not None:
        moved_on = run.progress.iteration > int(run.safe.state["iteration"])
        behind = run.safe.policy if moved_on else run.safe.behind
    return Checkpoint(
        policy={**weights, **buffers},
        optimizer=optimizer,
        state={
            **run.progress.state(),
            "seed": run.seed,
            "n_updates": run.learner.n_updates,
            "parts": {name: part.state() for name, part in run.parts.items()},
            "opponents": None if run.opponents is None else run.opponents.state(),
            "spaces": run.spaces,
            "masked": run.masked,
            "encoding": ENCODING,
        },
        envs={name: torch.from_numpy(array) for name, array in run.source.whereabouts().items()},
        behind=behind,
        opponents=None if run.opponents is None else run.opponents.tensors(),
        reference=run.learner.reference,
    )


def restore(run: Run, checkpoint: Checkpoint) -> None:
    """Continue from a checkpoint of the same config."""
    state = checkpoint.state
    policy = run.learner.policy
    if state["spaces"] != run.spaces:
        given, recorded = one_line(run.spaces), one_line(state["spaces"])
        raise CheckpointError(f"the env has spaces {given}, but the run was made with {recorded}")
    check_encoding(state, policy)
    for name in ("policy", "behind", "reference"):
        if (weights := getattr(checkpoint, name)) is not None:
            check_tensors(name, weights, policy.state_dict())
    check_envs(checkpoint.envs, run.config.n_envs, policy.layout, policy.codec, run.masked, policy.n_state)
    policy.load_state_dict(dict(checkpoint.policy))
    run.learner.engine.restore(checkpoint.optimizer)
    if checkpoint.reference is not None:
        run.learner.set_reference(checkpoint.reference)
    run.learner.n_updates = int(state["n_updates"])
    run.progress = Progress.from_state(state)
    for name, part in run.parts.items():
        part.restore(state["parts"][name])
    if run.opponents is not None:
        run.opponents.restore(state["opponents"], checkpoint.opponents or {})
    numbers = checkpoint.envs["opponent"].tolist() if "opponent" in checkpoint.envs else []
    if strangers := [n for n in numbers if n != -1 and (run.opponents is None or not run.opponents.has(n))]:
        raise CheckpointError(f"the checkpoint does not fit this run's config: there is no opponent {strangers[0]}")
    whereabouts = {name: tensor.numpy() for name, tensor in checkpoint.envs.items()}
    if run.backend.backend == "serial":
        positions = Positions(run.seed, run.config.n_envs, policy.codec)
        positions.restore(whereabouts)
        at = positions.of(range(run.config.n_envs))
        try_states(run.factory, at, run.seed, run.care, run.config.parallel_start_method)
    run.source.restore(whereabouts)
    run.safe = checkpoint


def weights_hash(weights: Mapping[str, Tensor]) -> str:
    """A fingerprint of the weights: equal hashes mean bit-identical policies."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        digest.update(name.encode())
        digest.update(weights[name].detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
