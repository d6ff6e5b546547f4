"""Two runs side by side: a table, a picture with four panels and a report, from the files of their directories."""

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
from corral.storage.run_record import EPISODES, LOSS, REWARD, STEPS, RunRecord, read_record

__all__ = ["Comparison", "Row", "compare_records", "compare_runs"]

PICTURE, REPORT = "comparison.png", "comparison_report.txt"
RECENT = 100
"""Episodes in the mean that the runs log."""
_ALIKE = 0.05
"""Speeds that differ by less are called equal: two runs of the same command differ as much."""


class Row(NamedTuple):
    """A line of the table: what, and what it was in each run."""

    name: str
    a: str
    b: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two runs side by side, and where that is written down."""

    names: tuple[str, str]
    rows: list[Row]
    differences: list[Row]
    """Settings that are not the same in both."""
    speed_up: float | None
    """Steps per second of the second over those of the first."""
    notes: list[str]
    """What a reader should know before believing the table."""
    conclusion: str
    picture: Path
    report: Path

    def as_text(self) -> str:
        """All of it but the picture, as plain text."""
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

    Without ``output`` they go to a new directory ``comparison-<date>-<time>`` beside run ``a``. Only files are read:
    nothing that the runs name is imported.
    """
    first, second = read_record(a), read_record(b)
    if first.path.resolve() == second.path.resolve():
        raise UsageError(f"{a} and {b} are the same run; give two")
    folder = _make_folder(output, first)
    comparison = compare_records(first, second, folder, names)
    try:
        _write(comparison, first, second)
    except OSError as error:
        raise UsageError(f"cannot write to {folder}: {error.strerror or error}; choose another --output") from None
    return comparison


def compare_records(a: RunRecord, b: RunRecord, folder: Path, names: tuple[str, str] = ("A", "B")) -> Comparison:
    """The same for runs that were read already, with nothing written: ``folder`` is where it would be."""
    reach, differences = _common_reward(a, b), _differences(a.config, b.config)
    speed_up = b.fps / a.fps if a.fps and b.fps is not None else None
    return Comparison(
        names=names,
        rows=_rows(a, b, speed_up, reach),
        differences=differences,
        speed_up=speed_up,
        notes=_notes(a, b, differences, reach),
        conclusion=_conclusion(names, a, b, reach),
        picture=folder / PICTURE,
        report=folder / REPORT,
    )


def _write(comparison: Comparison, a: RunRecord, b: RunRecord) -> None:
    names, faster = comparison.names, comparison.speed_up
    title = a.config.env if a.config.env == b.config.env else f"{a.config.env} and {b.config.env}"
    comparison.report.write_text(f"{title}\n\n{comparison.as_text()}", encoding="utf-8")
    speed = "" if faster is None else f": {names[1]} at {faster:.2f} × the steps per second of {names[0]}"
    labelled = [(f"{name} ({_where(run)})", run) for name, run in zip(names, (a, b), strict=True)]
    draw_comparison(comparison.picture, title + speed, labelled)


@dataclass(frozen=True, slots=True)
class _Reach:
    """The highest mean reward that both runs reached, and how many seconds each trained until it first did."""

    reward: float
    a: float
    b: float
    full: bool
    """Whether means over fewer than 100 episodes, which jump about, were left out."""


def _common_reward(a: RunRecord, b: RunRecord) -> _Reach | None:
    if not _same_env(a, b):
        return None  # a reward here is not a reward there
    for since in (RECENT, 0):
        curves = a.curve(REWARD, since), b.curve(REWARD, since)
        if all(curve.values for curve in curves):
            reward = min(max(curve.values) for curve in curves)
            first = [
                next(s for s, value in zip(curve.seconds, curve.values, strict=True) if value >= reward)
                for curve in curves
            ]
            return _Reach(reward, first[0], first[1], full=since > 0)
    return None


def _rows(a: RunRecord, b: RunRecord, speed_up: float | None, reach: _Reach | None) -> list[Row]:
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
    if reach is not None:
        rows.append(Row(f"seconds until reward {reach.reward:,.2f}", _seconds(reach.a), _seconds(reach.b)))
    return [*rows, Row("ended by", a.ended_by, b.ended_by)]


