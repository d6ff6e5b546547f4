"""A training run: its parts, the phases of an iteration, and how its state is captured in a checkpoint and restored."""

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
from corral.ppo.loss_terms import loss_terms_at
from corral.ppo.normalization import ReturnScaler, RunningMoments
from corral.processes.recovery_config import RecoveryConfig
from corral.reporting.process_meter import ProcessMeter
from corral.reporting.reporter import Reporter
from corral.rollout.env_positions import EnvPositions
from corral.rollout.state_trial import check_states_in_child
from corral.storage.checkpoint import Checkpoint, prune, save_checkpoint
from corral.storage.fault_files import MAX_FAULT_FILES, write_fault
from corral.storage.run_dir import RunDirectory
from corral.training.progress import Progress, Stopwatch, exhausted_budget, learning_rate
from corral.training.untrusted_checkpoint import check_envs, check_tensors
from corral.vec import CorralVectorEnv

__all__ = ["Counters", "Run", "capture", "restore", "weights_hash"]

HOOKS, OVERRIDES = "hooks", "overrides"
"""Keys in ``state.json``: the states of the user's hooks by name, and the settings that hooks changed."""


class Counters(NamedTuple):
    """The counters of a run at one moment."""

    timesteps: int
    episodes: int
    seconds: float
    n_gradient_steps: int
    recent_rewards: tuple[float, ...]
    """Rewards of the last episodes."""


class Stateful(Protocol):
    """An object whose state is saved in checkpoints as plain JSON data."""

    def state(self) -> dict[str, Any]:
        """Return the state."""
        ...

    def restore(self, state: Mapping[str, Any]) -> None:
        """Replace the state by one that ``state`` returned."""
        ...


