"""The row of metrics of one iteration, and the columns that the rows of a run can have."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from corral.core.metrics import INFO_PREFIX, METRICS
from corral.core.types import Rollout
from corral.ppo.learner import UpdateSettings, UpdateStats
from corral.training.run import Run

__all__ = ["Metrics", "metrics_row", "progress_columns", "progress_row"]

Metrics = dict[str, float]
_OPTIONAL_METRICS = ("train/rho", "train/kl_ref", "train/kl_ref_coef", "train/std")
"""Metrics that only some settings or policies have."""
_COMMON_PREFIXES = ("time/", "rollout/", "faults/", "train/", "eval/", "system/trainer")
"""How the names of metrics begin that every run has, except for the optional ones."""


def progress_columns(run: Run) -> Sequence[str]:
    """Return the names of all metrics that the run can have, except numbers in ``info`` and what hooks log."""
    config = run.config
    columns = [name for name in METRICS if name.startswith(_COMMON_PREFIXES) and name not in _OPTIONAL_METRICS]
    present = {
        "train/rho": config.overlap,
        "train/kl_ref": bool(config.kl_ref_coef),
        "train/kl_ref_coef": bool(config.kl_ref_coef),
        "train/std": bool(run.learner.policy.log_std.numel()),
        "nodes/count": config.backend == "ray",
    }
    columns += [name for name, is_present in present.items() if is_present]
    if run.opponents is not None:
        columns += run.opponents.metric_names()
    n_workers = len(run.source.pids())
    return columns + [f"system/worker_{i}_{unit}" for i in range(n_workers) for unit in ("cpu", "mb")]


def metrics_row(
    run: Run, rollout: Rollout, stats: UpdateStats, settings: UpdateSettings, mean_clipped_ratio: float | None
) -> Metrics:
    """Return the metrics of one iteration. The order of the keys is part of the files: ``metrics.jsonl`` keeps it."""
    progress = run.progress
    row: Metrics = {
        "time/total_timesteps": progress.timesteps,
        "time/iterations": progress.iteration,
        "time/fps": progress.fps,
        "time/time_elapsed": progress.seconds,
        "time/collect_s": run.stopwatch.collect_seconds,
        "time/update_s": run.stopwatch.update_seconds,
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
    row |= {f"faults/{name}": count for name, count in progress.fault_counts.counts().items()}
    row |= _node_metrics(run)
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
        "train/n_updates": run.learner.n_gradient_steps,
    }
    if mean_clipped_ratio is not None:
        row["train/rho"] = mean_clipped_ratio
    if run.opponents is not None:
        row |= run.opponents.metrics()
    if stats.kl_ref is not None:
        row["train/kl_ref"] = stats.kl_ref
    if run.learner.policy.log_std.numel():
        row["train/std"] = float(run.learner.policy.log_std.detach().exp().mean())
    row |= run.meter.sample()
    row |= {f"{INFO_PREFIX}{key}": sums.total / sums.count for key, sums in rollout.infos.items()}
    if run.config.kl_ref_coef:
        row["train/kl_ref_coef"] = settings.terms.kl_ref_coef
    return row


def _node_metrics(run: Run) -> Metrics:
    """Return what happened on each machine of the cluster; nothing without a cluster."""
    by_node = run.source.node_use()
    if not by_node:
        return {}
    row: Metrics = {"nodes/count": sum(use.groups > 0 for use in by_node.values())}
    for address, use in by_node.items():
        row |= {f"nodes/{address}/{name}": count for name, count in dataclasses.asdict(use).items()}
    return row


def progress_row(run: Run) -> Metrics:
    """Return a row of counters for an evaluation that no iteration belongs to."""
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
