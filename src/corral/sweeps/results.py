"""The results of a sweep: tables of its trials, the best settings as a config file, and a plot."""

from __future__ import annotations

import csv
import io
import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corral.config.yaml_file import dump_yaml
from corral.core.files import replace_file
from corral.sweeps.presets import TrialEntry
from corral.sweeps.request import SweepRequest
from corral.sweeps.trial import numbers, read_summaries

__all__ = ["Result", "SweepResult", "best_of", "format_settings", "ranked", "read_results", "write_results"]

_COLOURS = {"complete": "#3b6fb6", "pruned": "#e07b28", "best": "#2f2f2f"}


@dataclass(frozen=True, slots=True)
class Result:
    """A trial with the numbers of its runs: means over its seeds, or None where no run has the number."""

    label: str
    varied: Mapping[str, Any]
    state: str
    """``complete``, ``pruned``, ``failed`` or ``begun``."""
    objective: float | None
    mean_reward: float | None
    eval_reward: float | None
    fps: float | None
    seconds: float | None
    steps: int | None
    path: Path
    error: str | None = None


@dataclass(frozen=True, slots=True)
class SweepResult:
    """The results of a sweep and the directory of its files."""

    sweep_dir: Path
    objective_name: str
    results: list[Result]
    best: Result | None
    """The best trial; None as long as no trial is complete."""

    @property
    def judged_by(self) -> str:
        """The former name of ``objective_name``."""
        return self.objective_name


def read_results(request: SweepRequest, entries: Sequence[TrialEntry], trials: Path) -> list[Result]:
    """Return the trials with the numbers in their run directories."""
    return [_read_result(entry, trials / entry.label, request.all_seeds) for entry in entries]


def best_of(results: Sequence[Result]) -> Result | None:
    """Return the complete trial with the highest objective; among equals, the one with the higher mean reward."""
    complete = [result for result in results if result.state == "complete" and result.objective is not None]
    return max(complete, key=_rank_key, default=None)


def ranked(results: Sequence[Result]) -> list[Result]:
    """Return the complete trials, best first, then those that are pruned, begun and failed."""
    states = ("complete", "pruned", "begun", "failed")
    best_first = sorted(results, key=_rank_key, reverse=True)
    return sorted(best_first, key=lambda result: states.index(result.state))


def write_results(directory: Path, request: SweepRequest, results: Sequence[Result], with_plot: bool) -> None:
    """Write ``results.csv``, ``results.md``, ``best.yaml`` and, if ``with_plot``, ``sweep.png``, each atomically."""
    best = best_of(results)
    replace_file(directory / "results.csv", _csv(request, results).encode())
    replace_file(directory / "results.md", _markdown(request, results, best).encode())
    if best is not None:
        config = request.config_of(best.varied).model_copy(update={"output_dir": None})
        seeds = f", mean over {request.seeds} seeds" if request.seeds > 1 else ""
        achieved = f"{request.objective_name} {best.objective:,.2f}{seeds}"
        head = f"# The best of {len(results)} trials, {best.label}: {achieved}.\n"
        replace_file(directory / "best.yaml", (head + dump_yaml(config)).encode())
    if with_plot:
        replace_file(directory / "sweep.png", _plot(request, results))


def format_setting(value: Any) -> str:
    """Return a setting as a short text for people."""
    if isinstance(value, Mapping):
        if value.keys() == {"pi", "vf"} and list(value["pi"]) == list(value["vf"]):
            return format_setting(value["pi"])
        return " ".join(f"{name}={format_setting(part)}" for name, part in value.items())
    if isinstance(value, list | tuple):
        return " ".join(map(str, value))
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def format_settings(settings: Mapping[str, Any]) -> str:
    """Return several settings as a text for people."""
    return ", ".join(f"{name} {format_setting(value)}" for name, value in settings.items())


def _rank_key(result: Result) -> tuple[float, float]:
    return _or_lowest(result.objective), _or_lowest(result.mean_reward)


def _or_lowest(value: float | None) -> float:
    return float("-inf") if value is None else value


