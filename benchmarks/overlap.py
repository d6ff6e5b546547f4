"""What ``--overlap`` does to speed and to learning: the same runs with and without it, taking turns.

Usage: python benchmarks/overlap.py [--seeds N] [--output DIR]. Writes overlap.md and overlap.json.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import statistics
import tempfile
from pathlib import Path

import corral
from corral.core.machine import available_cores
from corral.storage.metrics_file import read_metrics

COMMON = {"eval_freq": 0, "checkpoint_freq": 0, "tensorboard": False, "quiet": True}
WORK = {
    "CartPole-v1": {"timesteps": 150_000, "n_envs": 8, "n_steps": 128, "batch_size": 256, "n_epochs": 4},
    "Acrobot-v1": {
        "timesteps": 150_000,
        "n_envs": 8,
        "n_steps": 128,
        "batch_size": 256,
        "n_epochs": 4,
        "ent_coef": 0.01,
    },
    "toy-maze": {"timesteps": 60_000, "n_envs": 8, "n_steps": 64, "batch_size": 128, "learning_rate": 1e-3},
    "toy-work": {"timesteps": 20_480, "n_envs": 8, "n_steps": 128, "batch_size": 256, "n_epochs": 4},
}
MODES = {
    "without": {"backend": "auto"},
    "with overlap": {"backend": "auto", "overlap": True},
}


def measure(env: str, mode: str, seed: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as directory:
        settings = {**WORK[env], **MODES[mode], **COMMON, "seed": seed, "output_dir": f"{directory}/run"}
        result = corral.train(env, **settings)
        rows = read_metrics(result.run_dir / "metrics.jsonl")
    rewards = [row["rollout/ep_rew_mean"] for row in rows if row.get("rollout/ep_rew_mean") is not None]
    return {
        "fps": result.summary.fps,
        "final": rewards[-1],
        "area": statistics.fmean(rewards),
        "rho": statistics.fmean(row.get("train/rho", 1.0) for row in rows),
        "workers": result.summary.num_workers,
        "seconds": result.summary.seconds,
    }


def report(results: dict[str, dict[str, list[dict[str, float]]]], seeds: int) -> str:
    lines = [
        "# Overlap",
        "",
        "With `--overlap`, Corral collects the next rollout while it learns from the last one; without it, the two",
        "take turns. The table shows both with the same settings and seeds: medians (smallest to largest) of",
        f"{seeds} seeds, on {available_cores()} cores, backend `auto`.",
        "",
        f"`python benchmarks/overlap.py --seeds {seeds}`, {dt.date.today()}",
        "",
        "With overlap, the policy that collects is older than the policy that learns. Five methods to correct for this",
        "were compared on CartPole and Acrobot with seeds 1 to 3, so the rows of these envs are no independent test of",
        "the method that was chosen. The [development log](../docs/dev-log.md) has results with other seeds. The last",
        "column, `train/rho`, is the mean importance weight; 1 means that both policies are the same.",
        "",
        "| env | overlap | workers | steps/s | mean reward at the end | mean reward over the run | mean weight (rho) |",
        "|---|---|---|---|---|---|---|",
    ]
    for env, modes in results.items():
        for mode, runs in modes.items():
            cells = [env, "yes" if mode != "without" else "no", f"{statistics.median(r['workers'] for r in runs):.0f}"]
            for name, shape in (("fps", "{:,.0f}"), ("final", "{:,.2f}"), ("area", "{:,.2f}"), ("rho", "{:.3f}")):
                numbers = [run[name] for run in runs]
                low, high = shape.format(min(numbers)), shape.format(max(numbers))
                cells.append(f"{shape.format(statistics.median(numbers))} ({low} to {high})")
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent)
    options = parser.parse_args()
    results: dict[str, dict[str, list[dict[str, float]]]] = {env: {mode: [] for mode in MODES} for env in WORK}
    for seed in range(1, options.seeds + 1):
        for env in WORK:
            for mode in MODES:
                run = measure(env, mode, seed)
                results[env][mode].append(run)
                print(
                    f"{env:12} {mode:12} seed {seed}: {run['fps']:,.0f} steps/s, reward {run['final']:.2f}", flush=True
                )
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "overlap.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    (options.output / "overlap.md").write_text(report(results, options.seeds), encoding="utf-8")


if __name__ == "__main__":
    main()
