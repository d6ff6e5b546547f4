"""Runs of a given duration: settings adapted to the machine, and ``benchmark_metrics.json`` with the results."""

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
_WORKER_SETTINGS = (
    "backend",
    "num_workers",
    "num_envs_per_worker",
    "parallel_start_method",
    "adaptive",
    *RECOVERY,
)
"""Settings that mean nothing for training in one process."""


def timed_settings(file: str | os.PathLike[str] | None, flags: Mapping[str, Any], sequential: bool) -> dict[str, Any]:
    """Return the settings of a config file, overridden by ``flags`` and adapted to this machine.

    With ``sequential`` they train in one process with as many envs as the workers have together. Otherwise they train
    with workers, whatever backend the file names. If the flags do not set them, the file's ``num_workers`` becomes at
    most the number of cores and its ``batch_size`` a divisor of the rollout. A printed line says so.
    """
    flags = {name: int(value) if isinstance(value, str) and value.isdigit() else value for name, value in flags.items()}
    _check_flags(flags, sequential)
    settings = dict(load_yaml(file)) if file else {}
    if "n_envs" in flags and "num_envs_per_worker" not in flags:
        settings.pop("num_envs_per_worker", None)  # the two would contradict each other
    if "num_workers" not in flags:
        _limit_workers(settings, flags, silent=sequential)
    settings |= flags
    settings = _without_workers(settings) if sequential else _with_workers(settings)
    if "batch_size" not in flags:
        _fit_batch_size(settings)
    return settings


def _check_flags(flags: Mapping[str, Any], sequential: bool) -> None:
    """Raise ``UsageError`` for flags that contradict how the script trains."""
    backend = flags.get("backend", "auto")
    if backend not in (("auto", "serial") if sequential else ("auto", "process", "worker")):
        raise UsageError(
            f"backend {backend}: this script trains {'in one process' if sequential else 'with workers'}; leave it out"
        )
    worker_flags = [name for name in _WORKER_SETTINGS if name in flags and name != "backend"]
    if sequential and worker_flags:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in worker_flags)
        raise UsageError(f"this script trains in one process, which has no use for {names}; give --n-envs instead")


def _limit_workers(settings: dict[str, Any], flags: Mapping[str, Any], silent: bool) -> None:
    """Change the file's ``settings`` to no more workers than there are cores, or envs in ``flags``.

    The number of envs stays: fewer workers get more envs each, unless the flags say how many each has.
    """
    workers, n_envs, cores = settings.get("num_workers"), flags.get("n_envs"), available_cores()
    most = min(cores, n_envs) if isinstance(n_envs, int) and n_envs > 0 else cores
    if not isinstance(workers, int) or workers <= most:
        return
    settings["num_workers"] = most
    envs_per_worker = settings.get("num_envs_per_worker")
    if isinstance(envs_per_worker, int) and "num_envs_per_worker" not in flags:
        settings.setdefault("n_envs", workers * envs_per_worker)
        del settings["num_envs_per_worker"]
    if not silent:
        here = "there is 1 core" if cores == 1 else f"there are {cores} cores"
        reason = here if most == cores else "each has one env at least"
        print(f"num_workers {most} instead of the file's {workers}: {reason}")


def _with_workers(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings with a backend that has workers."""
    uses_workers = settings.get("backend", "auto") not in ("auto", "serial")
    return settings if uses_workers else settings | {"backend": "worker"}


def _without_workers(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings for as many envs in one process."""
    n_envs = _number_of_envs(settings)
    kept = {name: value for name, value in settings.items() if name not in _WORKER_SETTINGS}
    return kept | ({} if n_envs is None else {"n_envs": n_envs}) | {"backend": "serial"}


def _fit_batch_size(settings: dict[str, Any]) -> None:
    """Change ``batch_size`` to the largest one that is not larger and divides the rollout."""
    n_envs, n_steps, batch_size = _number_of_envs(settings), settings.get("n_steps"), settings.get("batch_size")
    if not (isinstance(n_envs, int) and isinstance(n_steps, int) and isinstance(batch_size, int)):
        return  # something is missing, or wrong and refused later
    rollout_size = n_envs * n_steps
    divisors = (size for size in range(min(batch_size, rollout_size), 0, -1) if rollout_size % size == 0)
    fitting = next(divisors, batch_size)
    if fitting != batch_size:
        settings["batch_size"] = fitting
        print(f"batch_size {fitting} instead of the file's {batch_size}: a rollout is {n_envs} envs x {n_steps} steps")


def _number_of_envs(settings: Mapping[str, Any]) -> Any:
    """Return ``n_envs``, or the envs of all workers together; None if the settings say neither."""
    if "n_envs" in settings:
        return settings["n_envs"]
    workers, envs_per_worker = settings.get("num_workers"), settings.get("num_envs_per_worker")
    return workers * envs_per_worker if isinstance(workers, int) and isinstance(envs_per_worker, int) else None


def write_benchmark_metrics(run_dir: str | os.PathLike[str]) -> Path:
    """Write ``benchmark_metrics.json`` into a run directory, from the run's files, and return its path.

    Each list in ``history`` has one entry per iteration, which is null where nothing was recorded.
    """
    run = read_record(run_dir, min_rows=0)
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
