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
from corral.bench.speed import FIXED_SETTINGS, TIME_PARTS
from corral.bench.tune import Candidate, Trial, candidates, draw_trials, measure_candidates, recommended
from corral.cli.train import read_settings
from corral.config.schema import parse_config
from corral.core.errors import UsageError
from corral.core.machine import available_cores
from corral.storage.run_dir import RUNS_ROOT

__all__ = ["run_bench", "run_compare", "run_tune"]


def run_tune(options: argparse.Namespace) -> int:
    """Measure numbers of envs and workers; print and draw the results, with a recommendation."""
    env, settings = _measured_settings(options)
    trials = _measure(env, candidates(env, settings, options.max_envs), settings, options)
    best = recommended(trials)
    console = Console(highlight=False, emoji=False, soft_wrap=True)
    table = Table("", "envs", "workers", "steps/s", "speed-up", "efficiency", "memory", title=env, title_justify="left")
    for trial in trials:
        candidate = trial.candidate
        table.add_row(
            "->" if trial is best else "",
            str(candidate.n_envs),
            "none" if candidate.backend == "serial" else str(candidate.num_workers),
            f"{trial.speed.fps:,.0f}",
            f"{trial.speed_up:.2f}x",
            f"{trial.efficiency:.0%}",
            f"{trial.speed.memory_mb:,.0f} MB",
            style="bold" if trial is best else None,
        )
    console.print(table)
    picture = _make_output_directory(options, f"tune-{env}") / "tune.png"
    draw_trials(picture, f"{env} on {available_cores()} cores", trials, best)
    backend = "serial" if best.candidate.backend == "serial" else f"worker --num-workers {best.candidate.num_workers}"
    console.print(f"recommended: --n-envs {best.candidate.n_envs} --backend {backend}", markup=False)
    console.print(f"picture: {picture}", markup=False)
    return 0


def run_bench(options: argparse.Namespace) -> int:
    """Measure training in one process and with workers; print the speed-up and where the time goes."""
    env, settings = _measured_settings(options)
    if settings.get("n_envs") == "auto":
        raise UsageError("bench needs a number of envs; `corral tune` finds a good one")
    config, cores = parse_config({**settings, "env": env}), available_cores()
    n_envs, num_workers = config.n_envs, config.num_workers or min(config.n_envs, max(2, cores))
    serial_and_parallel = [Candidate(n_envs, "serial", 1), Candidate(n_envs, "worker", num_workers)]
    trials = _measure(env, serial_and_parallel, settings, options, one_core=True)
    console = Console(highlight=False, emoji=False, soft_wrap=True)
    names = ["one process, one core", f"{num_workers} workers{', overlap' if config.overlap else ''}"]
    table = Table("", *names, title=f"{env}, {n_envs} envs on {cores} cores", title_justify="left")
    table.add_row("steps per second", *(f"{trial.speed.fps:,.0f}" for trial in trials))
    table.add_row("speed-up", *(f"{trial.speed_up:.2f}x" for trial in trials))
    table.add_row(
        "efficiency (of the cores)",
        *(f"{trial.speed_up / min(trial.candidate.num_workers, cores):.0%}" for trial in trials),
    )
    table.add_row("memory", *(f"{trial.speed.memory_mb:,.0f} MB" for trial in trials))
    for part in TIME_PARTS:
        table.add_row(f"  {part}", *(_format_part(trial, part) for trial in trials))
    console.print(table)
    console.print(_upper_bound(trials, cores), markup=False)
    console.print(_bottleneck(trials[1]), markup=False)
    return 0


def _upper_bound(trials: list[Trial], cores: int) -> str:
    """Return a sentence about the speed that all cores would reach if the work of one were divided without loss."""
    names = {"step": "simulation", "inference": "inference", "update": "learning"}
    serial, parallel = (trial.speed for trial in trials)
    step_costs = {name: serial.seconds[part] / serial.steps for part, name in names.items()}  # in seconds
    step_cost = sum(step_costs.values())
    costs = " + ".join(f"{name} {seconds * 1e6:,.0f}" for name, seconds in step_costs.items())
    max_fps = cores / step_cost
    return (
        f"added up, a step costs {costs} = {step_cost * 1e6:,.0f} µs of one core: at best {max_fps:,.0f} steps/s on "
        f"{cores} cores. With workers: {parallel.fps:,.0f}, {parallel.fps / max_fps:.0%} of that"
    )


def _measured_settings(options: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """Return the env and the settings to measure it with.

    Settings that the measurement chooses are refused as flags, and left out of a file's.
    """
    for name in FIXED_SETTINGS:
        if hasattr(options, name):
            raise UsageError(
                f"--{name.replace('_', '-')} is for training; a measurement chooses it itself; leave it out"
            )
    env, settings = read_settings(options)
    return env, {name: value for name, value in settings.items() if name not in FIXED_SETTINGS}


def _format_part(trial: Trial, part: str) -> str:
    seconds, iteration_seconds = trial.speed.seconds[part], sum(trial.speed.seconds.values())
    return f"{seconds * 1000:,.1f} ms ({seconds / iteration_seconds:.0%})"


def _bottleneck(parallel: Trial) -> str:
    """Return a sentence about the part that takes longest, and what would make it faster."""
    seconds = parallel.speed.seconds
    longest = max(seconds, key=lambda part: seconds[part])
    advice = {
        "step": "stepping the envs is the limit: more cores, or a faster env, would help",
        "inference": "choosing actions is the limit: more envs per worker share its cost",
        "wait": "waiting is the limit: envs of very different speed, or a busy machine",
        "update": "the learner is the limit: a larger batch_size, fewer epochs or a smaller network would help",
        "copy": "copying and logging is the limit: longer rollouts (n_steps) share its cost",
    }
    return f"with workers, {advice[longest]}"


def _measure(
    env: str, chosen: list[Candidate], settings: dict[str, Any], options: argparse.Namespace, one_core: bool = False
) -> list[Trial]:
    """Measure the candidates, with a progress bar meanwhile."""
    if options.seconds <= 0 or options.repeats < 1:
        raise UsageError("--seconds should be more than 0, --repeats at least 1")
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("measuring", total=len(chosen) * options.repeats)

        def show(candidate: Candidate) -> None:
            processes = "one process" if candidate.backend == "serial" else f"{candidate.num_workers} workers"
            bar.update(task, description=f"{candidate.n_envs} envs in {processes}", advance=1, refresh=True)

        bar.update(task, completed=-1)  # ``show`` is called before each measurement
        return measure_candidates(env, chosen, settings, options.seconds, options.repeats, show, one_core)


def _make_output_directory(options: argparse.Namespace, name: str) -> Path:
    """Make the directory ``--output``, or a new one in the directory of runs, and return its path."""
    safe_name = "".join(c if c.isalnum() or c in "-_." else "-" for c in name)
    path = Path(options.output) if options.output else RUNS_ROOT / f"{safe_name}-{time.strftime('%Y%m%d-%H%M%S')}"
    path.mkdir(parents=True, exist_ok=True)
    return path


def run_compare(options: argparse.Namespace) -> int:
    """Compare two runs, and print the result and the paths of the picture and the report."""
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
