"""The training loop: collect, estimate advantages, update, report, checkpoint.

Everything that varies (who steps, who acts, what network) was decided before it starts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from corral.core.errors import CheckpointError, DeadlinePassed, EnvFault
from corral.core.frame_stacks import Observed
from corral.core.schedules import is_due
from corral.core.types import Rollout, Weights
from corral.ppo.gae import Advantages, estimate_advantages
from corral.ppo.loss_terms import terms_at
from corral.reporting.episode_lines import episode_lines, epoch_line, update_line
from corral.reporting.reporter import Reporter
from corral.storage.checkpoint import Checkpoint, prune, save_checkpoint
from corral.storage.fault_files import MOST_FAULTS, keep_fault
from corral.storage.run_dir import RunDirectory
from corral.training.evaluate import evaluate_actor
from corral.training.hooks.replay_check import check_replay
from corral.training.hooks.stage_files import write_phase
from corral.training.hooks.warm_start import warm_start
from corral.training.metrics_row import Metrics, metrics_row
from corral.training.progress import budgets_of, ended_by, learning_rate, seconds_left
from corral.training.run import Run, capture
from corral.training.signals import Interrupts

__all__ = ["Callback", "TrainingState", "train_loop"]

_LAG_ROWS = 512
"""That are looked at to tell how far a policy lags behind."""


@dataclass(slots=True)
class TrainingState:
    """What a callback sees after each iteration, and what it may do: log numbers, or stop the run."""

    iteration: int
    timesteps: int
    episodes: int
    metrics: Metrics
    run_dir: Path
    stop_reason: str | None = field(default=None, init=False)

    def log(self, name: str, value: float) -> None:
        """Add a metric to this iteration's row."""
        self.metrics[name] = float(value)

    def stop(self, reason: str = "callback") -> None:
        """End the run after this iteration, with a checkpoint."""
        self.stop_reason = reason


Callback = Callable[[TrainingState], None]


def train_loop(
    run: Run, directory: RunDirectory, reporter: Reporter, interrupts: Interrupts, callback: Callback | None
) -> str:
    """Train until a budget is used up; returns which. However it ends, the last whole iteration is saved."""
    config, progress, learner, source = run.config, run.progress, run.learner, run.source
    if config.expert is not None and run.safe is None:
        run.safe = capture(run)  # as it is, should this be interrupted
        with interrupts.allowed():
            warm_start(run, reporter.board)
    if config.kl_ref_coef and learner.reference is None:
        learner.set_reference(learner.policy.state_dict())
    source.publish(learner.policy.state_dict(), progress.iteration)
    run.safe, reason = capture(run), _ended(run)
    # What was resumed is on disk already; a new run has something to resume from its first moment on.
    run.saved_at = progress.timesteps if progress.iteration else _save(run, directory, reporter, run.safe)
    begun, row = False, Metrics()
    mark = time.perf_counter() - progress.eval_seconds
    deadline = None if config.duration is None else time.perf_counter() + seconds_left(config.duration, progress)
    try:
        while reason is None:
            with interrupts.allowed():  # what is cut short here is thrown away
                started = time.perf_counter()
                if deadline is not None and progress.iteration > 0:  # a run completes one iteration at least
                    source.set_deadline(deadline)
                if not begun:
                    _begin(run)
                try:
                    rollout = source.collect()
                except DeadlinePassed:
                    reason = "duration"
            if reason is not None:
                progress.discarded_seconds += time.perf_counter() - progress.eval_seconds - mark
                run.safe, run.saved_at = capture(run), None
                if "eval/mean_reward" not in row:
                    _evaluate_between_iterations(run, directory, reporter, interrupts)
                _write_phase(run, directory, reporter)
                break
            with interrupts.allowed():
                said = _note_games(run, rollout)
                begun = config.overlap and not _is_last(run)
                if begun:  # with the weights as they are; PPO's ratio, which is to these, corrects for the lag
                    _prepare(run, learner.policy.state_dict(), progress.timesteps + config.rollout_size)
                    source.begin(progress.iteration + 1)
                collected = time.perf_counter()
                rho = _lag(run, rollout) if config.overlap else None
                estimate = _advantages(run, rollout)
                rate = learning_rate(config, progress.timesteps + config.rollout_size)
                terms = terms_at(config, progress.timesteps)
                updates = learner.n_updates
                on_epoch = _log_rollout(run, reporter, rollout, collected - progress.eval_seconds - mark)
                stats = learner.update(rollout, estimate, progress.iteration, rate, terms, on_epoch)
            _merge_observations(run, rollout)
            updated = time.perf_counter()

            before = progress.timesteps
            progress.advance(rollout, updated - progress.eval_seconds - mark)
            _tell(run, directory, reporter, rollout.faults)
            mark = updated - progress.eval_seconds  # evaluation does not count
            source.publish(learner.policy.state_dict(), progress.iteration)
            run.safe, reason = capture(run), _ended(run)
            if said is not None:
                reporter.board.note(said)

            save_due = is_due(config.checkpoint_freq, before, progress.timesteps)
            row = metrics_row(run, rollout, stats, rate, rho, collected - started, updated - collected)
            if config.kl_ref_coef:
                row["train/kl_ref_coef"] = terms.kl_ref
            if config.log_episodes:
                epochs = (learner.n_updates - updates) * config.minibatch_size / config.rollout_size
                reporter.board.note(update_line(row, epochs, config.rollout_size, progress.seconds))
            measured = len(row)
            try:
                if reason or is_due(config.eval_freq, before, progress.timesteps):
                    row |= _evaluate(run, directory, reporter, interrupts)
                asked = None if callback is None else _call(callback, run, row, directory)
                if asked is not None and reason is None:
                    reason = asked
                    row |= {} if "eval/mean_reward" in row else _evaluate(run, directory, reporter, interrupts)
            finally:
                more = len(row) > measured  # an evaluation, or what a callback logged
                keep = more or said is not None or reason is not None or save_due
                reporter.write(row, budgets_of(config, progress)[0].done, keep)
                if said is not None or reason is not None:
                    _write_phase(run, directory, reporter)
            if save_due:
                run.saved_at = _save(run, directory, reporter, run.safe)
    finally:
        progress.mishaps += source.drain_mishaps()  # of a rollout that was never finished
        if run.safe.timesteps != run.saved_at:
            run.saved_at = _save(run, directory, reporter, run.safe)
    return reason


