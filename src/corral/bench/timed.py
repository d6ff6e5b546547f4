"""Timed runs: settings that fit the machine, and ``benchmark_metrics.json``, which says what a run did."""

from __future__ import annotations

import json
import math
import os
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from corral.config.schema import RECOVERY
from corral.config.yaml_file import load_yaml
from corral.core.errors import UsageError
from corral.core.files import replace_file
from corral.core.machine import available_cores
from corral.storage.run_record import FPS, LOSS, REWARD, SECONDS, STEPS, read_record

__all__ = ["timed_settings", "write_benchmark_metrics"]

BENCHMARK = "benchmark_metrics.json"
LAST_ROWS = 10
"""Iterations in the mean loss."""
HOW_PARALLEL = ("backend", "num_workers", "num_envs_per_worker", "parallel_start_method", "adaptive", *RECOVERY)


def timed_settings(file: str | os.PathLike[str] | None, flags: Mapping[str, Any], sequential: bool) -> dict[str, Any]:
    """A file's settings, with flags before them, as they fit this machine: as many envs in no more workers than cores.

    ``sequential``: the same work in one process; else with workers, whatever the file says. A file's ``batch_size`` is
    cut to what divides a rollout.
    """
    settings = dict(load_yaml(file)) if file else {}
    flags = {name: int(value) if isinstance(value, str) and value.isdigit() else value for name, value in flags.items()}
    fitting = ("auto", "serial") if sequential else ("auto", "process", "worker")
    if (asked := flags.get("backend", "auto")) not in fitting:
        raise UsageError(
            f"backend {asked}: this script trains {'in one process' if sequential else 'with workers'}; leave it out"
        )
    if sequential and (parallel := [name for name in HOW_PARALLEL if name in flags and name != "backend"]):
        named = ", ".join(f"--{name.replace('_', '-')}" for name in parallel)
        raise UsageError(f"this script trains in one process, which has no use for {named}; give --n-envs instead")
    if "n_envs" in flags and "num_envs_per_worker" not in flags:
        settings.pop("num_envs_per_worker", None)
    workers, each = settings.get("num_workers"), settings.get("num_envs_per_worker")
    envs, cores = flags.get("n_envs"), available_cores()
    most = min(cores, envs) if isinstance(envs, int) and envs > 0 else cores
    if "num_workers" not in flags and isinstance(workers, int) and workers > most:
        settings["num_workers"] = most
        if isinstance(each, int) and "num_envs_per_worker" not in flags:  # the same envs in fewer workers
            settings.setdefault("n_envs", workers * each)
            del settings["num_envs_per_worker"]
        if not sequential:
            here = "there is 1 core" if cores == 1 else f"there are {cores} cores"
            why = here if most == cores else "each has one env at least"
            print(f"num_workers {most} instead of the file's {workers}: {why}")
    settings |= flags
    if settings.get("backend", "auto") in ("auto", "serial"):
        settings["backend"] = "worker"
    workers, each = settings.get("num_workers"), settings.get("num_envs_per_worker")
    if sequential:
        if "n_envs" not in settings and isinstance(workers, int) and isinstance(each, int):
            settings["n_envs"] = workers * each
        settings = {name: value for name, value in settings.items() if name not in HOW_PARALLEL} | {"backend": "serial"}
    envs = settings.get("n_envs", workers * each if isinstance(workers, int) and isinstance(each, int) else None)
    steps, batch = settings.get("n_steps"), settings.get("batch_size")
    if "batch_size" not in flags and isinstance(envs, int) and isinstance(steps, int) and isinstance(batch, int):
        rollout = envs * steps
        fits = next((size for size in range(min(batch, rollout), 0, -1) if rollout % size == 0), batch)
        if fits != batch:
            settings["batch_size"] = fits
            print(f"batch_size {fits} instead of the file's {batch}: a rollout is {envs} envs x {steps} steps")
    return settings


def write_benchmark_metrics(run_dir: str | os.PathLike[str]) -> Path:
    """Write ``benchmark_metrics.json`` into a run directory, from the run's own files; returns its path.

    ``history`` holds one entry per iteration in each of its lists, with null where nothing was recorded.
    """
    run = read_record(run_dir, least_rows=0)
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
    replace_file(path, f"{json.dumps(metrics, indent=1, allow_nan=False)}\n".encode())
    return path
