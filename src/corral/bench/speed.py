"""Measures the speed of training, and where its time goes, from the metrics of a short training run."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym

from corral.storage.run_record import SECONDS, STEPS, RunRecord, read_record
from corral.training.api import train

__all__ = ["FIXED_SETTINGS", "TIME_PARTS", "Speed", "measure_speed", "median_speed"]

TIME_PARTS = ("step", "inference", "wait", "update", "copy")
"""Parts of an iteration's time: stepping envs, choosing actions, waiting for workers, gradient steps, and the rest
(copying weights to the workers, keeping what a checkpoint needs, writing metrics)."""
FIXED_SETTINGS = (
    "timesteps",
    "num_episodes",
    "duration",
    "output_dir",
    "backend",
    "eval_freq",
    "checkpoint_freq",
    "tensorboard",
    "hooks",
)
"""Settings that a measurement chooses itself."""
_NOTHING_BUT_TRAINING: dict[str, Any] = {"eval_freq": 0, "checkpoint_freq": 0, "tensorboard": False, "quiet": True}


@dataclass(frozen=True, slots=True)
class Speed:
    """The measured speed of a run."""

    backend: str
    n_envs: int
    num_workers: int
    fps: float
    """Steps per second, learning included."""
    steps: int
    """Steps of an iteration."""
    seconds: dict[str, float]
    """Seconds of an iteration, by the names in ``TIME_PARTS``."""
    memory_mb: float
    """Memory of all processes together."""


def measure_speed(env: str | Callable[..., gym.Env[Any, Any]], seconds: float, settings: Mapping[str, Any]) -> Speed:
    """Train for some seconds in a temporary run directory, and return the speed."""
    with tempfile.TemporaryDirectory(prefix="corral-") as directory:
        # learning_rate_end needs a number of steps, which a run of a given duration does not have.
        kept = {name: value for name, value in settings.items() if name != "learning_rate_end"}
        budget = {"duration": seconds / 3600, "output_dir": str(Path(directory) / "run")}
        result = train(env, **{**kept, **budget, **_NOTHING_BUT_TRAINING})
        return _speed_of(read_record(result.run_dir))


def median_speed(speeds: Sequence[Speed]) -> Speed:
    """Return the measurement with the median steps per second; of two in the middle, the slower one."""
    return sorted(speeds, key=lambda speed: speed.fps)[(len(speeds) - 1) // 2]


def _speed_of(record: RunRecord) -> Speed:
    config, rows = record.config, record.rows
    first, last = rows[0], rows[-1]
    if len(rows) > 2:  # leave the first iteration out, which is slower than the others
        fps = (last[STEPS] - first[STEPS]) / (last[SECONDS] - first[SECONDS])
        rows = rows[1:]
    else:
        fps = last[STEPS] / last[SECONDS]
    iteration_seconds = config.rollout_size / fps

    def median(name: str) -> float:
        return statistics.median(row[name] for row in rows)

    step, act, collect, update = (median(f"time/{part}_s") for part in ("step", "act", "collect", "update"))
    if config.overlap:  # workers step and act while the learner updates, so only the wait for them takes time
        step = act = 0.0
    wait = max(0.0, collect - step - act)
    copy = max(0.0, iteration_seconds - collect - update)
    return Speed(
        backend=config.backend,
        n_envs=config.n_envs,
        num_workers=config.num_workers or 1,
        fps=fps,
        steps=config.rollout_size,
        seconds=dict(zip(TIME_PARTS, (step, act, wait, update, copy), strict=True)),
        memory_mb=sum(value for name, value in last.items() if name.startswith("system/") and name.endswith("_mb")),
    )
