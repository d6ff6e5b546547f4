"""How fast a run really is, and where its time goes: a short run of the real thing, read from its own metrics."""

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

__all__ = ["DECIDED", "PARTS", "Speed", "measure_speed", "median_speed"]

PARTS = ("step", "inference", "wait", "update", "copy")
"""Where the time of an iteration goes: stepping envs, choosing actions, waiting for workers, gradient steps, and the
rest (weights to the workers, keeping what a checkpoint needs, writing metrics)."""
DECIDED = (
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
"""Settings that a timed run has of its own."""
_QUIET: dict[str, Any] = {"eval_freq": 0, "checkpoint_freq": 0, "tensorboard": False, "quiet": True}


@dataclass(frozen=True, slots=True)
class Speed:
    """A measured way to run."""

    backend: str
    n_envs: int
    num_workers: int
    fps: float
    """Steps per second, learning included."""
    steps: int
    """Of an iteration."""
    seconds: dict[str, float]
    """Of an iteration, by part."""
    memory_mb: float
    """Of all processes together."""


def measure_speed(env: str | Callable[..., gym.Env[Any, Any]], seconds: float, settings: Mapping[str, Any]) -> Speed:
    """Train for so many seconds, in a directory that is thrown away."""
    with tempfile.TemporaryDirectory(prefix="corral-") as directory:
        wanted = {name: value for name, value in settings.items() if name != "learning_rate_end"}
        budget = {"duration": seconds / 3600, "output_dir": str(Path(directory) / "run")}
        result = train(env, **{**wanted, **budget, **_QUIET})
        return _speed(read_record(result.run_dir))


def median_speed(speeds: Sequence[Speed]) -> Speed:
    """The middle one of several measurements of the same; the slower of the two in the middle."""
    return sorted(speeds, key=lambda speed: speed.fps)[(len(speeds) - 1) // 2]


def _speed(record: RunRecord) -> Speed:
    rows = record.rows
    first, last = rows[0], rows[-1]
    if len(rows) > 2:  # what is new is slow: leave the first iteration out
        fps = (last[STEPS] - first[STEPS]) / (last[SECONDS] - first[SECONDS])
        rows = rows[1:]
    else:
        fps = last[STEPS] / last[SECONDS]
    whole = record.config.rollout_size / fps

    def median(name: str) -> float:
        return statistics.median(row[name] for row in rows)

    step, act, collect, update = (median(f"time/{part}_s") for part in ("step", "act", "collect", "update"))
    if record.config.overlap:  # stepping and acting happen beside the update: what shows of them is the wait
        step = act = 0.0
    parts = (step, act, max(0.0, collect - step - act), update, max(0.0, whole - collect - update))
    memory = sum(value for name, value in last.items() if name.startswith("system/") and name.endswith("_mb"))
    config = record.config
    seconds = dict(zip(PARTS, parts, strict=True))
    how = config.backend, config.n_envs, config.num_workers or 1
    return Speed(*how, fps, config.rollout_size, seconds, memory)
