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
from corral.bench.tune import Candidate, Trial, candidates, draw_trials, measure_candidates, recommended, settings_for
from corral.cli.train import read_settings
from corral.config.schema import CLUSTER, TrainConfig, parse_config
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
    """Measure training in one process, with workers and perhaps on a cluster; print speed-ups and where time goes."""
    with_ray = getattr(options, "backend", None) == "ray"
    env, settings = _measured_settings(options, with_ray)
    if settings.get("n_envs") == "auto":
        raise UsageError("bench needs a number of envs; `corral tune` finds a good one")
    settings_here = {name: value for name, value in settings.items() if not (with_ray and name in CLUSTER)}
    config, cores = parse_config({**settings_here, "env": env}), available_cores()
    n_envs, num_workers = config.n_envs, config.num_workers or min(config.n_envs, max(2, cores))
    measured = [Candidate(n_envs, "serial", 1), Candidate(n_envs, "worker", num_workers)]
    names = ["one process, one core", f"{num_workers} workers{', overlap' if config.overlap else ''}"]
    core_counts = [cores, cores]
    if with_ray:
        candidate, cluster_cores = _ray_candidate(env, settings, config)
        measured.append(candidate)
        names.append(f"ray, {candidate.num_workers} workers")
        core_counts.append(cluster_cores)
    trials = _measure(env, measured, settings, options, one_core=True)
    console = Console(highlight=False, emoji=False, soft_wrap=True)
    table = Table("", *names, title=f"{env}, {n_envs} envs on {cores} cores", title_justify="left")
    table.add_row("steps per second", *(f"{trial.speed.fps:,.0f}" for trial in trials))
    table.add_row("speed-up", *(f"{trial.speed_up:.2f}x" for trial in trials))
    efficiencies = [
        trial.speed_up / min(trial.candidate.num_workers, count)
        for trial, count in zip(trials, core_counts, strict=True)
    ]
    table.add_row("efficiency (of the cores)", *(f"{efficiency:.0%}" for efficiency in efficiencies))
    memory = "memory here" if with_ray else "memory"
    table.add_row(memory, *(f"{trial.speed.memory_mb:,.0f} MB" for trial in trials))
    for part in TIME_PARTS:
        table.add_row(f"  {part}", *(_format_part(trial, part) for trial in trials))
    console.print(table, soft_wrap=False)
    serial, parallel, *on_cluster = trials
    console.print(_upper_bound(serial, parallel, cores), markup=False)
    console.print(_bottleneck(parallel, "with workers"), markup=False)
    for trial in on_cluster:
        console.print(_bottleneck(trial, "with ray"), markup=False)
        console.print(_gain_of_cluster(parallel, trial, settings, core_counts[-1]), markup=False)
    return 0


def _ray_candidate(env: str, settings: dict[str, Any], config: TrainConfig) -> tuple[Candidate, int]:
    """Return the candidate with backend ray, by default with a worker for each core, and the cluster's cores."""
    candidate = Candidate(config.n_envs, "ray", config.num_workers or 1)
    cores = _cluster_cores(parse_config({**settings_for(candidate, settings), "env": env}))
    num_workers = config.num_workers or max(1, min(cores, config.n_envs))
    return Candidate(config.n_envs, "ray", num_workers), cores


def _cluster_cores(config: TrainConfig) -> int:
    """Return how many cores the nodes of the cluster have together."""
    if config.ray_address == "local":  # every measurement starts a Ray of its own
        return available_cores()
    from corral.rollout.ray_cluster import RayCluster
    from corral.rollout.source import ClusterConfig

    cluster = RayCluster(ClusterConfig(address=config.ray_address, resources=config.ray_resources), None)
    try:
        return sum(int(node.cores) for node in cluster.nodes())
    finally:
        cluster.close()


def _gain_of_cluster(parallel: Trial, on_cluster: Trial, settings: dict[str, Any], cluster_cores: int) -> str:
    """Return a sentence about the speed with ray beside that with workers on this machine."""
    ratio, num_workers = on_cluster.speed.fps / parallel.speed.fps, on_cluster.candidate.num_workers
    is_local = settings.get("ray_address", "local") == "local"
    nodes = "this machine" if is_local else f"the cluster, which has {cluster_cores} cores"
    advice = "; to measure other machines, give --ray-address" if is_local else ""
    without_ray = f"{parallel.candidate.num_workers} workers without ray"
    return f"ray with {num_workers} workers on {nodes}: {ratio:.2f}x the speed of {without_ray}{advice}"


def _upper_bound(serial_trial: Trial, parallel_trial: Trial, cores: int) -> str:
    """Return a sentence about the speed that all cores would reach if the work of one were divided without loss."""
    names = {"step": "simulation", "inference": "inference", "update": "learning"}
    serial, parallel = serial_trial.speed, parallel_trial.speed
    step_costs = {name: serial.seconds[part] / serial.steps for part, name in names.items()}  # in seconds
    step_cost = sum(step_costs.values())
    costs = " + ".join(f"{name} {seconds * 1e6:,.0f}" for name, seconds in step_costs.items())
    max_fps = cores / step_cost
    return (
        f"added up, a step costs {costs} = {step_cost * 1e6:,.0f} µs of one core: at best {max_fps:,.0f} steps/s on "
        f"{cores} cores. With workers: {parallel.fps:,.0f}, {parallel.fps / max_fps:.0%} of that"
    )


def _measured_settings(options: argparse.Namespace, with_ray: bool = False) -> tuple[str, dict[str, Any]]:
    """Return the env and the settings to measure it with.

    Settings that the measurement chooses are refused as flags, and left out of a file's. So are the settings of a
    cluster, unless backend ray is measured ``with_ray``.
    """
    for name in FIXED_SETTINGS:
        if hasattr(options, name) and not (with_ray and name == "backend"):
            raise UsageError(
                f"--{name.replace('_', '-')} is for training; a measurement chooses it itself; leave it out"
            )
    if not with_ray and (given := [name for name in CLUSTER if hasattr(options, name)]):
        flag = f"--{given[0].replace('_', '-')}"
        raise UsageError(f"{flag} is for a cluster, which `corral bench ENV --backend ray` measures; leave it out")
    env, settings = read_settings(options)
    left_out = FIXED_SETTINGS if with_ray else (*FIXED_SETTINGS, *CLUSTER)
    return env, {name: value for name, value in settings.items() if name not in left_out}


def _format_part(trial: Trial, part: str) -> str:
    seconds, iteration_seconds = trial.speed.seconds[part], sum(trial.speed.seconds.values())
    return f"{seconds * 1000:,.1f} ms ({seconds / iteration_seconds:.0%})"


def _bottleneck(trial: Trial, how: str) -> str:
    """Return a sentence about the part that takes longest, and what would make it faster; it begins with ``how``."""
    seconds = trial.speed.seconds
    longest = max(seconds, key=lambda part: seconds[part])
    advice = {
        "step": "stepping the envs is the limit: more cores, or a faster env, would help",
        "inference": "choosing actions is the limit: more envs per worker share its cost",
        "wait": "waiting is the limit: envs of very different speed, or a busy machine",
        "update": "the learner is the limit: a larger batch_size, fewer epochs or a smaller network would help",
        "copy": "copying and logging is the limit: longer rollouts (n_steps) share its cost",
    }
    if trial.candidate.backend == "ray":
        advice["wait"] += ", or a slow network (`corral doctor --cluster` measures it)"
    return f"{how}, {advice[longest]}"


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
            processes += " of ray" if candidate.backend == "ray" else ""
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