def _ended(run: Run) -> str | None:
    """What the run has come to the end of, if anything."""
    stages = "stages" if run.opponents is not None and run.opponents.finished else None
    return ended_by(run.config, run.progress) or stages


def _begin(run: Run) -> None:
    """Begin a rollout: the first, or the first after a resume, which lags behind if the run does."""
    assert run.safe is not None
    iteration, behind = run.progress.iteration, run.safe.behind
    _prepare(run, behind or run.learner.policy.state_dict(), run.progress.timesteps)
    if behind is None:
        run.source.begin(iteration)
        return
    run.source.publish(behind, iteration - 1)
    run.source.begin(iteration)
    run.source.publish(run.learner.policy.state_dict(), iteration)


def _prepare(run: Run, weights: Weights, timesteps: int) -> None:
    """Say who the opponents of the next rollout are."""
    if run.opponents is not None:
        run.opponents.prepare(weights, timesteps, run.source.opponents())


def _note_games(run: Run, rollout: Rollout) -> str | None:
    """Take in who won; what to say about it, if anything."""
    if run.opponents is None:
        return None
    return run.opponents.note(rollout.episodes, run.progress.timesteps + run.config.rollout_size)


def _is_last(run: Run) -> bool:
    """Whether the iteration under way uses up the budget of steps."""
    config = run.config
    return config.timesteps is not None and run.progress.timesteps + config.rollout_size >= config.timesteps


def _advantages(run: Run, rollout: Rollout) -> Advantages:
    config, rewards = run.config, rollout.rewards.astype(np.float32)
    if config.clip_reward:
        rewards = np.sign(rewards)
    terminated = rollout.terminated | rollout.life_lost
    if run.return_scaler is not None:
        rewards = run.return_scaler.scale(rewards, terminated | rollout.truncated)
    return estimate_advantages(
        rewards,
        rollout.values,
        terminated,
        rollout.truncated,
        rollout.final_values,
        rollout.last_values,
        config.gamma,
        config.gae_lambda,
    )


def _log_rollout(run: Run, reporter: Reporter, rollout: Rollout, seconds: float) -> Callable[[int], object]:
    """With ``log_episodes``, print a line for each episode; and return what prints one for each epoch."""
    progress, config, board = run.progress, run.config, reporter.board
    if not config.log_episodes:
        return lambda epoch: None
    lines = episode_lines(
        rollout.episodes,
        earlier=[reward for reward, _ in progress.recent],
        counted=progress.episodes,
        total=config.num_episodes,
        steps=progress.timesteps,
        shape=(rollout.n_steps, rollout.n_envs),
        seconds=(progress.seconds, progress.seconds + seconds),
    )
    for line in lines:
        board.note(line)
    return lambda epoch: board.note(epoch_line(epoch, config.n_epochs))


