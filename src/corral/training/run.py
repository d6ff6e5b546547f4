"""A training run: all its parts, the steps of an iteration, and what of it a checkpoint holds."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from corral.autotune.choose_backend import BackendChoice
from corral.config.schema import TrainConfig
from corral.core.errors import CheckpointError, EnvFault, one_line
from corral.core.frame_stacks import ObservationView
from corral.core.types import Actor, Rollout, RolloutSource
from corral.envs.factory import EnvFactory
from corral.opponents.league import Opponents
from corral.policy.factory import check_encoding
from corral.policy.observation_encoder import ENCODING
from corral.policy.policy import NetworkFactory
from corral.ppo.gae import Advantages, estimate_advantages
from corral.ppo.learner import Learner, UpdateSettings
from corral.ppo.loss_terms import terms_at
from corral.ppo.normalization import ReturnScaler, RunningMoments
from corral.processes.supervision import RecoveryConfig
from corral.reporting.process_meter import ProcessMeter
from corral.reporting.reporter import Reporter
from corral.rollout.env_positions import EnvPositions
from corral.rollout.state_trial import try_states
from corral.storage.checkpoint import Checkpoint, prune, save_checkpoint
from corral.storage.fault_files import MOST_FAULTS, keep_fault
from corral.storage.run_dir import RunDirectory
from corral.training.checkpoint_checks import check_envs, check_tensors
from corral.training.progress import Progress, Stopwatch, ended_by, learning_rate
from corral.vec import CorralVectorEnv

__all__ = ["Counters", "Run", "capture", "restore", "weights_hash"]

HOOKS, OVERRIDES = "hooks", "overrides"
"""Names in ``state.json``."""


class Counters(NamedTuple):
    """How far a run is."""

    timesteps: int
    episodes: int
    seconds: float
    n_updates: int
    recent_rewards: tuple[float, ...]
    """Of the last episodes."""


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
    recovery: RecoveryConfig
    seed: int
    backend: BackendChoice
    why_device: str
    batch_layout: str
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
    network: NetworkFactory | None = None
    """What makes the network, if it is not the built-in one."""
    why_envs: str | None = None
    """Why ``auto`` chose so many envs."""
    overrides: dict[str, float] = field(default_factory=dict)
    """Settings that a hook changed (see ``check_adjustable``)."""
    recovery_point: Checkpoint | None = None
    """The last whole iteration: what is saved if the next one is not completed."""
    last_saved_step: int | None = None
    """The step of the last checkpoint; None if the last save failed."""
    faults_told: int = 0
    replayed: bool = False
    """Whether it was tried if the env repeats itself."""
    directory: RunDirectory = field(init=False)
    reporter: Reporter = field(init=False)
    watch: Stopwatch = field(init=False)

    @property
    def parts(self) -> dict[str, Stateful]:
        """What has a state that is saved and restored, by name."""
        parts: dict[str, Stateful] = {f"moments/{path}": moments for path, moments in self.moments.items()}
        return parts if self.return_scaler is None else {**parts, "return_scaler": self.return_scaler}

    @property
    def opponent_reset_options(self) -> list[Mapping[str, Any]]:
        """What the env is reset with to give each of its opponents, by number, if the run chooses among them."""
        return [] if self.opponents is None else [options for _, options in self.opponents.opponent_table.setup.own]

    def open(self, directory: RunDirectory, reporter: Reporter) -> None:
        """Take the places that the run writes to."""
        self.directory, self.reporter = directory, reporter

    # ---- an iteration, step by step --------------------------------------------------------------------------

    def publish_weights(self) -> None:
        """Let the next rollouts be collected with the weights as they are."""
        self.source.publish(self.learner.policy.state_dict(), self.progress.iteration)

    def estimate_targets(self, rollout: Rollout) -> Advantages:
        """Return advantages and returns [T, N], of rewards as they are learned from."""
        rewards = rollout.rewards.astype(np.float32)
        if self.config.clip_reward:
            rewards = np.sign(rewards)
        terminated = rollout.terminated | rollout.life_lost
        if self.return_scaler is not None:
            rewards = self.return_scaler.scale(rewards, terminated | rollout.truncated)
        return estimate_advantages(
            rewards,
            rollout.values,
            terminated,
            rollout.truncated,
            rollout.final_values,
            rollout.last_values,
            self.config.gamma,
            self.config.gae_lambda,
        )

    def update_settings(self) -> UpdateSettings:
        """Return what the next update learns with: the rate at the rollout's end, the loss as at its beginning."""
        config, steps = self.config, self.progress.timesteps
        rate = self.overrides.get("learning_rate", learning_rate(config, steps + config.rollout_size))
        clip_range, ent_coef = (self.overrides.get(name) for name in ("clip_range", "ent_coef"))
        terms = dataclasses.replace(terms_at(config, steps), clip_range=clip_range, ent_coef=ent_coef)
        return UpdateSettings(self.progress.iteration, rate, terms)

    def counters(self) -> Counters:
        """Return how far the run is."""
        progress = self.progress
        rewards = tuple(reward for reward, _ in progress.recent)
        return Counters(progress.timesteps, progress.episodes, progress.seconds, self.learner.n_updates, rewards)

    def commit(self, rollout: Rollout) -> None:
        """Count a rollout that was learned from; from here on the run goes on from its end."""
        self._merge_observations(rollout)
        self.progress.advance(rollout, self.watch.end_update())
        self.publish_weights()
        self.take_recovery_point()

    def _merge_observations(self, rollout: Rollout) -> None:
        """Let the observation statistics catch up; until here they were those the rollout was collected with."""
        normalizer = self.learner.policy.normalizer
        if normalizer is None:
            return
        t, n = rollout.n_steps, rollout.n_envs
        seen = ObservationView(rollout, self.moments)[np.arange(t * n).reshape(t, n).T.reshape(-1)]  # env by env
        for path, moments in self.moments.items():
            moments.merge(seen[path])
            normalizer.set(path, moments.mean, moments.deviation)

    def budget_reached(self) -> str | None:
        """Return what the run has come to the end of, if anything."""
        stages = "stages" if self.opponents is not None and self.opponents.finished else None
        return ended_by(self.config, self.progress) or stages

    def log_faults(self, faults: Sequence[EnvFault]) -> None:
        """Warn of what envs raised and keep each fault in a file; after a few, they are only counted."""
        for fault in faults:
            self.faults_told += 1
            if self.faults_told <= MOST_FAULTS:
                again = keep_fault(self.directory, self.config, fault, self.opponent_reset_options)
                more = "" if again is None else f" To see it again: {again}"
                self.reporter.console.warn(f"{fault.summary} ({fault.location}); the run goes on.{more}")

    # ---- what is saved ---------------------------------------------------------------------------------------

    def discard_rollout(self) -> None:
        """Count the time of a rollout that is not used; the run's end is saved with it."""
        self.progress.discarded_seconds += self.watch.since_update()
        self.take_recovery_point()
        self.last_saved_step = None

    def take_recovery_point(self) -> None:
        """Copy everything that decides how the run goes on."""
        self.recovery_point = capture(self)

    def refresh_recovery_point(self, hook: str, state: Mapping[str, Any]) -> None:
        """Note the counters as they are, and the state of a hook; no tensor is copied."""
        assert self.recovery_point is not None
        saved = self.recovery_point.state
        if state == saved.get(HOOKS, {}).get(hook, {}) and self.overrides == saved.get(OVERRIDES, {}):
            return
        hooks = {**saved.get(HOOKS, {}), **({hook: dict(state)} if state or hook in saved.get(HOOKS, {}) else {})}
        rest = {name: value for name, value in saved.items() if name not in (HOOKS, OVERRIDES)}
        changed = {**rest, **self.progress.state(), **_adjusted(hooks, self.overrides)}
        self.recovery_point = dataclasses.replace(self.recovery_point, state=changed)

    def save_recovery_point(self, again: bool = False) -> None:
        """Save the last whole iteration, unless it is on disk already. A save that fails does not end the run."""
        assert self.recovery_point is not None
        console, steps = self.reporter.console, self.recovery_point.timesteps
        if steps == self.last_saved_step and not again:
            return
        try:
            save_checkpoint(self.directory.checkpoints, self.recovery_point)
        except CheckpointError as error:
            console.warn(f"checkpoint {error}; the previous checkpoint is untouched")
            self.last_saved_step = None
            return
        console.note(f"checkpoint at {steps:,} steps")
        prune(self.directory.checkpoints, self.config.keep_checkpoints)
        self.last_saved_step = steps

    def save_best(self) -> None:
        """Keep the policy as the best so far."""
        assert self.recovery_point is not None
        try:
            save_checkpoint(self.directory.best, self.recovery_point)
            prune(self.directory.best, keep=1)
        except CheckpointError as error:
            self.reporter.console.warn(f"best policy {error}")

    def close(self) -> None:
        """Release envs and processes."""
        try:
            self.source.close()
        finally:
            if self.eval_env is not None:
                self.eval_env.close()
            if self.opponents is not None:
                self.opponents.close()


