"""Reads the metrics, config and summary of a run from its files, whether it finished, was stopped or was killed.

This imports no code that the run directory names.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corral.config.schema import TrainConfig
from corral.core.errors import UsageError, one_line
from corral.core.files import read_json
from corral.storage.metrics_file import iterate_metrics
from corral.storage.run_dir import MAX_SUMMARY_BYTES, find_run

__all__ = ["EPISODES", "FPS", "LOSS", "REWARD", "SECONDS", "STEPS", "Curve", "RunRecord", "read_record"]

# Names of metrics.
STEPS, SECONDS, FPS = "time/total_timesteps", "time/time_elapsed", "time/fps"
REWARD, EPISODES, LOSS = "rollout/ep_rew_mean", "rollout/episodes", "train/loss"
EVALUATION = "eval/mean_reward"
_METRIC_PREFIXES = ("time/", "system/", REWARD, EPISODES, LOSS, EVALUATION)
"""Prefixes of the metrics that are read; the others are not compared, and would take memory."""


@dataclass(frozen=True, slots=True)
class Curve:
    """The values of a metric over time; both lists are equally long."""

    seconds: list[float]
    """Seconds of training since the first step, without evaluation."""
    values: list[float]


@dataclass(frozen=True, slots=True)
class RunRecord:
    """The metrics, config and summary of a run. Values that the run did not reach are None."""

    path: Path
    display_path: str
    """The path as the user gave it."""
    config: TrainConfig
    rows: list[dict[str, float]]
    """The metrics of each iteration that are finite and begin with one of ``_METRIC_PREFIXES``."""
    summary: dict[str, Any]
    """The data of ``summary.json``; empty if there is none, or if the run was resumed after it was written."""

    def column(self, name: str) -> list[float | None]:
        """Return the values of a metric in each iteration; None where it is missing."""
        return [row.get(name) for row in self.rows]

    def curve(self, name: str, since_episode: int = 0) -> Curve:
        """Return a metric over time, without rows before ``since_episode`` episodes or without the metric."""
        rows = [row for row in self.rows if SECONDS in row and name in row and row.get(EPISODES, 0) >= since_episode]
        return Curve([row[SECONDS] for row in rows], [row[name] for row in rows])

    @property
    def speed_curve(self) -> Curve:
        """Steps per second over time: over the last iteration, or the last fiftieth of the run's iterations."""
        curve = self.curve(STEPS)
        window = max(1, len(curve.values) // 50)
        seconds, steps = [0.0, *curve.seconds], [0.0, *curve.values]
        speeds = Curve([], [])
        for i in range(1, len(seconds)):
            start = max(0, i - window)
            if seconds[i] > seconds[start]:
                speeds.seconds.append(seconds[i])
                speeds.values.append((steps[i] - steps[start]) / (seconds[i] - seconds[start]))
        return speeds

    @property
    def steps(self) -> int:
        """Steps taken in all envs together."""
        return int(self._last(STEPS) or 0)

    @property
    def seconds(self) -> float | None:
        """Seconds of training, without evaluation."""
        return self._last(SECONDS)

    @property
    def fps(self) -> float | None:
        """Steps per second over the whole run, including the updates."""
        return self.steps / self.seconds if self.seconds else self._last(FPS)

    @property
    def episodes(self) -> int | None:
        """Number of episodes that ended."""
        episodes = self._last(EPISODES)
        return None if episodes is None else int(episodes)

    @property
    def mean_reward(self) -> float | None:
        """Mean reward of the last 100 episodes."""
        return self._last(REWARD)

    @property
    def best_eval_reward(self) -> float | None:
        """Mean reward of the best evaluation, if there was one."""
        return max((row[EVALUATION] for row in self.rows if EVALUATION in row), default=None)

    @property
    def num_workers(self) -> int | None:
        """Number of processes that step envs; 1 if the main process steps them."""
        if self.config.backend == "serial":
            return 1
        recorded = self.summary.get("num_workers")
        return self.config.num_workers or (recorded if isinstance(recorded, int) else None)

    @property
    def exit_reason(self) -> str:
        """The budget, signal or failure that ended the run."""
        return one_line(self.summary.get("exit_reason", "not finished"))

    def _last(self, name: str) -> float | None:
        """Return the last value of a metric; None if it never occurs."""
        return next((row[name] for row in reversed(self.rows) if name in row), None)


def read_record(run: str | os.PathLike[str], min_rows: int = 1) -> RunRecord:
    """Return the record of a run directory, or of the newest run for ``latest``.

    Raise a UsageError if the directory cannot be read or has fewer than ``min_rows`` rows of metrics.
    """
    directory = find_run(run)
    try:
        config = directory.read_config()
    except UsageError as error:
        raise UsageError(f"{directory.display_path} is not a run that can be read: {error}") from None
    try:
        rows = [row for line in iterate_metrics(directory.metrics_file) if STEPS in (row := _read_numbers(line.row))]
    except FileNotFoundError:
        rows = []
    except OSError as error:
        raise UsageError(f"cannot read {directory.display_path}/metrics.jsonl: {error.strerror or error}") from None
    if len(rows) < min_rows:
        raise UsageError(
            f"{directory.display_path} has no metrics yet: its metrics.jsonl should hold a line per iteration; "
            "choose a run that completed at least one"
        )
    summary = _read_summary(directory.summary_file)
    if summary.get("steps") != (rows[-1][STEPS] if rows else 0):
        summary = {}  # the run was resumed later and killed, so the summary is old
    return RunRecord(directory.path, directory.display_path, config, rows, summary)


def _read_numbers(row: dict[str, Any]) -> dict[str, float]:
    """Return the finite numbers of a row of which the name begins with one of ``_METRIC_PREFIXES``."""
    return {
        str(name): value
        for name, value in row.items()
        if name.startswith(_METRIC_PREFIXES) and isinstance(value, int | float) and not isinstance(value, bool)
        if math.isfinite(value)
    }


def _read_summary(path: Path) -> dict[str, Any]:
    """Return the data of a ``summary.json``; empty if it is missing or damaged."""
    try:
        summary = read_json(path, MAX_SUMMARY_BYTES)
    except (OSError, ValueError):
        return {}
    return summary if isinstance(summary, dict) else {}