def _notes(a: RunRecord, b: RunRecord, differences: list[Row], reach: _Reach | None) -> list[str]:
    notes = []
    other_work = [row.name for row in differences if row.name not in RESUMABLE and row.name != "seed"]
    if other_work:
        notes.append(f"Not the same work: {', '.join(other_work)} differ, so this is more than a comparison of speed.")
    elif not any(row.name == "seed" for row in differences):
        same, shared = _equal_iterations(a, b)
        if shared:
            notes.append(
                f"Same work, same seed: reward and loss are equal in {same:,} of {shared:,} shared iterations."
            )
    else:
        notes.append("Same work, other seeds: rewards differ by luck; steps per second can be compared.")
    if reach is not None and not reach.full:
        notes.append(f"Few episodes: some means are over fewer than {RECENT} of them and jump about.")
    return notes


def _equal_iterations(a: RunRecord, b: RunRecord) -> tuple[int, int]:
    """In how many of the iterations that both runs made they learned the same, bit for bit; and how many those are."""

    def learned(run: RunRecord) -> dict[float, tuple[float | None, ...]]:
        return {row[STEPS]: (row.get(EPISODES), row.get(REWARD), row.get(LOSS)) for row in run.rows}

    first, second = learned(a), learned(b)
    shared = first.keys() & second.keys()
    return sum(first[step] == second[step] for step in shared), len(shared)


def _conclusion(names: tuple[str, str], a: RunRecord, b: RunRecord, reach: _Reach | None) -> str:
    """One sentence: who was faster, and who was sooner at the reward that both reached."""
    if not a.fps or not b.fps:
        speed = "The files do not tell how fast both runs were"
    else:
        ratio, figures = b.fps / a.fps, f"{b.fps:,.0f} against {a.fps:,.0f} steps per second"
        if abs(ratio - 1) < _ALIKE:
            speed = f"{names[1]} and {names[0]} were about as fast ({figures})"
        else:
            fast = "faster" if ratio > 1 else "slower"
            speed = f"{names[1]} was {fast} than {names[0]}, at {ratio:.2f} times its speed ({figures})"
    if not _same_env(a, b):
        return f"{speed}; the envs differ, so rewards cannot be compared."
    if reach is None:
        return f"{speed}; rewards cannot be compared before both have finished an episode."
    return (
        f"{speed}; the best mean reward that both reached, {reach.reward:,.2f}, "
        f"took {names[1]} {_seconds(reach.b)} s and {names[0]} {_seconds(reach.a)} s."
    )


def _differences(a: TrainConfig, b: TrainConfig) -> list[Row]:
    def said(value: Any) -> str:
        return "not set" if value is None else str(value)

    first, second = a.model_dump(mode="json"), b.model_dump(mode="json")
    names = (name for name in first if name != "output_dir" and first[name] != second[name])
    return [Row(name, said(first[name]), said(second[name])) for name in names]


def _make_folder(output: str | os.PathLike[str] | None, a: RunRecord) -> Path:
    if output is not None:
        folder = Path(output)
    else:
        beside, stem = a.path.parent, f"comparison-{time.strftime('%Y%m%d-%H%M%S')}"
        if beside.is_relative_to(Path.cwd()):
            beside = beside.relative_to(Path.cwd())
        names = (beside / (stem if i == 1 else f"{stem}-{i}") for i in itertools.count(1))
        folder = next(path for path in names if not path.exists())
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"cannot make the directory {str(folder)!r}: {error.strerror or error}; choose another --output"
        ) from None
    return folder


def _same_env(a: RunRecord, b: RunRecord) -> bool:
    return (a.config.env, a.config.env_kwargs) == (b.config.env, b.config.env_kwargs)


def _where(run: RunRecord) -> str:
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
    widths = [max(len(row[i]) for row in rows) for i in range(2)]
    return [f"  {row.name:<{widths[0]}}  {row.a:<{widths[1]}}  {row.b}".rstrip() for row in rows]
