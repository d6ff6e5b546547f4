"""The training loop: collect a rollout, update the policy with PPO, call the hooks; repeat until the run ends.

The loop does not depend on the number of processes, the env or the network: ``training/assemble`` has chosen them.

- A *run* (``training/run``) holds all parts: rollout source, learner, counters, run directory.
- A *hook* is an object with methods that the loop calls: ``on_start``, ``after_iteration`` and ``on_end``. Evaluation,
  checkpoints, metrics files and imitation of an expert are hooks, and users add their own. Their order is in
  ``training/hooks/hook_order``.
- The *recovery point* is a copy of the run's state in memory, taken after each iteration. If a signal or an error
  ends an iteration before it is complete, the recovery point is saved as a checkpoint and the iteration is discarded.
- Shapes: ``T`` steps of each of ``N`` envs.
"""

from __future__ import annotations

from corral.training.evaluate import evaluate_run
from corral.training.hooks.hook import HookList
from corral.training.hooks.stage_files import write_stage_files
from corral.training.iteration import End, Iteration, LearnedRollout, Start
from corral.training.metrics_row import metrics_row, progress_row
from corral.training.pipeline import RolloutPipeline
from corral.training.progress import budgets_of
from corral.training.run import Run
from corral.training.signals import Interrupts

__all__ = ["train_loop"]


def train_loop(run: Run, hooks: HookList, signals: Interrupts) -> str:
    """Train until a budget (steps, episodes, time, stages) is used up or a hook stops the run; return the reason.

    Once the hooks have started: however the run ends, its last completed iteration is saved and ``on_end`` is called.
    """
    resumed = run.recovery_point is not None
    if not resumed:
        run.take_recovery_point()  # the state to report if a signal arrives while hooks change the first weights
    start = Start(run, signals, resumed)
    hooks.on_start(start)  # imitate an expert, the user's hooks, keep the reference policy of the KL penalty
    reason = None
    try:
        run.publish_weights()  # to the actors that collect rollouts
        run.take_recovery_point()
        stop_reason = run.budget_reached() or start.stop_reason
        if resumed and (stop_reason is None or not run.config.hooks):
            run.last_saved_step = run.progress.timesteps  # the checkpoint that was resumed need not be saved again
        reason = _run_iterations(run, hooks, signals, stop_reason)
    finally:
        hooks.on_end(End(run, reason))
    return reason


def _run_iterations(run: Run, hooks: HookList, signals: Interrupts, stop_reason: str | None) -> str:
    """Repeat iterations until there is a reason to stop; return it."""
    run.save_recovery_point()  # a new run can be resumed before its first iteration is complete
    pipeline = RolloutPipeline(run)
    is_evaluated = False  # whether the last iteration ended with an evaluation
    try:
        while stop_reason is None:
            with signals.allowed():  # Ctrl-C and SIGTERM interrupt this block at once; outside such blocks they wait
                learned = _collect_and_learn(run, pipeline)
            if learned is None:
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
    """Collect a rollout and update the policy; return None if the run's time was over before the rollout was complete.

    This is one iteration of PPO, Algorithm 1 of Schulman et al. 2017 (arXiv:1707.06347).
    """
    before = run.counters()
    rollout = pipeline.next_rollout()  # [T, N]; with `overlap`, workers collect the next one during the update
    if rollout is None:
        return None
    lag = pipeline.measure_lag(rollout)  # with `overlap`: how far the policy has moved since it collected the rollout
    targets = run.estimate_targets(rollout)  # advantages and returns [T, N], by generalized advantage estimation
    settings = run.update_settings()  # learning rate, clip range and coefficients of this update
    update = run.learner.update(rollout, targets, settings)  # epochs of minibatch gradient steps
    return LearnedRollout(before, rollout, lag, settings, update, pipeline.stage_end_message)


def _end_without_rollout(run: Run, signals: Interrupts, is_evaluated: bool) -> None:
    """End a run whose time was over before a rollout was complete; evaluate the policy if that was not just done."""
    run.discard_rollout()
    if run.config.eval_freq and not is_evaluated:
        eval_metrics = evaluate_run(run, signals)
        run.reporter.write(progress_row(run) | eval_metrics, budgets_of(run.config, run.progress)[0].done)
    write_stage_files(run)
