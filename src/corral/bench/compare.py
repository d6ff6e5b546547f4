"""Compares two runs from the files in their directories: a table, a picture with four panels and a report."""

from __future__ import annotations

import itertools
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from corral.bench.comparison_plot import draw_comparison
from corral.config.schema import RESUMABLE, TrainConfig
from corral.core.errors import UsageError
from corral.storage.run_record import EPISODES, LOSS, REWARD, STEPS, Curve, RunRecord, read_record

__all__ = ["Comparison", "Row", "compare_records", "compare_runs"]

PICTURE, REPORT = "comparison.png", "comparison_report.txt"
RECENT = 100
"""Episodes in the mean reward that runs log."""
_EQUAL_SPEED = 0.05
"""Speeds that differ by a smaller fraction are called equal: two runs of the same command differ as much."""


class Row(NamedTuple):
    """A row of the table: the name of a quantity, and its value in each run."""

    name: str
    a: str
    b: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of a comparison of two runs, and the paths of its files."""

    names: tuple[str, str]
    rows: list[Row]
    differences: list[Row]
    """Settings that differ."""
    speed_up: float | None
    """Steps per second of the second run over those of the first; None if one of them is unknown."""
    notes: list[str]
    """What limits the comparison: different work, different seeds or few episodes."""
    conclusion: str
    picture: Path
    report: Path

    def as_text(self) -> str:
        """Return tables, notes and conclusion as plain text."""
        settings = ["Settings that differ", *_columns([Row("", *self.names), *self.differences])]
        if not self.differences:
            settings = ["The settings are the same."]
        parts = [_columns([Row("", *self.names), *self.rows]), settings, self.notes, [self.conclusion]]
        return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def compare_runs(
    a: str | os.PathLike[str],
    b: str | os.PathLike[str],
    output: str | os.PathLike[str] | None = None,
    names: tuple[str, str] = ("A", "B"),
) -> Comparison:
    """Compare two runs, finished or not, and write ``comparison.png`` and ``comparison_report.txt`` to ``output``.

    Without ``output`` they go to a new directory ``comparison-<date>-<time>`` beside run ``a``. The function reads only
    files; it imports no code that the runs name.
    """
    first, second = read_record(a), read_record(b)
    if first.path.resolve() == second.path.resolve():
        raise UsageError(f"{a} and {b} are the same run; give two")
    folder = _make_folder(output, first)
    comparison = compare_records(first, second, folder, names)
    try:
        _write_files(comparison, first, second)
    except OSError as error:
        raise UsageError(f"cannot write to {folder}: {error.strerror or error}; choose another --output") from None
    return comparison


def compare_records(a: RunRecord, b: RunRecord, folder: Path, names: tuple[str, str] = ("A", "B")) -> Comparison:
    """Return the comparison of two runs without writing it; ``folder`` is where its files would be."""
    common_reward, differences = _find_common_reward(a, b), _differences(a.config, b.config)
    speed_up = b.fps / a.fps if a.fps and b.fps is not None else None
    return Comparison(
        names=names,
        rows=_rows(a, b, speed_up, common_reward),
        differences=differences,
        speed_up=speed_up,
        notes=_notes(a, b, differences, common_reward),
        conclusion=_conclusion(names, a, b, common_reward),
        picture=folder / PICTURE,
        report=folder / REPORT,
    )


def _write_files(comparison: Comparison, a: RunRecord, b: RunRecord) -> None:
    names, speed_up = comparison.names, comparison.speed_up
    title = a.config.env if a.config.env == b.config.env else f"{a.config.env} and {b.config.env}"
    comparison.report.write_text(f"{title}\n\n{comparison.as_text()}", encoding="utf-8")
    speed = "" if speed_up is None else f": {names[1]} at {speed_up:.2f} × the steps per second of {names[0]}"
    labelled = [(f"{name} ({_describe_backend(run)})", run) for name, run in zip(names, (a, b), strict=True)]
    draw_comparison(comparison.picture, title + speed, labelled)


@dataclass(frozen=True, slots=True)
class _CommonReward:
    """The highest mean reward that both runs reached."""

    reward: float
    seconds_a: float
    """Seconds of training until the first run reached it."""
    seconds_b: float
    """Seconds of training until the second run reached it."""
    from_full_means: bool
    """Whether means over fewer than 100 episodes, which vary much, were left out."""


def _find_common_reward(a: RunRecord, b: RunRecord) -> _CommonReward | None:
    """Return the highest mean reward that both runs reached; None for different envs or without episodes."""
    if not _same_env(a, b):
        return None
    for since_episode in (RECENT, 0):
        curves = a.curve(REWARD, since_episode), b.curve(REWARD, since_episode)
        if all(curve.values for curve in curves):
            reward = min(max(curve.values) for curve in curves)
            seconds_a, seconds_b = (_seconds_until(reward, curve) for curve in curves)
            return _CommonReward(reward, seconds_a, seconds_b, from_full_means=since_episode > 0)
    return None


def _seconds_until(reward: float, curve: Curve) -> float:
    return next(seconds for seconds, value in zip(curve.seconds, curve.values, strict=True) if value >= reward)


def _rows(a: RunRecord, b: RunRecord, speed_up: float | None, common_reward: _CommonReward | None) -> list[Row]:
    rows = [
        Row("run", a.display_path, b.display_path),
        Row("env", a.config.env, b.config.env),
        Row("backend", a.config.backend, b.config.backend),
        Row("envs", f"{a.config.n_envs:,}", f"{b.config.n_envs:,}"),
        Row("workers", _workers(a), _workers(b)),
        Row("steps", f"{a.steps:,}", f"{b.steps:,}"),
        Row("seconds of training", _seconds(a.seconds), _seconds(b.seconds)),
        Row("steps per second", _number(a.fps, 0), _number(b.fps, 0)),
        Row("speed-up", "1.00", _number(speed_up, 2)),
        Row("episodes", _number(a.episodes, 0), _number(b.episodes, 0)),
        Row(f"mean reward, last {RECENT} episodes", _number(a.mean_reward, 2), _number(b.mean_reward, 2)),
    ]
    if a.best_eval_reward is not None or b.best_eval_reward is not None:
        rows.append(Row("best evaluation reward", _number(a.best_eval_reward, 2), _number(b.best_eval_reward, 2)))
    if common_reward is not None:
        times = _seconds(common_reward.seconds_a), _seconds(common_reward.seconds_b)
        rows.append(Row(f"seconds until reward {common_reward.reward:,.2f}", *times))
    return [*rows, Row("ended by", a.exit_reason, b.exit_reason)]


def _notes(a: RunRecord, b: RunRecord, differences: list[Row], common_reward: _CommonReward | None) -> list[str]:
    notes = []
    other_work = [row.name for row in differences if row.name not in RESUMABLE and row.name != "seed"]
    if other_work:
        notes.append(f"Not the same work: {', '.join(other_work)} differ, so this is more than a comparison of speed.")
    elif not any(row.name == "seed" for row in differences):
        n_equal, n_shared = _count_equal_iterations(a, b)
        if n_shared:
            notes.append(
                f"Same work, same seed: reward and loss are equal in {n_equal:,} of {n_shared:,} shared iterations."
            )
    else:
        notes.append("Same work, other seeds: rewards differ by chance; steps per second can be compared.")
    if common_reward is not None and not common_reward.from_full_means:
        notes.append(f"Few episodes: some means are over fewer than {RECENT} episodes and vary much.")
    return notes


def _count_equal_iterations(a: RunRecord, b: RunRecord) -> tuple[int, int]:
    """Return in how many iterations both runs logged equal results, and how many iterations both have."""

    def results(run: RunRecord) -> dict[float, tuple[float | None, ...]]:
        return {row[STEPS]: (row.get(EPISODES), row.get(REWARD), row.get(LOSS)) for row in run.rows}

    results_a, results_b = results(a), results(b)
    shared = results_a.keys() & results_b.keys()
    return sum(results_a[step] == results_b[step] for step in shared), len(shared)


def _conclusion(names: tuple[str, str], a: RunRecord, b: RunRecord, common_reward: _CommonReward | None) -> str:
    """Return a sentence: which run was faster, and when each reached the reward that both reached."""
    speed = _compare_speeds(names, a, b)
    if not _same_env(a, b):
        return f"{speed}; the envs differ, so rewards cannot be compared."
    if common_reward is None:
        return f"{speed}; rewards cannot be compared before both have finished an episode."
    return (
        f"{speed}; the best mean reward that both reached, {common_reward.reward:,.2f}, took {names[1]} "
        f"{_seconds(common_reward.seconds_b)} s and {names[0]} {_seconds(common_reward.seconds_a)} s."
    )


def _compare_speeds(names: tuple[str, str], a: RunRecord, b: RunRecord) -> str:
    """Return a clause that says which run was faster."""
    if not a.fps or not b.fps:
        return "The files do not contain the speeds of both runs"
    ratio, figures = b.fps / a.fps, f"{b.fps:,.0f} against {a.fps:,.0f} steps per second"
    if abs(ratio - 1) < _EQUAL_SPEED:
        return f"{names[1]} and {names[0]} were about as fast ({figures})"
    comparative = "faster" if ratio > 1 else "slower"
    return f"{names[1]} was {comparative} than {names[0]}, at {ratio:.2f} times its speed ({figures})"


def _differences(a: TrainConfig, b: TrainConfig) -> list[Row]:
    """Return the settings that differ, except for the run directory."""

    def format_setting(value: Any) -> str:
        return "not set" if value is None else str(value)

    settings_a, settings_b = a.model_dump(mode="json"), b.model_dump(mode="json")
    return [
        Row(name, format_setting(settings_a[name]), format_setting(settings_b[name]))
        for name in settings_a
        if name != "output_dir" and settings_a[name] != settings_b[name]
    ]


def _make_folder(output: str | os.PathLike[str] | None, a: RunRecord) -> Path:
    """Make the directory ``output``, or a new one beside run ``a``, and return its path."""
    if output is not None:
        folder = Path(output)
    else:
        parent, name = a.path.parent, f"comparison-{time.strftime('%Y%m%d-%H%M%S')}"
        if parent.is_relative_to(Path.cwd()):
            parent = parent.relative_to(Path.cwd())
        paths = (parent / (name if i == 1 else f"{name}-{i}") for i in itertools.count(1))
        folder = next(path for path in paths if not path.exists())
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"cannot make the directory {str(folder)!r}: {error.strerror or error}; choose another --output"
        ) from None
    return folder


def _same_env(a: RunRecord, b: RunRecord) -> bool:
    return (a.config.env, a.config.env_kwargs) == (b.config.env, b.config.env_kwargs)


def _describe_backend(run: RunRecord) -> str:
    if run.config.backend == "serial":
        return f"serial, {run.config.n_envs} envs"
    return f"{run.config.backend}, {run.config.n_envs} envs in {_workers(run)} workers"


def _workers(run: RunRecord) -> str:
    if run.config.backend == "serial":
        return "none"
    return "unknown" if run.num_workers is None else f"{run.num_workers:,}"


def _number(value: float | None, decimals: int) -> str:
    return "none" if value is None else f"{value:,.{decimals}f}"


def _seconds(value: float | None) -> str:
    return _number(value, 2 if value is not None and value < 10 else 1)


def _columns(rows: list[Row]) -> list[str]:
    """Return the rows as lines of text with aligned columns."""
    widths = [max(len(row[i]) for row in rows) for i in range(2)]
    return [f"  {row.name:<{widths[0]}}  {row.a:<{widths[1]}}  {row.b}".rstrip() for row in rows]