@dataclass(slots=True)
class Run:
    """All parts of a training run. Its directory and reporter are set when its files are created."""

    config: TrainConfig
    factory: EnvFactory
    recovery: RecoveryConfig
    seed: int
    backend: BackendChoice
    device_reason: str
    """Why the policy is on this device; ``config.yaml`` says it as a comment."""
    batch_layout: str
    """How rows lie in inference batches, so that their results do not depend on the number of workers."""
    source: RolloutSource
    actor: Actor
    """Chooses the actions in evaluations."""
    learner: Learner
    eval_env: CorralVectorEnv | None
    make_single_env: Callable[[int | None], CorralVectorEnv]
    """Makes one env besides those of the rollouts. Given the run's seed, it is seeded as env 0 is."""
    return_scaler: ReturnScaler | None
    observation_moments: dict[str, RunningMoments]
    """Running mean and deviation of observations, by the leaf's path; empty without ``normalize_obs``."""
    spaces: dict[str, Any]
    has_masks: bool
    env_opponents: Sequence[str]
    """Names of the opponents that the env itself offers."""
    render_modes: Sequence[str]
    progress: Progress
    opponents: Opponents | None
    """Chooses the opponent of each episode; None if the config leaves that to the env."""
    meter: ProcessMeter
    """CPU time and memory of the trainer and its workers."""
    network: NetworkFactory | None = None
    """Makes the user's network; None for the built-in ones."""
    n_envs_reason: str | None = None
    """Why ``n_envs: auto`` became this number; None if the user gave a number."""
    overrides: dict[str, float] = field(default_factory=dict)
    """Settings that a hook changed (see ``check_adjustable``)."""
    recovery_point: Checkpoint | None = None
    """The state after the last completed iteration, in memory. It is saved if the next iteration is not completed."""
    last_saved_step: int | None = None
    """The step of the last checkpoint on disk; None if there is none or the last save failed."""
    n_faults_logged: int = 0
    replay_checked: bool = False
    """Whether ``check_replay`` has examined the env in this run."""
    directory: RunDirectory = field(init=False)
    reporter: Reporter = field(init=False)
    stopwatch: Stopwatch = field(init=False)

    @property
    def running_statistics(self) -> dict[str, Stateful]:
        """The statistics that normalize observations and rewards, by their name in ``state.json``."""
        moments: dict[str, Stateful] = {f"moments/{path}": m for path, m in self.observation_moments.items()}
        return moments if self.return_scaler is None else {**moments, "return_scaler": self.return_scaler}

    @property
    def opponent_reset_options(self) -> list[Mapping[str, Any]]:
        """The options of ``env.reset`` that select each opponent of the env, by number; [] if the env chooses."""
        return (
            []
            if self.opponents is None
            else [options for _, options in self.opponents.opponent_table.spec.env_reset_options]
        )

    def set_outputs(self, directory: RunDirectory, reporter: Reporter) -> None:
        """Set the directory and the reporter that the run writes to."""
        self.directory, self.reporter = directory, reporter

    # ---- the phases of an iteration ---------------------------------------------------------------------------

    def publish_weights(self) -> None:
        """Give the current weights to the actors that collect the next rollouts."""
        self.source.publish(self.learner.policy.state_dict(), self.progress.iteration)

    def estimate_advantages(self, rollout: Rollout) -> Advantages:
        """Return advantages and returns [T, N] of the clipped or scaled rewards."""
        rewards = rollout.rewards.astype(np.float32)  # [T, N]
        if self.config.clip_reward:
            rewards = np.sign(rewards)  # as for Atari in Mnih et al. 2015 (doi:10.1038/nature14236)
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

    def next_update_settings(self) -> UpdateSettings:
        """Return the learning rate and the loss terms of the next update.

        As in Stable-Baselines3, the learning rate is that of the step at which the rollout ends. The loss terms are
        those of the step at which it began.
        """
        config, steps = self.config, self.progress.timesteps
        rate = self.overrides.get("learning_rate", learning_rate(config, steps + config.rollout_size))
        clip_range, ent_coef = (self.overrides.get(name) for name in ("clip_range", "ent_coef"))
        terms = dataclasses.replace(loss_terms_at(config, steps), clip_range=clip_range, ent_coef=ent_coef)
        return UpdateSettings(self.progress.iteration, rate, terms)

    def counters(self) -> Counters:
        """Return the counters as they are now."""
        progress = self.progress
        rewards = tuple(reward for reward, _ in progress.recent)
        return Counters(progress.timesteps, progress.episodes, progress.seconds, self.learner.n_gradient_steps, rewards)

    def commit(self, rollout: Rollout) -> None:
        """Complete an iteration: update statistics and counters, publish the weights and take a recovery point."""
        self._merge_observations(rollout)
        self.progress.advance(rollout, self.stopwatch.end_update())
        self.publish_weights()
        self.take_recovery_point()

    def _merge_observations(self, rollout: Rollout) -> None:
        """Add the rollout's observations to the statistics, which stayed fixed while it was collected and learned."""
        normalizer = self.learner.policy.normalizer
        if normalizer is None:
            return
        t, n = rollout.n_steps, rollout.n_envs
        rows_by_env = np.arange(t * n).reshape(t, n).T.reshape(-1)  # [N * T]
        observations = ObservationView(rollout, self.observation_moments)[rows_by_env]  # each [N * T, ...]
        for path, moments in self.observation_moments.items():
            moments.merge(observations[path])
            normalizer.set(path, moments.mean, moments.deviation)

    def exhausted_budget(self) -> str | None:
        """Return which budget of the run is used up (``stages`` after the last stage); None if there is none."""
        stages = "stages" if self.opponents is not None and self.opponents.finished else None
        return exhausted_budget(self.config, self.progress) or stages

    def log_faults(self, faults: Sequence[EnvFault]) -> None:
        """Warn of exceptions that envs raised and write each to a file; after the first few, only count them."""
        for fault in faults:
            self.n_faults_logged += 1
            if self.n_faults_logged <= MAX_FAULT_FILES:
                replay_command = write_fault(self.directory, self.config, fault, self.opponent_reset_options)
                advice = "" if replay_command is None else f" To reproduce it: {replay_command}"
                self.reporter.console.warn(f"{fault.summary} ({fault.location}); the run continues.{advice}")

    # ---- recovery points and checkpoints ----------------------------------------------------------------------

    def discard_rollout(self) -> None:
        """Count the time of a rollout that is not used, and let the end of the run be saved with this count."""
        self.progress.discarded_seconds += self.stopwatch.since_update()
        self.take_recovery_point()
        self.last_saved_step = None

    def take_recovery_point(self) -> None:
        """Copy the state of the run into ``recovery_point``."""
        self.recovery_point = capture(self)

    def refresh_recovery_point(self, hook: str, state: Mapping[str, Any]) -> None:
        """Put the state of a hook, changed settings and the counters into the recovery point; copies no tensor."""
        assert self.recovery_point is not None
        saved = self.recovery_point.state
        if state == saved.get(HOOKS, {}).get(hook, {}) and self.overrides == saved.get(OVERRIDES, {}):
            return
        hooks = {**saved.get(HOOKS, {}), **({hook: dict(state)} if state or hook in saved.get(HOOKS, {}) else {})}
        rest = {name: value for name, value in saved.items() if name not in (HOOKS, OVERRIDES)}
        refreshed = {**rest, **self.progress.state(), **_hook_data(hooks, self.overrides)}
        self.recovery_point = dataclasses.replace(self.recovery_point, state=refreshed)

    def save_recovery_point(self, again: bool = False) -> None:
        """Save the recovery point as a checkpoint. A save that fails is a warning and does not end the run.

        Nothing is written if the checkpoint of this step is on disk, unless ``again``.
        """
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
        """Save the recovery point as the best policy so far, in place of the one before."""
        assert self.recovery_point is not None
        try:
            save_checkpoint(self.directory.best, self.recovery_point)
            prune(self.directory.best, keep=1)
        except CheckpointError as error:
            self.reporter.console.warn(f"best policy {error}")

    def close(self) -> None:
        """Release envs, worker processes and shared memory. May be called twice."""
        try:
            self.source.close()
        finally:
            if self.eval_env is not None:
                self.eval_env.close()
            if self.opponents is not None:
                self.opponents.close()


