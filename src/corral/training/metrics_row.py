"""The row of metrics of an iteration, and the columns that a run's rows can have."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from corral.core.metrics import INFO_PREFIX, METRICS
from corral.core.types import Rollout
from corral.ppo.learner import UpdateSettings, UpdateStats
from corral.training.run import Run

__all__ = ["Metrics", "metrics_row", "progress_columns", "progress_row"]

Metrics = dict[str, float]
_OPTIONAL = ("train/rho", "train/kl_ref", "train/kl_ref_coef", "train/std")
_OF_EVERY_RUN = ("time/", "rollout/", "faults/", "train/", "eval/", "system/trainer")


def progress_columns(run: Run) -> Sequence[str]:
    """The names of all metrics that the run can have, but for numbers in ``info`` and those of a callback."""
    config = run.config
    columns = [name for name in METRICS if name.startswith(_OF_EVERY_RUN) and name not in _OPTIONAL]
    present = {
        "train/rho": config.overlap,
        "train/kl_ref": bool(config.kl_ref_coef),
        "train/kl_ref_coef": bool(config.kl_ref_coef),
        "train/std": bool(run.learner.policy.log_std.numel()),
    }
    columns += [name for name, is_present in present.items() if is_present]
    if run.opponents is not None:
        columns += run.opponents.metric_names()
    workers = len(run.source.pids())
    return columns + [f"system/worker_{i}_{what}" for i in range(workers) for what in ("cpu", "mb")]


def metrics_row(run: Run, rollout: Rollout, stats: UpdateStats, settings: UpdateSettings, lag: float | None) -> Metrics:
    """Return the row of an iteration. The order of its keys is that of a file's columns."""
    progress = run.progress
    row: Metrics = {
        "time/total_timesteps": progress.timesteps,
        "time/iterations": progress.iteration,
        "time/fps": progress.fps,
        "time/time_elapsed": progress.seconds,
        "time/collect_s": run.watch.collect_seconds,
        "time/update_s": run.watch.update_seconds,
        "time/act_s": rollout.seconds.act,
        "time/step_s": rollout.seconds.step,
        "rollout/collectors": rollout.collectors,
        "rollout/episodes": progress.episodes,
        "rollout/episodes_in_rollout": len(rollout.episodes),
    }
    if progress.mean_reward is not None and progress.mean_length is not None:
        row["rollout/ep_rew_mean"] = progress.mean_reward
        row["rollout/ep_len_mean"] = progress.mean_length
    if rollout.episodes:
        row["rollout/truncated_fraction"] = float(np.mean([episode.truncated for episode in rollout.episodes]))
    row |= {f"faults/{name}": count for name, count in progress.recovery_counts.counts().items()}
    row |= {
        "train/learning_rate": settings.learning_rate,
        "train/loss": stats.loss,
        "train/policy_gradient_loss": stats.policy_gradient_loss,
        "train/value_loss": stats.value_loss,
        "train/entropy_loss": stats.entropy_loss,
        "train/approx_kl": stats.approx_kl,
        "train/clip_fraction": stats.clip_fraction,
        "train/explained_variance": stats.explained_variance,
        "train/grad_norm": stats.grad_norm,
        "train/n_updates": run.learner.n_updates,
    }
    if lag is not None:
        row["train/rho"] = lag
    if run.opponents is not None:
        row |= run.opponents.metrics()
    if stats.kl_ref is not None:
        row["train/kl_ref"] = stats.kl_ref
    if run.learner.policy.log_std.numel():
        row["train/std"] = float(run.learner.policy.log_std.detach().exp().mean())
    row |= run.meter.sample()
    row |= {f"{INFO_PREFIX}{key}": sums.total / sums.count for key, sums in rollout.infos.items()}
    if run.config.kl_ref_coef:
        row["train/kl_ref_coef"] = settings.terms.kl_ref
    return row


def progress_row(run: Run) -> Metrics:
    """Return a row for what happens between two iterations."""
    progress = run.progress
    row: Metrics = {
        "time/total_timesteps": progress.timesteps,
        "time/iterations": progress.iteration,
        "time/fps": progress.fps,
        "time/time_elapsed": progress.seconds,
        "rollout/episodes": progress.episodes,
        "rollout/episodes_in_rollout": 0,
    }
    return row if run.opponents is None else row | run.opponents.metrics()
