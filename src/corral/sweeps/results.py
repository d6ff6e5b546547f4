"""What a sweep leaves behind besides its runs: tables, the best settings as a config, and a picture."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corral.config.yaml_file import dump_yaml
from corral.core.files import replace_file
from corral.sweeps.presets import Entry
from corral.sweeps.request import SweepRequest
from corral.sweeps.trial import numbers, read_summaries

__all__ = ["Result", "SweepResult", "best_of", "format_setting", "ranked", "read_results", "write_results"]

_COLOURS = {"complete": "#3b6fb6", "pruned": "#e07b28", "best": "#2f2f2f"}


@dataclass(frozen=True, slots=True)
class Result:
    """A trial and what its runs did; numbers are means over its seeds, None where there are none."""

    label: str
    varied: Mapping[str, Any]
    state: str
    """complete, pruned, failed, or begun."""
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
    """Where a sweep's files are, and what came of its trials."""

    sweep_dir: Path
    objective_name: str
    results: list[Result]
    best: Result | None
    """None as long as no trial is complete."""


def read_results(request: SweepRequest, entries: Sequence[Entry], trials: Path) -> list[Result]:
    """The trials with what is in their run directories."""
    return [_result(entry, trials / entry.label, request.all_seeds) for entry in entries]


def best_of(results: Sequence[Result]) -> Result | None:
    """The complete trial with the highest objective; of equals, the one with the higher mean reward."""
    complete = [r for r in results if r.state == "complete" and r.objective is not None]
    return max(complete, key=_worth, default=None)


def ranked(results: Sequence[Result]) -> list[Result]:
    """The best first, then what was given up, failed or is under way."""
    order = ("complete", "pruned", "begun", "failed")
    best_first = sorted(results, key=_worth, reverse=True)
    return sorted(best_first, key=lambda result: order.index(result.state))


def write_results(directory: Path, request: SweepRequest, results: Sequence[Result], picture: bool) -> None:
    """Write ``results.csv``, ``results.md``, ``best.yaml`` and, if asked, ``sweep.png``, each whole or not at all."""
    best = best_of(results)
    replace_file(directory / "results.csv", _csv(request, results).encode())
    replace_file(directory / "results.md", _markdown(request, results, best).encode())
    if best is not None:
        config = request.config_of(best.varied).model_copy(update={"output_dir": None})
        seeds = f", mean over {request.seeds} seeds" if request.seeds > 1 else ""
        head = f"# The best of {len(results)} trials, {best.label}: {request.objective_name} {best.objective:,.2f}{seeds}.\n"
        replace_file(directory / "best.yaml", (head + dump_yaml(config)).encode())
    if picture:
        drawn = io.BytesIO()
        _draw(drawn, request, results)
        replace_file(directory / "sweep.png", drawn.getvalue())


def format_setting(value: Any) -> str:
    """A setting as a person would write it."""
    if isinstance(value, Mapping):
        same = value.keys() == {"pi", "vf"} and list(value["pi"]) == list(value["vf"])
        return (
            format_setting(value["pi"])
            if same
            else " ".join(f"{name}={format_setting(part)}" for name, part in value.items())
        )
    if isinstance(value, list | tuple):
        return " ".join(map(str, value))
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _worth(result: Result) -> tuple[float, float]:
    return _value(result), float("-inf") if result.mean_reward is None else result.mean_reward


def _value(result: Result) -> float:
    return float("-inf") if result.objective is None else result.objective


def _result(entry: Entry, path: Path, seeds: Sequence[int]) -> Result:
    summaries = read_summaries(path, seeds)

    def mean(name: str) -> float | None:
        known = numbers(summaries, name)
        return statistics.fmean(known) if known else None

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


def _names(results: Sequence[Result]) -> list[str]:
    """All settings that are varied."""
    return list(dict.fromkeys(name for result in results for name in result.varied))


def _csv(request: SweepRequest, results: Sequence[Result]) -> str:
    names, numbers = _names(results), ("objective", "mean_reward", "eval_reward", "fps", "seconds", "steps")
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["trial", "state", *numbers, *names, "error"])
    for result in results:
        config = request.config_of(result.varied)
        cells = [getattr(result, name) for name in numbers]
        settings = [_cell(result.varied.get(name, getattr(config, name))) for name in names]
        error = (result.error or "").partition("\n")[0]
        writer.writerow([result.label, result.state, *cells, *settings, error])
    return text.getvalue()


def _cell(value: Any) -> Any:
    """A setting for a program to read: numbers with all their digits."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) else format_setting(value)


def _markdown(request: SweepRequest, results: Sequence[Result], best: Result | None) -> str:
    lines = [f"# {request.env}: {len(results)} trials, judged by {request.objective_name}", ""]
    if request.seeds > 1:
        lines += [f"Numbers are means over {request.seeds} seeds.", ""]
    lines += [
        "| trial | settings | mean reward | evaluation reward | steps/s | seconds | |",
        "|---|---|---|---|---|---|---|",
    ]
    for result in ranked(results):
        settings = ", ".join(f"{name} {format_setting(value)}" for name, value in result.varied.items())
        numbers = [
            _number(result.mean_reward, 2),
            _number(result.eval_reward, 2),
            _number(result.fps, 0),
            _number(result.seconds, 1),
        ]
        remark = "best" if result is best else "" if result.state == "complete" else result.state
        lines.append(f"| {' | '.join([result.label, settings, *numbers, remark])} |")
    if best is not None:
        lines += ["", "The best settings are in `best.yaml`: `corral train --config best.yaml`."]
    return "\n".join(lines) + "\n"


def _number(value: float | None, decimals: int) -> str:
    return "" if value is None else f"{value:,.{decimals}f}"


def _draw(file: io.BytesIO, request: SweepRequest, results: Sequence[Result]) -> None:
    """The objective of each trial in the order in which they began, and the best so far."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(8, 5), layout="constrained")
    panel = figure.subplots()
    at = {result.label: i for i, result in enumerate(results)}
    complete = [r for r in results if r.state == "complete"]
    pruned = [r for r in results if r.state == "pruned" and r.mean_reward is not None]
    panel.plot(
        [at[r.label] for r in complete], [_value(r) for r in complete], "o", color=_COLOURS["complete"], label="trial"
    )
    if pruned:
        rewards = [r.mean_reward or 0.0 for r in pruned]
        label = "given up early (mean reward then)"
        panel.plot([at[r.label] for r in pruned], rewards, "x", color=_COLOURS["pruned"], label=label)
    if complete:
        so_far = [max(_value(r) for r in complete[: i + 1]) for i in range(len(complete))]
        ends = [*(at[r.label] for r in complete), len(results) - 1]
        panel.step(ends, [*so_far, so_far[-1]], where="post", color=_COLOURS["best"], linewidth=1, label="best so far")
        panel.legend(frameon=False)
    panel.set_title(request.env.replace("$", r"\$"), loc="left", fontweight="bold")
    panel.set(xlabel="trial", ylabel=request.objective_name)
    if request.presets is not None:
        panel.set_xticks(range(len(results)), [result.label for result in results])
    else:
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    panel.grid(alpha=0.3)
    panel.spines[["top", "right"]].set_visible(False)
    figure.savefig(file, dpi=110, format="png")
