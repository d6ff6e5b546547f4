"""The training loop: collect a rollout, update the policy with PPO, call the hooks; repeat until the run ends.

The loop is the same for every env, network and number of processes. ``training/assemble`` has built the parts before.

- A *run* (``training/run``) holds all parts: rollout source, learner, counters, run directory.
- A *rollout* is ``T`` steps of each of ``N`` envs. An *iteration* is one rollout and one update of the policy.
- A *hook* is an object with methods that the loop calls: ``on_start``, ``after_iteration`` and ``on_end``. Evaluation,
  checkpoints, metrics files and imitation of an expert are hooks, and users add their own. Their order is in
  ``training/hooks/hook_order``.
- The *recovery point* is a copy of the run's state in memory, taken after each iteration. Checkpoints are recovery
  points on disk. If a signal or an error ends an iteration before it is complete, the iteration is discarded and the
  recovery point is saved.
- With the setting ``overlap``, workers collect the next rollout while this process updates the policy.
- *Stages* are parts of a run with different opponents.
"""

from __future__ import annotations

from corral.training.evaluate import evaluate_run
from corral.training.hooks.hook import HookList
from corral.training.hooks.stage_files import write_stage_files
from corral.training.iteration import End, Iteration, LearnedRollout, Start
from corral.training.metrics_row import metrics_row, progress_row
from corral.training.pipeline import RolloutPipeline
from corral.training.progress import budget_used
from corral.training.run import Run
from corral.training.signals import SignalHandler

__all__ = ["train_loop"]


def train_loop(run: Run, hooks: HookList, signals: SignalHandler) -> str:
    """Train until a budget (steps, episodes, time, stages) is used up or a hook stops the run; return the reason.

    After ``on_start``, however the run ends, the last completed iteration is saved and ``on_end`` is called.
    """
    resumed = run.recovery_point is not None  # then it is the checkpoint from which the run was restored
    if not resumed:
        run.take_recovery_point()  # the summary describes this state if a signal interrupts `on_start`
    start = Start(run, signals, resumed)
    hooks.on_start(start)  # may change the weights: imitation of an expert, the user's hooks
    reason = None
    try:
        run.publish_weights()  # to the actors that collect rollouts
        run.take_recovery_point()  # includes the changes by `on_start`
        stop_reason = run.budget_reached() or start.stop_reason
        if resumed and (stop_reason is None or not run.config.hooks):
            # The checkpoint that was resumed need not be saved again. The exception is a run that ends here and has
            # hooks: what they changed in `on_start` would be in no checkpoint.
            run.last_saved_step = run.progress.timesteps
        reason = _run_iterations(run, hooks, signals, stop_reason)
    finally:
        hooks.on_end(End(run, reason))
    return reason


def _run_iterations(run: Run, hooks: HookList, signals: SignalHandler, stop_reason: str | None) -> str:
    """Repeat iterations until there is a reason to stop; return it."""
    run.save_recovery_point()  # a new run can be resumed before its first iteration is complete
    pipeline = RolloutPipeline(run)
    is_evaluated = False  # whether the policy was evaluated in the last iteration
    try:
        while stop_reason is None:
            # Ctrl-C and SIGTERM interrupt such a block at once; elsewhere they wait for the next one.
            with signals.interruptible():
                learned = _collect_and_learn(run, pipeline)
            if learned is None:  # the run's time was over before the rollout was complete
                _end_without_rollout(run, signals, is_evaluated)
                return "duration"
            run.commit(learned.rollout)  # counters, observation statistics, publish weights, recovery point
            metrics = metrics_row(run, learned.rollout, learned.update, learned.settings, learned.lag)
            iteration = Iteration(run, signals, learned, metrics, stop_reason=run.budget_reached())
            hooks.after_iteration(iteration)  # evaluate, log, write metrics, save checkpoints; a hook may stop the run
            stop_reason, is_evaluated = iteration.stop_reason, iteration.is_evaluated
    finally:
        run.progress.recovery_counts += run.source.drain_recovery_counts()  # worker restarts in an incomplete rollout
        run.save_recovery_point()
    return stop_reason


def _collect_and_learn(run: Run, pipeline: RolloutPipeline) -> LearnedRollout | None:
    """Collect a rollout and update the policy; return None if the run's time is over before the rollout is complete.

    This is one iteration of PPO, Algorithm 1 of Schulman et al. 2017 (arXiv:1707.06347).
    """
    before = run.counters()  # steps, episodes and seconds so far
    rollout = pipeline.next_rollout()  # [T, N]; with `overlap`, workers collect the next one during the update
    if rollout is None:
        return None
    lag = pipeline.measure_lag(rollout)  # with `overlap`, how far the policy has moved since the rollout was collected
    targets = run.estimate_targets(rollout)  # advantages and returns [T, N], by generalized advantage estimation
    settings = run.update_settings()  # learning rate, clip range and coefficients of this update
    update = run.learner.update(rollout, targets, settings)  # epochs of minibatch gradient steps
    return LearnedRollout(before, rollout, lag, settings, update, pipeline.stage_end_message)


def _end_without_rollout(run: Run, signals: SignalHandler, is_evaluated: bool) -> None:
    """End a run whose time was over before a rollout was complete; evaluate the policy if that was not just done."""
    run.discard_rollout()
    if run.config.eval_freq and not is_evaluated:
        eval_metrics = evaluate_run(run, signals)
        run.reporter.write(progress_row(run) | eval_metrics, budget_used(run.config, run.progress))
    write_stage_files(run)  # if the run has stages: metrics and policy of the current one
