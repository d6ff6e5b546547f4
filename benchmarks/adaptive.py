"""What ``--adaptive`` gains while the load of a machine shifts: the same runs with and without it, taking turns.

A neighbour keeps one core busy for half of each minute.

Usage: python benchmarks/adaptive.py [--pairs N] [--output DIR]. Writes adaptive.md and adaptive.json.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import multiprocessing
import os
import platform
import statistics
import tempfile
import time
from pathlib import Path

import corral
from corral.core.machine import available_cores

SECONDS = 120.0
"""Of each run: two minutes, so that the load comes and goes twice."""
COMMON = {
    "backend": "worker",
    "num_workers": 2,
    "n_envs": 16,
    "n_epochs": 4,
    "seed": 1,
    "eval_freq": 0,
    "checkpoint_freq": 0,
    "tensorboard": False,
    "quiet": True,
}
WORK = {
    "toy-work": {"n_steps": 64, "batch_size": 256},
    "CartPole-v1": {"n_steps": 128, "batch_size": 512},
}


def keep_busy(core: int) -> None:
    """Use one core for half of each minute, beginning now."""
    os.sched_setaffinity(0, {core})
    began = time.monotonic()
    while True:
        if (time.monotonic() - began) % 60 < 30:
            until = time.monotonic() + 0.05
            while time.monotonic() < until:
                pass
        else:
            time.sleep(0.05)


def measure(env: str, adaptive: bool) -> float:
    """Return the steps per second of one run beside the neighbour."""
    neighbour = multiprocessing.Process(target=keep_busy, args=(max(os.sched_getaffinity(0)),), daemon=True)
    neighbour.start()
    try:
        with tempfile.TemporaryDirectory() as directory:
            settings = {**COMMON, **WORK[env], "duration": SECONDS / 3600, "output_dir": f"{directory}/run"}
            summary = corral.train(env, adaptive=adaptive, **settings).summary
    finally:
        neighbour.kill()
        neighbour.join()
    return summary.steps / summary.seconds


def report(pairs: dict[str, list[list[float]]]) -> str:
    """Return the page: steps per second without and with, and the gain of each pair."""
    n = max(map(len, pairs.values()))
    lines = [
        "# Adaptive",
        "",
        "Training with `--adaptive` and without it, while another process uses one core for half of each minute.",
        f"The table shows medians (smallest to largest) of {n} pairs of runs, which take turns and last two minutes",
        f"each, with {available_cores()} cores, 2 workers and 16 envs. "
        f"{platform.machine()}, Python {platform.python_version()}.",
        "",
        f"`python benchmarks/adaptive.py --pairs {n}`, {dt.date.today()}",
        "",
        "| env | steps/s without | steps/s with | gain |",
        "|---|---|---|---|",
    ]
    for env, both in pairs.items():
        columns = [[pair[0] for pair in both], [pair[1] for pair in both], [pair[1] / pair[0] - 1 for pair in both]]
        cells = [
            f"{shape.format(statistics.median(column))} ({shape.format(min(column))} to {shape.format(max(column))})"
            for shape, column in zip(("{:,.0f}", "{:,.0f}", "{:+.1%}"), columns, strict=True)
        ]
        lines.append(f"| {env} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent)
    options = parser.parse_args()
    pairs: dict[str, list[list[float]]] = {env: [] for env in WORK}
    for pair in range(options.pairs):
        for env in WORK:
            order = (False, True) if pair % 2 == 0 else (True, False)
            speeds = {adaptive: measure(env, adaptive) for adaptive in order}
            pairs[env].append([speeds[False], speeds[True]])
            print(f"{env:12} {speeds[False]:,.0f} steps/s without, {speeds[True]:,.0f} with", flush=True)
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "adaptive.json").write_text(json.dumps(pairs, indent=1) + "\n", encoding="utf-8")
    (options.output / "adaptive.md").write_text(report(pairs), encoding="utf-8")


if __name__ == "__main__":
    main()
