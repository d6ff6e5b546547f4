"""``corral tune``, ``corral bench`` and ``corral compare``."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Column, Table
from rich.text import Text

from corral.bench.compare import Row, compare_runs
from corral.bench.speed import FIXED_SETTINGS, PARTS
from corral.bench.tune import Candidate, Trial, candidates, draw_trials, recommended, measure_candidates
from corral.cli.train import settings_of
from corral.config.schema import parse_config
from corral.core.errors import UsageError
from corral.core.machine import available_cores
from corral.storage.run_dir import ROOT

__all__ = ["run_bench", "run_compare", "run_tune"]


def run_tune(options: argparse.Namespace) -> int:
    """Try candidates for real; print a table with one of them recommended, and draw it."""
    env, settings = _settings(options)
    tried = candidates(env, settings, options.max_envs)
    trials = _measure(env, tried, settings, options)
    best = recommended(trials)
    console = Console(highlight=False, emoji=False, soft_wrap=True)
    table = Table("", "envs", "workers", "steps/s", "speed-up", "efficiency", "memory", title=env, title_justify="left")
    for trial in trials:
        c = trial.candidate
        cells = [str(c.n_envs), "none" if c.backend == "serial" else str(c.num_workers), f"{trial.speed.fps:,.0f}"]
        cells += [f"{trial.speed_up:.2f}x", f"{trial.efficiency:.0%}", f"{trial.speed.memory_mb:,.0f} MB"]
        table.add_row("->" if trial is best else "", *cells, style="bold" if trial is best else None)
    console.print(table)
    picture = _output(options, f"tune-{env}") / "tune.png"
    draw_trials(picture, f"{env} on {available_cores()} cores", trials, best)
    how = "serial" if best.candidate.backend == "serial" else f"worker --num-workers {best.candidate.num_workers}"
    console.print(f"recommended: --n-envs {best.candidate.n_envs} --backend {how}", markup=False)
    console.print(f"picture: {picture}", markup=False)
    return 0


def run_bench(options: argparse.Namespace) -> int:
    """The user's env in one process and with workers: how much faster, and where the time goes."""
    env, settings = _settings(options)
    if settings.get("n_envs") == "auto":
        raise UsageError("bench needs a number of envs; `corral tune` finds a good one")
    config, cores = parse_config({**settings, "env": env}), available_cores()
    n, workers = config.n_envs, config.num_workers or min(config.n_envs, max(2, cores))
    tried = [Candidate(n, "serial", 1), Candidate(n, "worker", workers)]
    trials = _measure(env, tried, settings, options, one_core=True)
    console = Console(highlight=False, emoji=False, soft_wrap=True)
    names = ["one process, one core", f"{workers} workers{', overlap' if config.overlap else ''}"]
    table = Table("", *names, title=f"{env}, {n} envs on {cores} cores", title_justify="left")
    table.add_row("steps per second", *(f"{trial.speed.fps:,.0f}" for trial in trials))
    table.add_row("speed-up", *(f"{trial.speed_up:.2f}x" for trial in trials))
    table.add_row(
        "efficiency (of the cores)",
        *(f"{trial.speed_up / min(trial.candidate.num_workers, cores):.0%}" for trial in trials),
    )
    table.add_row("memory", *(f"{trial.speed.memory_mb:,.0f} MB" for trial in trials))
    for part in PARTS:
        table.add_row(f"  {part}", *(_part(trial, part) for trial in trials))
    console.print(table)
    console.print(_added_up(trials, cores), markup=False)
    console.print(_limit(trials[1]), markup=False)
    return 0


def _added_up(trials: list[Trial], cores: int) -> str:
    """What the cores could do at best: simulation, inference and learning of one core, shared out without loss."""
    words = {"step": "simulation", "inference": "inference", "update": "learning"}
    alone = trials[0].speed
    cost = {word: alone.seconds[part] / alone.steps for part, word in words.items()}
    most = cores / sum(cost.values())
    told = " + ".join(f"{word} {seconds * 1e6:,.0f}" for word, seconds in cost.items())
    whole, reached = f"{sum(cost.values()) * 1e6:,.0f} µs of one core", trials[1].speed.fps
    return (
        f"added up, a step costs {told} = {whole}: at best {most:,.0f} steps/s on {cores} cores. "
        f"With workers: {reached:,.0f}, {reached / most:.0%} of that"
    )


def _settings(options: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """The env and the settings to time it with; what timing decides is refused as a flag, and left out of a file."""
    for name in FIXED_SETTINGS:
        if hasattr(options, name):
            raise UsageError(f"--{name.replace('_', '-')} is for training; here it is decided by what is measured")
    env, settings = settings_of(options)
    return env, {name: value for name, value in settings.items() if name not in FIXED_SETTINGS}


def _part(trial: Trial, part: str) -> str:
    seconds, whole = trial.speed.seconds[part], sum(trial.speed.seconds.values())
    return f"{seconds * 1000:,.1f} ms ({seconds / whole:.0%})"


def _limit(parallel: Trial) -> str:
    """What a user would have to change to go faster."""
    parts = parallel.speed.seconds
    largest = max(parts, key=lambda part: parts[part])
    advice = {
        "step": "stepping the envs is the limit: more cores, or a faster env, would help",
        "inference": "choosing actions is the limit: more envs per worker share its cost",
        "wait": "waiting is the limit: envs of very different speed, or a busy machine",
        "update": "the learner is the limit: a larger batch_size, fewer epochs or a smaller network would help",
        "copy": "keeping books is the limit: longer rollouts (n_steps) share its cost",
    }
    return f"with workers, {advice[largest]}"


def _measure(
    env: str, tried: list[Candidate], settings: dict[str, Any], options: argparse.Namespace, one_core: bool = False
) -> list[Trial]:
    if options.seconds <= 0 or options.repeats < 1:
        raise UsageError("--seconds should be more than 0, --repeats at least 1")
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("measuring", total=len(tried) * options.repeats)

        def show(candidate: Candidate) -> None:
            how = "in one process" if candidate.backend == "serial" else f"in {candidate.num_workers} workers"
            bar.update(task, description=f"{candidate.n_envs} envs {how}", advance=1, refresh=True)

        bar.update(task, completed=-1)
        return measure_candidates(env, tried, settings, options.seconds, options.repeats, show, one_core)


def _output(options: argparse.Namespace, name: str) -> Path:
    plain = "".join(c if c.isalnum() or c in "-_." else "-" for c in name)
    path = Path(options.output) if options.output else ROOT / f"{plain}-{time.strftime('%Y%m%d-%H%M%S')}"
    path.mkdir(parents=True, exist_ok=True)
    return path


def run_compare(options: argparse.Namespace) -> int:
    """Compare two runs, and say where the picture and the report are."""
    comparison = compare_runs(options.a, options.b, options.output)
    console = Console(highlight=False, emoji=False)
    _print_rows(console, "", comparison.names, comparison.rows)
    if comparison.differences:
        _print_rows(console, "settings that differ", comparison.names, comparison.differences)
    for line in (*comparison.notes, comparison.conclusion):
        console.print(line, markup=False, soft_wrap=True)
    console.print(f"picture: {comparison.picture}\nreport:  {comparison.report}", markup=False, soft_wrap=True)
    return 0


def _print_rows(console: Console, title: str, names: tuple[str, str], rows: list[Row]) -> None:
    columns = (Column(overflow="fold", header=Text(name)) for name in names)
    table = Table("", *columns, title=title or None, title_justify="left")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console.print(table)
