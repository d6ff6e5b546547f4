"""What a run left behind, as numbers: read from its files alone, whether it finished, was stopped or was killed.

Nothing that a run directory names is imported.
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
from corral.storage.run_dir import MOST_SUMMARY, find_run

__all__ = ["EPISODES", "FPS", "LOSS", "REWARD", "SECONDS", "STEPS", "Curve", "RunRecord", "read_record"]

STEPS, SECONDS, FPS = "time/total_timesteps", "time/time_elapsed", "time/fps"
REWARD, EPISODES, LOSS = "rollout/ep_rew_mean", "rollout/episodes", "train/loss"
EVALUATION = "eval/mean_reward"
_COMPARED = ("time/", "system/", REWARD, EPISODES, LOSS, EVALUATION)
"""Beginnings of the names of metrics that are read."""


@dataclass(frozen=True, slots=True)
class Curve:
    """A number over time; both lists are equally long."""

    seconds: list[float]
    """Of training since the first step, evaluation left out."""
    values: list[float]


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One run as its files tell it. What a run did not get to is None."""

    path: Path
    display_path: str
    """The path as the user knows it."""
    config: TrainConfig
    rows: list[dict[str, float]]
    """One per iteration, with only finite numbers in it, and of those what is compared."""
    summary: dict[str, Any]
    """``summary.json``, or empty if the run has none or went on after it was written."""

    def column(self, name: str) -> list[float | None]:
        """One metric, iteration by iteration, with None where there is none."""
        return [row.get(name) for row in self.rows]

    def curve(self, name: str, since_episode: int = 0) -> Curve:
        """One metric over time, where it is known; ``since_episode`` leaves out what came before so many episodes."""
        rows = [row for row in self.rows if SECONDS in row and name in row and row.get(EPISODES, 0) >= since_episode]
        return Curve([row[SECONDS] for row in rows], [row[name] for row in rows])

    @property
    def speed_curve(self) -> Curve:
        """Steps per second around each moment: over one iteration, or over a fiftieth of the run if it has many."""
        steps = self.curve(STEPS)
        window = max(1, len(steps.values) // 50)
        at = [(0.0, 0.0), *zip(steps.seconds, steps.values, strict=True)]
        spans = [(at[max(0, i - window)], at[i]) for i in range(1, len(at))]
        spans = [(before, now) for before, now in spans if now[0] > before[0]]
        return Curve([now[0] for _, now in spans], [(now[1] - b[1]) / (now[0] - b[0]) for b, now in spans])

    @property
    def steps(self) -> int:
        """Steps taken, all envs together."""
        return int(self._last(STEPS) or 0)

    @property
    def seconds(self) -> float | None:
        """Seconds of training, evaluation left out."""
        return self._last(SECONDS)

    @property
    def fps(self) -> float | None:
        """Steps per second over the whole run, learning included."""
        return self.steps / self.seconds if self.seconds else self._last(FPS)

    @property
    def episodes(self) -> int | None:
        """Episodes finished."""
        last = self._last(EPISODES)
        return None if last is None else int(last)

    @property
    def mean_reward(self) -> float | None:
        """Mean reward of the last 100 episodes."""
        return self._last(REWARD)

    @property
    def best_eval_reward(self) -> float | None:
        """The best evaluation, if there was one."""
        return max((row[EVALUATION] for row in self.rows if EVALUATION in row), default=None)

    @property
    def num_workers(self) -> int | None:
        """Processes that step envs; 1 if all are stepped in the main process."""
        if self.config.backend == "serial":
            return 1
        recorded = self.summary.get("num_workers")
        return self.config.num_workers or (recorded if isinstance(recorded, int) else None)

    @property
    def ended_by(self) -> str:
        """The budget, signal or failure that ended the run."""
        return one_line(self.summary.get("exit_reason", "not finished"))

    def _last(self, name: str) -> float | None:
        return next((row[name] for row in reversed(self.rows) if name in row), None)


def read_record(run: str | os.PathLike[str], least_rows: int = 1) -> RunRecord:
    """Read a run directory (or ``latest``). One that completed fewer than ``least_rows`` iterations is an error."""
    directory = find_run(run)
    try:
        config = directory.read_config()
    except UsageError as error:
        raise UsageError(f"{directory.display_path} is not a run that can be read: {error}") from None
    try:
        rows = [row for line in iterate_metrics(directory.metrics_file) if STEPS in (row := _numbers(line.row))]
    except FileNotFoundError:
        rows = []
    except OSError as error:
        raise UsageError(f"cannot read {directory.display_path}/metrics.jsonl: {error.strerror or error}") from None
    if len(rows) < least_rows:
        raise UsageError(
            f"{directory.display_path} has no metrics yet: its metrics.jsonl should hold a line per iteration; "
            "choose a run that completed at least one"
        )
    summary = _summary(directory.summary_file)
    if summary.get("steps") != (rows[-1][STEPS] if rows else 0):
        summary = {}  # it went on afterwards, and was killed
    return RunRecord(directory.path, directory.display_path, config, rows, summary)


def _numbers(row: dict[str, Any]) -> dict[str, float]:
    return {
        str(name): value
        for name, value in row.items()
        if name.startswith(_COMPARED) and isinstance(value, int | float) and not isinstance(value, bool)
        if math.isfinite(value)
    }


def _summary(path: Path) -> dict[str, Any]:
    try:
        summary = read_json(path, MOST_SUMMARY)
    except (OSError, ValueError):
        return {}
    return summary if isinstance(summary, dict) else {}
