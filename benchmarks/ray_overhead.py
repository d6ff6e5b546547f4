"""What Ray costs: the same run with workers and with Ray on one machine, taking turns.

Usage: python benchmarks/ray_overhead.py [--pairs N] [--cases NAME ...] [--output DIR]. Writes ray_overhead.{md,json}.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import platform
import shlex
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from throughput import cpu_model, version

from corral.core.machine import available_cores

GAME = Path(__file__).with_name("compare_rllib_game.py")
CASES = {
    "game": (f"{GAME}:Work", "a game whose step takes 0.8 ms", 8, 128, 256, 20_480, 0.95),
    "cartpole-32": ("CartPole-v1", "CartPole-v1", 32, 512, 1024, 655_360, 0.85),
    "cartpole-8": ("CartPole-v1", "CartPole-v1", 8, 128, 256, 122_880, 0.75),
}
"""By name: env, what it is, envs, steps of a rollout, minibatch, steps of the run, and the speed that Ray should reach
as a fraction of the speed with workers."""
BACKENDS = ("worker", "ray")


def train(case: str, backend: str) -> dict[str, Any]:
    """Train with one backend, and return the run's summary."""
    env, _, n_envs, n_steps, batch_size, timesteps, _ = CASES[case]
    with tempfile.TemporaryDirectory() as directory:
        output = Path(directory) / "run"
        flags = f"--n-envs {n_envs} --n-steps {n_steps} --batch-size {batch_size} --timesteps {timesteps} --seed 1"
        command = [sys.executable, "-m", "corral", "train", env, "--backend", backend, "--num-workers", "2"]
        command += [*flags.split(), "--eval-freq", "0", "--checkpoint-freq", "0", "--output-dir", str(output)]
        subprocess.run(command, check=True, capture_output=True)
        summary: dict[str, Any] = json.loads((output / "summary.json").read_text())
        return summary


def measure(case: str, pairs: int) -> list[dict[str, float]]:
    """Return the steps per second of both backends in every pair; check that the weights are equal."""
    results = []
    for i in range(pairs):
        order = BACKENDS if i % 2 else BACKENDS[::-1]
        summaries = {backend: train(case, backend) for backend in order}
        assert len({summary["weights_sha256"] for summary in summaries.values()}) == 1, "the weights differ"
        results.append({backend: summaries[backend]["fps"] for backend in BACKENDS})
        print(case, i + 1, results[-1], flush=True)
    return results


def report(results: dict[str, list[dict[str, float]]], measured: dict[str, Any]) -> str:
    """Return the page with the results."""
    lines = [
        "# What Ray costs on one machine",
        "",
        "Steps per second with `--backend worker` and with `--backend ray`, 2 workers each, on the same machine:",
        "medians of runs that took turns. The ratio is the median of those of the pairs. The weights are equal.",
        "",
        "| case | envs × steps | worker | ray | ratio (smallest to largest) | at least |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for case, pairs in results.items():
        _, what, n_envs, n_steps, _, _, target = CASES[case]
        ratios = [pair["ray"] / pair["worker"] for pair in pairs]
        medians = [statistics.median(pair[backend] for pair in pairs) for backend in BACKENDS]
        spread = f"{statistics.median(ratios):.1%} ({min(ratios):.1%} to {max(ratios):.1%})"
        speeds = " | ".join(f"{fps:,.0f}" for fps in medians)
        lines.append(f"| {what} | {n_envs} × {n_steps} | {speeds} | {spread} | {target:.0%} |")
    lines += ["", f"Measured on {measured['date']} with `{measured['command']}` on {measured['machine']}:"]
    lines.append(", ".join(f"{name} {number}" for name, number in measured["versions"].items()) + ".")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--output", type=Path, default=Path(__file__).parent)
    options = parser.parse_args()
    results = {case: measure(case, options.pairs) for case in options.cases}
    measured = {
        "date": dt.date.today().isoformat(),
        "command": shlex.join(["python", "benchmarks/ray_overhead.py", *sys.argv[1:]]),
        "machine": f"{cpu_model()}, {available_cores()} cores",
        "versions": {"python": platform.python_version()} | {name: version(name) for name in ("ray", "torch", "numpy")},
    }
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "ray_overhead.json").write_text(json.dumps({"measured": measured, "pairs": results}, indent=1))
    (options.output / "ray_overhead.md").write_text(report(results, measured))


if __name__ == "__main__":
    main()
