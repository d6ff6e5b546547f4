"""The training loop: collect, estimate advantages, update; everything else is a hook.

What varies (who steps, who acts, what network) was decided before it starts.
"""

from __future__ import annotations

from corral.training.evaluate import evaluate_run
from corral.training.hooks.hook import HookList
from corral.training.hooks.stage_files import write_stage_files
from corral.training.iteration import End, Iteration, Start
from corral.training.metrics_row import metrics_row, progress_row
from corral.training.pipeline import RolloutPipeline
from corral.training.progress import budgets_of
from corral.training.run import Run
from corral.training.signals import Interrupts

__all__ = ["train_loop"]


def train_loop(run: Run, hooks: HookList, signals: Interrupts) -> str:
    """Train until a budget is used up or a hook stops the run; return which. The last whole iteration is saved."""
    resumed = run.recovery_point is not None
    if not resumed:
        run.take_recovery_point()  # reported if a warm start is interrupted
    start = Start(run, signals, resumed)
    hooks.on_start(start)  # warm start, the user's, KL reference
    reason = None
    try:
        run.publish_weights()
        run.take_recovery_point()
        stop = run.budget_reached() or start.stop_reason
        if resumed and (stop is None or not run.config.hooks):
            run.last_saved_step = run.progress.timesteps  # what was resumed is on disk already
        reason = _iterate(run, hooks, signals, stop)
    finally:
        hooks.on_end(End(run, reason))
    return reason


def _iterate(run: Run, hooks: HookList, signals: Interrupts, stop: str | None) -> str:
    """Collect, learn and call the hooks until there is a reason to stop; save the last whole iteration."""
    run.save_recovery_point()  # a new run has something to resume from its first moment on
    pipeline = RolloutPipeline(run)
    evaluated = False
    try:
        while stop is None:
            before = run.counters()
            with signals.allowed():  # what is cut short in here is discarded
                rollout = pipeline.next()  # [T, N]; with overlap, the next one begins
                if rollout is not None:
                    lag = pipeline.measure_lag(rollout)  # before the update
                    targets = run.estimate_targets(rollout)  # [T, N]
                    settings = run.update_settings()
                    update = run.learner.update(rollout, targets, settings)
            if rollout is None:
                _end_without_rollout(run, signals, evaluated)
                stop = "duration"
                break
            run.commit(rollout)  # observation statistics, counters, publish, recovery point
            iteration = Iteration(
                run,
                signals,
                before=before,
                rollout=rollout,
                update=update,
                settings=settings,
                metrics=metrics_row(run, rollout, update, settings, lag),
                stage_ended=pipeline.stage_ended,
                stop_reason=run.budget_reached(),
            )
            hooks.after_iteration(iteration)
            stop, evaluated = iteration.stop_reason, "eval/mean_reward" in iteration.metrics
    finally:
        run.progress.recovery_counts += run.source.drain_recovery_counts()  # of a rollout that was never finished
        run.save_recovery_point()
    return stop


def _end_without_rollout(run: Run, signals: Interrupts, evaluated: bool) -> None:
    """End a run whose duration was over in the middle of a rollout, which is discarded."""
    run.discard_rollout()
    if run.config.eval_freq and not evaluated:
        measured = evaluate_run(run, signals)
        run.reporter.write(progress_row(run) | measured, budgets_of(run.config, run.progress)[0].done)
    write_stage_files(run)