def _lag(run: Run, rollout: Rollout) -> float:
    """The mean importance weight, clipped at 1, that a rollout begins with: below 1 if an older policy collected it."""
    every = max(1, run.config.rollout_size // _LAG_ROWS)
    log_probs, _ = run.learner.engine.evaluate(rollout, every)
    return float(np.minimum(np.exp(log_probs - rollout.log_probs[::every]), 1).mean())


def _merge_observations(run: Run, rollout: Rollout) -> None:
    """Let the observation statistics catch up; until here they were the ones the rollout was collected with."""
    normalizer = run.learner.policy.normalizer
    if normalizer is None:
        return
    t, n = rollout.n_steps, rollout.n_envs
    seen = Observed(rollout, run.moments)[np.arange(t * n).reshape(t, n).T.reshape(-1)]  # env by env
    for path, moments in run.moments.items():
        moments.merge(seen[path])
        normalizer.set(path, moments.mean, moments.deviation)


def _call(callback: Callback, run: Run, row: Metrics, directory: RunDirectory) -> str | None:
    progress = run.progress
    state = TrainingState(progress.iteration, progress.timesteps, progress.episodes, row, directory.path)
    callback(state)
    return state.stop_reason


def _evaluate(run: Run, directory: RunDirectory, reporter: Reporter, interrupts: Interrupts) -> Metrics:
    """Evaluate, and keep the policy in ``best/`` if none was better."""
    config, progress = run.config, run.progress
    if run.eval_env is None:
        return {}
    started = time.perf_counter()
    with interrupts.allowed():
        if (warning := check_replay(run)) is not None:
            reporter.board.warn(warning)
        run.actor.load(run.learner.policy.state_dict())
        options = None if run.opponents is None else run.opponents.yardstick
        how = config.eval_episodes, run.seed, config.eval_max_steps
        result = evaluate_actor(run.eval_env, run.actor, *how, options=options, sample=config.eval_sample)
        said = run.eval_env.drain()
    progress.mishaps += said.mishaps
    _tell(run, directory, reporter, said.faults)
    seconds = time.perf_counter() - started
    progress.eval_seconds += seconds
    progress.last_eval_reward = result.mean_reward
    is_best = progress.best_reward is None or result.mean_reward > progress.best_reward
    if is_best:
        progress.best_reward = result.mean_reward
    run.safe = capture(run)  # with what evaluation added to the counters
    if is_best:
        try:
            save_checkpoint(directory.best, run.safe)
            prune(directory.best, keep=1)
        except CheckpointError as error:
            reporter.board.warn(f"best policy {error}")
    cut = f", {result.cut_off} cut off after {config.eval_max_steps} steps" if result.cut_off else ""
    reporter.board.note(
        f"evaluation at {progress.timesteps:,} steps: reward {result.mean_reward:,.2f} "
        f"(deviation {result.std_reward:,.2f}, {config.eval_episodes} episodes{cut})"
    )
    return {
        "eval/mean_reward": result.mean_reward,
        "eval/std_reward": result.std_reward,
        "eval/mean_ep_length": result.mean_length,
        "eval/seconds": seconds,
    }


def _evaluate_between_iterations(run: Run, directory: RunDirectory, reporter: Reporter, interrupts: Interrupts) -> None:
    """Evaluate the final policy of a run whose last rollout was discarded: it has a row of metrics of its own."""
    progress = run.progress
    evaluation = _evaluate(run, directory, reporter, interrupts)
    if evaluation:
        row = {
            "time/total_timesteps": progress.timesteps,
            "time/iterations": progress.iteration,
            "time/fps": progress.fps,
            "time/time_elapsed": progress.seconds,
            "rollout/episodes": progress.episodes,
            "rollout/episodes_in_rollout": 0,
        }
        row |= {} if run.opponents is None else run.opponents.metrics()
        reporter.write(row | evaluation, budgets_of(run.config, progress)[0].done)


def _write_phase(run: Run, directory: RunDirectory, reporter: Reporter) -> None:
    """Write the files of the stage that was played last, in runs that have stages."""
    reporter.flush()
    problem = None if run.opponents is None else write_phase(run, directory, run.opponents, run.opponents.played)
    if problem is not None:
        reporter.board.warn(problem)


def _tell(run: Run, directory: RunDirectory, reporter: Reporter, faults: Sequence[EnvFault]) -> None:
    """Say what envs raised that did not end the run, and keep it; after a few, it is only counted."""
    for fault in faults:
        run.faults_told += 1
        if run.faults_told <= MOST_FAULTS:
            again = keep_fault(directory, run.config, fault, run.own_options)
            more = "" if again is None else f" To see it again: {again}"
            reporter.board.warn(f"{fault.summary} ({fault.place}); the run goes on.{more}")


def _save(run: Run, directory: RunDirectory, reporter: Reporter, checkpoint: Checkpoint) -> int | None:
    """Save and tidy up; returns the step that is now safe on disk. A failed save does not end a run."""
    try:
        save_checkpoint(directory.checkpoints, checkpoint)
    except CheckpointError as error:
        reporter.board.warn(f"checkpoint {error}; the previous checkpoint is untouched")
        return None
    reporter.board.note(f"checkpoint at {checkpoint.timesteps:,} steps")
    prune(directory.checkpoints, run.config.keep_checkpoints)
    return checkpoint.timesteps