def capture(run: Run) -> Checkpoint:
    """A copy of everything that decides how the run goes on. Cheap enough to take in every iteration."""
    weights, optimizer = run.learner.engine.copies()
    buffers = {name: buffer.clone() for name, buffer in run.learner.policy.named_buffers()}
    lagged_weights = None
    earlier, hooks, overrides = run.recovery_point, {}, run.overrides
    if earlier is not None:  # a hook under way may have changed them already
        hooks, overrides = earlier.state.get(HOOKS, {}), earlier.state.get(OVERRIDES, {})
    if run.config.overlap and earlier is not None:
        moved_on = run.progress.iteration > int(earlier.state["iteration"])
        lagged_weights = earlier.policy if moved_on else earlier.lagged_weights
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
            **_adjusted(hooks, overrides),
        },
        envs=_tensors(run.source.env_positions()),
        lagged_weights=lagged_weights,
        opponents=None if run.opponents is None else _tensors(run.opponents.weights()),
        reference=run.learner.reference,
    )


def _adjusted(hooks: Mapping[str, Any], overrides: Mapping[str, float]) -> dict[str, Any]:
    """Return what only runs with hooks have in ``state.json``."""
    return {name: dict(data) for name, data in ((HOOKS, hooks), (OVERRIDES, overrides)) if data}


