"""The training loop: collect a rollout, update the policy with PPO, call the hooks; repeat until the run ends.

The loop is the same for every env, network and number of processes. Its terms:

- A *run* (``training/run``) holds the parts that ``training/assemble`` has built: the rollout source (it has the envs
  and collects rollouts), the learner (it updates the policy), counters, settings and the run directory.
- A *rollout* is ``T`` steps of each of ``N`` envs. An *iteration* is one rollout and one update of the policy.
- A *hook* is an object with methods that the loop calls: ``on_start``, ``after_iteration`` and ``on_end``. Evaluation,
  checkpoints, metrics files and imitation learning from an expert are hooks, and users add their own. Their order is in
  ``training/hooks/hook_order``.
- The *recovery point* is a copy of the run's state in memory. A new run takes it before ``on_start``; every run takes
  it anew after ``on_start``, after each update and after each evaluation. A user's hook may have state too: after the
  hook's ``on_start`` and each ``after_iteration``, its new state is copied to the recovery point, so that a resume does
  not lose the hook's last iteration. A checkpoint is a recovery point on disk. If a signal or an error interrupts a
  rollout or its update, both are discarded and the recovery point is saved, so that a resume repeats them exactly.
- With the setting ``overlap``, workers collect the next rollout while this process updates the policy. That rollout
  uses the weights from before the update. A resume collects it again, so the recovery point holds those weights too.
- *Stages* divide a run: each has its own opponents (players inside the envs) or reset options.
"""

from __future__ import annotations

from corral.training.evaluate import evaluate_run
from corral.training.hooks.hook import HookList
from corral.training.hooks.stage_files import write_stage_files
from corral.training.iteration import End, Iteration, IterationResult, Start
from corral.training.metrics_row import metrics_row, progress_row
from corral.training.pipeline import RolloutPipeline
from corral.training.progress import budget_used
from corral.training.run import Run
from corral.training.signals import SignalHandler

__all__ = ["train_loop"]


def train_loop(run: Run, hooks: HookList, signals: SignalHandler) -> str:
    """Train until a budget (steps, episodes, time, stages) is used up or a hook stops the run; return the reason.

    However the iterations end, also by a signal or an error, the last recovery point is saved unless it is already, and
    then ``on_end`` is called. If ``on_start`` of a hook raises, ``HookList`` calls ``on_end`` of the started ones.
    """
    resumed = run.recovery_point is not None  # if so, it is the checkpoint from which the run was restored
    if not resumed:
        run.take_recovery_point()  # `on_start` adds states of hooks; summary.json is written from it if that fails
    start = Start(run, signals, resumed)
    hooks.on_start(start)  # may change the weights (imitation learning), or stop the run
    reason = None  # stays None if a signal or an error ends the run
    try:
        run.publish_weights()  # to the processes that choose actions
        run.take_recovery_point()  # with the changes of `on_start`
        stop_reason = run.exhausted_budget() or start.stop_reason
        if resumed and (stop_reason is None or not run.config.hooks):
            # Count the recovery point as saved, so that `_run_iterations` does not begin by saving it. If this process
            # ends before an iteration is complete, the next resume then calls `on_start` with the same state as this
            # one did. The exception: no iteration will follow, and the user has hooks (`config.hooks`). No later save
            # would have what they changed in `on_start`, so `_run_iterations` saves it.
            run.last_saved_step = run.progress.timesteps
        reason = _run_iterations(run, hooks, signals, stop_reason)
    finally:
        hooks.on_end(End(run, reason))
    return reason


def _run_iterations(run: Run, hooks: HookList, signals: SignalHandler, stop_reason: str | None) -> str:
    """Repeat iterations until there is a reason to stop; return it."""
    run.save_recovery_point()  # unless it is saved; so a new run can be resumed even before its first iteration
    pipeline = RolloutPipeline(run)  # requests rollouts from the run's source, one after the other
    is_evaluated = False  # whether the current policy was evaluated since this loop began
    try:
        while stop_reason is None:
            # Ctrl-C and SIGTERM raise an exception in `interruptible` blocks only, of which hooks have some too.
            # Elsewhere they wait for the next block.
            with signals.interruptible():
                result = _collect_and_learn(run, pipeline)
            if result is None:  # the time budget was used up before the rollout was complete
                _end_without_rollout(run, signals, is_evaluated)
                return "duration"
            run.commit(result.rollout)  # update counters and normalization, publish the weights, take a recovery point
            metrics = metrics_row(run, result.rollout, result.update, result.settings, result.mean_clipped_ratio)
            iteration = Iteration(run, signals, result, metrics, stop_reason=run.exhausted_budget())
            hooks.after_iteration(iteration)  # evaluate, log, write metrics, save checkpoints; a hook may stop the run
            stop_reason, is_evaluated = iteration.stop_reason, iteration.is_evaluated
    finally:
        # Worker restarts during an incomplete rollout are in no metrics row, and in no checkpoint, because the recovery
        # point was copied before them. Only summary.json counts them.
        run.progress.fault_counts += run.source.take_fault_counts()
        run.save_recovery_point()
    return stop_reason


def _collect_and_learn(run: Run, pipeline: RolloutPipeline) -> IterationResult | None:
    """Collect a rollout and update the policy; return None if the time budget ends before the rollout is complete.

    Without ``overlap``, this is one iteration of PPO, Algorithm 1 of Schulman et al. 2017 (arXiv:1707.06347).
    """
    before = run.counters()  # steps, episodes and seconds before this iteration, for hooks
    rollout = pipeline.next_rollout()  # [T, N]; with `overlap`, workers collect the next one during the update
    if rollout is None:
        return None
    # With `overlap`, the mean of min(1, pi_now / pi_that_collected), 1 for equal policies; without `overlap`, None.
    mean_clipped_ratio = pipeline.mean_clipped_ratio(rollout)
    advantages = run.estimate_advantages(rollout)  # advantages and returns [T, N], by generalized advantage estimation
    settings = run.next_update_settings()  # learning rate, clip range and coefficients of the loss
    update = run.learner.update(rollout, advantages, settings)  # epochs of minibatch gradient steps
    stage_end = pipeline.stage_end_message  # a line to log if a stage ended with `rollout`; else None
    return IterationResult(before, rollout, mean_clipped_ratio, settings, update, stage_end)


def _end_without_rollout(run: Run, signals: SignalHandler, is_evaluated: bool) -> None:
    """End a run whose time budget was used up before a rollout was complete.

    ``after_iteration`` is not called, because there is no iteration to give it; ``on_end`` is called later. So this
    function does what hooks do at the end of other runs: it evaluates the policy, if the run has evaluations and this
    policy was not evaluated, and writes the files of the current stage.
    """
    run.discard_rollout()  # the seconds of the incomplete rollout are added to `discarded_seconds`
    if run.config.eval_freq and not is_evaluated:
        eval_metrics = evaluate_run(run, signals)
        run.reporter.write(progress_row(run) | eval_metrics, budget_used(run.config, run.progress))
    write_stage_files(run)  # metrics and policy of the current stage, if the run has stages