def _read_result(entry: TrialEntry, path: Path, seeds: Sequence[int]) -> Result:
    summaries = read_summaries(path, seeds)

    def mean(name: str) -> float | None:
        values = numbers(summaries, name)
        return statistics.fmean(values) if values else None

    steps = mean("steps")
    return Result(
        label=entry.label,
        varied=entry.varied,
        state=entry.state,
        objective=entry.objective,
        mean_reward=mean("mean_reward"),
        eval_reward=mean("eval_reward"),
        fps=mean("fps"),
        seconds=mean("seconds"),
        steps=None if steps is None else round(steps),
        path=path,
        error=entry.error,
    )


def _varied_names(results: Sequence[Result]) -> list[str]:
    """Return the names of all settings in which trials differ."""
    return list(dict.fromkeys(name for result in results for name in result.varied))


def _csv(request: SweepRequest, results: Sequence[Result]) -> str:
    """Return the table of trials, in the order in which they began, as CSV."""
    columns = ("objective", "mean_reward", "eval_reward", "fps", "seconds", "steps")
    varied_names = _varied_names(results)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["trial", "state", *columns, *varied_names, "error"])
    for result in results:
        config = request.config_of(result.varied)
        values = [getattr(result, name) for name in columns]
        settings = [_cell(result.varied.get(name, getattr(config, name))) for name in varied_names]
        first_error_line = (result.error or "").partition("\n")[0]
        writer.writerow([result.label, result.state, *values, *settings, first_error_line])
    return text.getvalue()


def _cell(value: Any) -> Any:
    """Return a setting for programs to read: a number keeps all its digits."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) else format_setting(value)


def _markdown(request: SweepRequest, results: Sequence[Result], best: Result | None) -> str:
    """Return the table of trials, best first, as Markdown."""
    lines = [f"# {request.env}: {len(results)} trials, judged by {request.objective_name}", ""]
    if request.seeds > 1:
        lines += [f"Numbers are means over {request.seeds} seeds.", ""]
    lines += [
        "| trial | settings | mean reward | evaluation reward | steps/s | seconds | |",
        "|---|---|---|---|---|---|---|",
    ]
    for result in ranked(results):
        cells = [
            _format_number(result.mean_reward, 2),
            _format_number(result.eval_reward, 2),
            _format_number(result.fps, 0),
            _format_number(result.seconds, 1),
        ]
        remark = "best" if result is best else "" if result.state == "complete" else result.state
        lines.append(f"| {' | '.join([result.label, format_settings(result.varied), *cells, remark])} |")
    if best is not None:
        lines += ["", "The best settings are in `best.yaml`: `corral train --config best.yaml`."]
    return "\n".join(lines) + "\n"


def _format_number(value: float | None, decimals: int) -> str:
    return "" if value is None else f"{value:,.{decimals}f}"


def _plot(request: SweepRequest, results: Sequence[Result]) -> bytes:
    """Return a PNG: the objective of each trial in the order in which they began, and the best so far."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    order = {result.label: i for i, result in enumerate(results)}
    complete = [result for result in results if result.state == "complete"]
    pruned = [result for result in results if result.state == "pruned" and result.mean_reward is not None]
    positions, objectives = [order[r.label] for r in complete], [_or_lowest(r.objective) for r in complete]
    axes.plot(positions, objectives, "o", color=_COLOURS["complete"], label="trial")
    if pruned:
        rewards = [result.mean_reward or 0.0 for result in pruned]
        label = "pruned (mean reward when stopped)"
        axes.plot([order[r.label] for r in pruned], rewards, "x", color=_COLOURS["pruned"], label=label)
    if complete:
        best = [*itertools.accumulate(objectives, max)]
        ends = [*positions, len(results) - 1]
        axes.step(ends, [*best, best[-1]], where="post", color=_COLOURS["best"], linewidth=1, label="best so far")
        axes.legend(frameon=False)
    axes.set_title(request.env.replace("$", r"\$"), loc="left", fontweight="bold")
    axes.set(xlabel="trial", ylabel=request.objective_name)
    if request.presets is not None:
        axes.set_xticks(range(len(results)), [result.label for result in results])
    else:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    file = io.BytesIO()
    figure.savefig(file, dpi=110, format="png")
    return file.getvalue()