def _tensors(arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, Tensor]:
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def restore(run: Run, checkpoint: Checkpoint) -> None:
    """Continue from a checkpoint of the same config."""
    state = checkpoint.state
    policy = run.learner.policy
    if state["spaces"] != run.spaces:
        given, recorded = one_line(run.spaces), one_line(state["spaces"])
        raise CheckpointError(f"the env has spaces {given}, but the run was made with {recorded}")
    check_encoding(state, policy)
    for name in ("policy", "lagged_weights", "reference"):
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
        weights = {name: tensor.numpy() for name, tensor in (checkpoint.opponents or {}).items()}
        run.opponents.restore(state["opponents"], weights)
    numbers = checkpoint.envs["opponent"].tolist() if "opponent" in checkpoint.envs else []
    if strangers := [n for n in numbers if n != -1 and (run.opponents is None or not run.opponents.has(n))]:
        raise CheckpointError(f"the checkpoint does not fit this run's config: there is no opponent {strangers[0]}")
    env_positions = {name: tensor.numpy() for name, tensor in checkpoint.envs.items()}
    if run.backend.backend == "serial":
        positions = EnvPositions(run.seed, run.config.n_envs, policy.codec)
        positions.restore(env_positions)
        at = positions.positions_of(range(run.config.n_envs))
        try_states(run.factory, at, run.seed, run.recovery, run.config.parallel_start_method)
    run.source.restore(env_positions)
    run.overrides = {name: float(value) for name, value in state.get(OVERRIDES, {}).items()}
    run.recovery_point = checkpoint


def weights_hash(weights: Mapping[str, Tensor]) -> str:
    """A fingerprint of the weights: equal hashes mean bit-identical policies."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        digest.update(name.encode())
        digest.update(weights[name].detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
