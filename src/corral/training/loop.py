"""The training loop: collect, estimate advantages, update; everything else is a hook.

What varies (who steps, who acts, what network) was decided before it starts.
"""

from __future__ import annotations

from corral.training.hooks.hook import HookList
from corral.training.iteration import Discarded, End, Iteration, Start
from corral.training.metrics_row import metrics_row
from corral.training.pipeline import RolloutPipeline
from corral.training.run import Run
from corral.training.signals import Interrupts

__all__ = ["train_loop"]


def train_loop(run: Run, hooks: HookList, signals: Interrupts) -> str:
    """Train until a budget is used up or a hook stops the run; return which. The last whole iteration is saved."""
    resumed = run.recovery_point is not None
    if not resumed:
        run.take_recovery_point()  # reported if a warm start is interrupted
    hooks.on_start(Start(run, signals, resumed))  # warm start, KL reference, the user's
    run.publish_weights()
    run.take_recovery_point()
    stop = run.budget_reached()
    if run.progress.iteration:
        run.last_saved_step = run.progress.timesteps  # what was resumed is on disk already
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
                run.discard_rollout()
                hooks.after_discarded_rollout(Discarded(run, signals, evaluated))
                stop = "duration"
                break
            run.commit(rollout)  # observation statistics, counters, publish, recovery point
            metrics = metrics_row(run, rollout, update, settings, lag)
            news = pipeline.stage_ended, run.budget_reached()
            iteration = Iteration(run, signals, before, rollout, update, settings, metrics, *news)
            hooks.after_iteration(iteration)
            stop, evaluated = iteration.stop_reason, "eval/mean_reward" in metrics
    finally:
        run.progress.mishaps += run.source.drain_mishaps()  # of a rollout that was never finished
        run.save_recovery_point()
        hooks.on_end(End(run, stop))
    return stop
