"""``benchmark_metrics.json``: what a timed run did, in one small file that other tools can read."""

from __future__ import annotations

import json
import math
import os
import statistics
from pathlib import Path

from corral.bench.record import FPS, LOSS, REWARD, SECONDS, STEPS, read_record

__all__ = ["write_benchmark_metrics"]

BENCHMARK = "benchmark_metrics.json"
LAST_ROWS = 10
"""Iterations in the mean loss."""


def write_benchmark_metrics(run_dir: str | os.PathLike[str]) -> Path:
    """Write ``benchmark_metrics.json`` into a run directory, from the run's own files; returns its path.

    ``history`` holds one entry per iteration in each of its lists, with null where nothing was recorded.
    """
    run = read_record(run_dir)
    workers = run.num_workers
    losses = [loss for loss in run.column(LOSS)[-LAST_ROWS:] if loss is not None]
    metrics = {
        "mode": "sequential" if run.config.backend == "serial" else "parallel",
        "env": run.config.env,
        "seed": run.config.seed,
        "n_envs": run.config.n_envs,
        "num_workers": workers,
        "num_envs_per_worker": math.ceil(run.config.n_envs / workers) if workers else None,
        "backend": run.config.backend,
        "steps": run.steps,
        "episodes": run.episodes,
        "seconds": run.seconds,
        "fps": run.fps,
        "mean_reward": run.mean_reward,
        "mean_loss": statistics.fmean(losses) if losses else None,
        "history": {
            "hours": [None if seconds is None else seconds / 3600 for seconds in run.column(SECONDS)],
            "steps": run.column(STEPS),
            "fps": run.column(FPS),
            "reward": run.column(REWARD),
            "loss": run.column(LOSS),
        },
    }
    path = run.path / BENCHMARK
    path.write_text(json.dumps(metrics, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    return path