def capture(run: Run) -> Checkpoint:
    """Return a copy of the whole state of the run. This is cheap enough for every iteration."""
    weights, optimizer = run.learner.engine.checkpoint_tensors()
    buffers = {name: buffer.clone() for name, buffer in run.learner.policy.named_buffers()}
    lagged_weights = None
    previous, hooks, overrides = run.recovery_point, {}, run.overrides
    if previous is not None:  # hooks and overrides as last recorded: a hook may be in the middle of changing them
        hooks, overrides = previous.state.get(HOOKS, {}), previous.state.get(OVERRIDES, {})
    if run.config.overlap and previous is not None:
        is_next_iteration = run.progress.iteration > int(previous.state["iteration"])
        lagged_weights = previous.policy if is_next_iteration else previous.lagged_weights
    return Checkpoint(
        policy={**weights, **buffers},
        optimizer=optimizer,
        state={
            **run.progress.state(),
            "seed": run.seed,
            "n_updates": run.learner.n_gradient_steps,
            "parts": {name: statistics.state() for name, statistics in run.running_statistics.items()},
            "opponents": None if run.opponents is None else run.opponents.state(),
            "spaces": run.spaces,
            "masked": run.has_masks,
            "encoding": ENCODING,
            **_hook_data(hooks, overrides),
        },
        envs=_to_tensors(run.source.env_positions()),
        lagged_weights=lagged_weights,
        opponents=None if run.opponents is None else _to_tensors(run.opponents.weights()),
        reference=run.learner.reference,
    )


def _hook_data(hooks: Mapping[str, Any], overrides: Mapping[str, float]) -> dict[str, Any]:
    """Return the entries of ``state.json`` that only runs with hooks have; an empty one is left out."""
    return {name: dict(data) for name, data in ((HOOKS, hooks), (OVERRIDES, overrides)) if data}


def _to_tensors(arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, Tensor]:
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def _to_arrays(tensors: Mapping[str, Tensor]) -> dict[str, npt.NDArray[Any]]:
    return {name: tensor.numpy() for name, tensor in tensors.items()}


def restore(run: Run, checkpoint: Checkpoint) -> None:
    """Continue from a checkpoint of a run with the same config; raise a CheckpointError if it does not fit."""
    state, learner = checkpoint.state, run.learner
    _check_fits(run, checkpoint)
    learner.policy.load_state_dict(dict(checkpoint.policy))
    learner.engine.restore_moments(checkpoint.optimizer)
    if checkpoint.reference is not None:
        learner.set_reference(checkpoint.reference)
    learner.n_gradient_steps = int(state["n_updates"])
    run.progress = Progress.from_state(state)
    for name, statistics in run.running_statistics.items():
        statistics.restore(state["parts"][name])
    if run.opponents is not None:
        run.opponents.restore(state["opponents"], _to_arrays(checkpoint.opponents or {}))
    _restore_envs(run, checkpoint)
    run.overrides = {name: float(value) for name, value in state.get(OVERRIDES, {}).items()}
    run.recovery_point = checkpoint


def _check_fits(run: Run, checkpoint: Checkpoint) -> None:
    """Raise a CheckpointError if spaces, weights or env positions are not those of this run."""
    policy = run.learner.policy
    if checkpoint.state["spaces"] != run.spaces:
        spaces, recorded = one_line(run.spaces), one_line(checkpoint.state["spaces"])
        raise CheckpointError(f"the env has spaces {spaces}, but the run was made with {recorded}")
    check_encoding(checkpoint.state, policy)
    all_weights = {
        "policy": checkpoint.policy,
        "policy of behind.safetensors": checkpoint.lagged_weights,
        "reference": checkpoint.reference,
    }
    for what, weights in all_weights.items():
        if weights is not None:
            check_tensors(what, weights, policy.state_dict())
    check_envs(checkpoint.envs, run.config.n_envs, policy.layout, policy.codec, run.has_masks, policy.n_state)


def _restore_envs(run: Run, checkpoint: Checkpoint) -> None:
    """Bring every env to its position in the checkpoint."""
    numbers = checkpoint.envs["opponent"].tolist() if "opponent" in checkpoint.envs else []
    if unknown := [n for n in numbers if n != -1 and (run.opponents is None or not run.opponents.has_opponent(n))]:
        raise CheckpointError(f"the checkpoint does not fit this run's config: there is no opponent {unknown[0]}")
    env_positions = _to_arrays(checkpoint.envs)
    if run.backend.backend == "serial":  # a state that crashes the env would end this process
        config = run.config
        tracker = EnvPositions(run.seed, config.n_envs, run.learner.policy.codec)
        tracker.restore(env_positions)
        positions = tracker.positions_of(range(config.n_envs))
        check_states_in_child(run.factory, positions, run.seed, run.recovery, config.parallel_start_method)
    run.source.restore(env_positions)


def weights_hash(weights: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of the weights in hexadecimal: equal hashes mean bit-identical policies."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        digest.update(name.encode())
        digest.update(weights[name].detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
