"""Compare the speed of Corral's Ray backend with RLlib's PPO, in steps per second.

    python benchmarks/compare_rllib.py --rllib-python VENV/bin/python        # about a quarter of an hour on two cores
    python benchmarks/compare_rllib.py --rllib-python VENV/bin/python --cases work --pairs 1 --out build/work.json

RLlib requires gymnasium==1.2.2, so it has a virtual environment of its own. Both libraries train with two processes
that step envs, and with the same env, networks, rollouts, epochs and minibatches. The runs take turns, and every round
starts with another one. Every run is a fresh process; its start and its first iterations are not timed.
``compare_rllib_worker.py`` runs RLlib, and ``compare_rllib_game.py`` has the slow game. Writes
compare_rllib.{json,md} beside this file, or where --out says.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from throughput import cpu_model, version

from corral.core.machine import available_cores
from corral.storage.metrics_file import read_metrics

HERE = Path(__file__).parent
WORKER, GAME = HERE / "compare_rllib_worker.py", HERE / "compare_rllib_game.py"
PACKAGES = ("corral", "ray", "torch", "numpy", "gymnasium")
NUM_WORKERS = 2
WARM_UP = 2
"""Iterations of every run that are not timed."""
RLLIB = {"rllib_one_thread": 1, "rllib_torch_threads": None}
"""How many threads RLlib's learner uses; None is torch's own choice.

That is one for each core, which is faster on an idle machine. If another program uses a core, it is far slower, because
torch's threads wait for each other in loops. So both are measured in every pair, and the faster one counts.
"""
NAMES = (*RLLIB, "corral")
RUN_SECONDS = 1800
SETTINGS = {
    "n_epochs": 10,
    "learning_rate": 3e-4,
    "gamma": 0.99,
    "gae_lambda": 0.95,
    "clip_range": 0.2,
    "vf_coef": 0.5,
    "ent_coef": 0.0,
    "max_grad_norm": 0.5,
    "net_arch": [64, 64],
    "activation_fn": "tanh",
}
"""What Corral uses by default, given to both; the policy and the value network share no layer."""

Run = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Case:
    """An env, the size of rollouts and minibatches, and how much faster than RLlib Corral should be."""

    work: str
    env: str
    n_envs: int
    n_steps: int
    batch_size: int
    iterations: int
    """Timed iterations of a run."""
    target: float

    @property
    def rollout(self) -> int:
        """The number of steps in a rollout, summed over all envs."""
        return self.n_envs * self.n_steps

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of a run, by their names in Corral."""
        return {"n_envs": self.n_envs, "n_steps": self.n_steps, "batch_size": self.batch_size, **SETTINGS}


CASES = {
    "cartpole-8": Case("CartPole-v1, 8 envs", "CartPole-v1", 8, 128, 256, 100, 4.0),
    "cartpole-32": Case("CartPole-v1, 32 envs", "CartPole-v1", 32, 512, 1024, 20, 3.5),
    "work": Case("a game whose step takes 0.8 ms of processor time, 8 envs", "work", 8, 128, 256, 40, 1.7),
}


def run_process(command: list[str], environment: Mapping[str, str]) -> str:
    """Run a program that starts a Ray, and return its output. However this ends, the program can end its Ray."""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(environment)
    ) as process:
        try:
            output, errors = process.communicate(timeout=RUN_SECONDS)
        except BaseException:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(30)
            process.kill()
            raise
    if process.returncode:
        raise SystemExit(f"{shlex.join(command)} failed:\n{output[-2000:]}\n{errors[-6000:]}")
    return output


def clean_environment() -> dict[str, str]:
    """Return this process's environment without numbers of threads, which both libraries choose themselves."""
    return {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}


def run_rllib(case: Case, rllib_python: str, seed: int, iterations: int, threads: int | None) -> Run:
    """Train with RLlib, whose learner uses this number of threads; None is torch's own choice."""
    job = {
        "env": case.env,
        "num_workers": NUM_WORKERS,
        "settings": case.settings,
        "seed": seed,
        "warm_up": WARM_UP,
        "iterations": iterations,
        "threads": threads,
    }
    environment = clean_environment()
    environment.pop("PYTHONPATH", None)  # it is Corral's, if it is set
    run: Run = json.loads(run_process([rllib_python, str(WORKER), json.dumps(job)], environment).splitlines()[-1])
    return run


def run_corral(case: Case, seed: int, iterations: int) -> Run:
    """Train with Corral's Ray backend. Its metrics have the seconds from the first step to the end of each update."""
    settings = {
        "backend": "ray",
        "num_workers": NUM_WORKERS,
        "device": "cpu",
        "seed": seed,
        "timesteps": (WARM_UP + iterations) * case.rollout,
        "eval_freq": 0,
        "checkpoint_freq": 0,
        **case.settings,
    }
    env = f"{GAME}:Work" if case.env == "work" else case.env
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "corral", "train", env, "--no-tensorboard", "--output-dir", f"{directory}/run"]
        for name, value in settings.items():
            command += [f"--{name.replace('_', '-')}", *map(str, value if isinstance(value, list) else [value])]
        run_process(command, clean_environment())
        rows = read_metrics(Path(directory, "run", "metrics.jsonl"))
        summary = json.loads(Path(directory, "run", "summary.json").read_text(encoding="utf-8"))
    if len(rows) != WARM_UP + iterations or (summary["backend"], summary["restarts"]) != ("ray", 0):
        raise SystemExit(f"Corral made {len(rows)} iterations: {summary}")
    return {
        "iterations": [
            {
                "seconds": row["time/time_elapsed"] - before["time/time_elapsed"],
                "steps": row["time/total_timesteps"] - before["time/total_timesteps"],
                "gradient_steps": row["train/n_updates"] - before["train/n_updates"],
                "episodes": row["rollout/episodes_in_rollout"],
            }
            for before, row in itertools.pairwise(rows[WARM_UP - 1 :])
        ],
        "own_fps": summary["fps"],
    }


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return the result of a case: rounds of runs that take turns, and how much faster Corral is than RLlib."""
    case = CASES[name]
    iterations = options.iterations or case.iterations
    pairs = []
    for i in range(options.pairs):
        pair: dict[str, Any] = {}
        first = i % len(NAMES)
        for library in [*NAMES, *NAMES][first : first + len(NAMES)]:
            busy = psutil.cpu_percent(interval=0.5)
            if library == "corral":
                run = run_corral(case, i + 1, iterations)
            else:
                run = run_rllib(case, options.rllib_python, i + 1, iterations, RLLIB[library])
            steps, seconds = (sum(iteration[key] for iteration in run["iterations"]) for key in ("steps", "seconds"))
            run |= {"steps_per_s": steps / seconds, "busy_before_percent": busy}
            pair[library] = run
            warning = f" (other programs used {busy:.0f}% of the cores just before)" if busy > 20 else ""
            shown = f"{library:20} {i + 1}/{options.pairs}: {run['steps_per_s']:,.0f} steps/s{warning}"
            print(f"{name:12} {shown}", flush=True)
        pair["ratio"] = pair["corral"]["steps_per_s"] / max(pair[library]["steps_per_s"] for library in RLLIB)
        pairs.append(pair)
    return {
        "work": case.work,
        "settings": case.settings,
        "iterations": iterations,
        "warm_up_iterations": WARM_UP,
        "pairs": pairs,
        "median_ratio": statistics.median(pair["ratio"] for pair in pairs),
        "target": case.target,
    }


def circumstances(options: argparse.Namespace, cases: Mapping[str, Any]) -> dict[str, Any]:
    """Return when, where and with what the cases were measured."""
    words = ["--rllib-python", "VENV/bin/python", "--pairs", str(options.pairs)]
    words += ["--cases", *options.cases] if options.cases else []
    words += ["--iterations", str(options.iterations)] if options.iterations else []
    return {
        "date": time.strftime("%Y-%m-%d"),
        "command": shlex.join(["python", "benchmarks/compare_rllib.py", *words]),
        "pairs": options.pairs,
        "machine": {
            "cpu": cpu_model(),
            "cores": available_cores(),
            "ram_gb": round(psutil.virtual_memory().total / 1e9),
            "os": f"{platform.system()} {'.'.join(platform.release().split('.')[:2])}",
        },
        "versions": {
            "corral": {"python": platform.python_version()} | {name: version(name) for name in PACKAGES},
            "rllib": next(iter(cases.values()))["pairs"][0]["rllib_one_thread"]["versions"],
        },
    }


def spread(numbers: list[float], shape: str) -> str:
    """Return the median, with the smallest and the largest number."""
    low, middle, high = (shape.format(number) for number in (min(numbers), statistics.median(numbers), max(numbers)))
    return f"{middle} ({low} to {high})"


def report(measured: dict[str, Any], cases: Mapping[str, Any]) -> str:
    """Return the page."""
    machine = measured["machine"]
    versions = {
        library: ", ".join(f"{name} {number}" for name, number in numbers.items())
        for library, numbers in measured["versions"].items()
    }
    lines = [
        "# Corral and RLlib",
        "",
        f"Steps per second of PPO in RLlib (new API stack, {NUM_WORKERS} env runners, one learner in the main process",
        f"on the CPU) and in Corral (`--backend ray --num-workers {NUM_WORKERS}`), with the same env, networks,",
        "rollouts, epochs and minibatches. The start is not included, and nothing is evaluated. The runs take turns.",
        "RLlib runs twice: its learner uses one thread, or as many as torch chooses. A ratio compares Corral with the",
        f"faster one of the same round. The table shows medians (smallest to largest) of {measured['pairs']} round(s).",
        "",
        f"`{measured['command']}` on {measured['date']}: {machine['cpu']}, {machine['cores']} cores, "
        f"{machine['ram_gb']} GB, {machine['os']}.",
        "",
        f"- Corral: {versions['corral']}",
        f"- RLlib: {versions['rllib']}",
        "",
        "| steps per second | RLlib, one thread | RLlib, torch's threads | Corral | ratios | median | target | met |",
        "|---|---:|---:|---:|---:|---:|---:|---|",
        *(table_row(case) for case in cases.values()),
        "",
        "## Notes",
        "",
        *(note(case) for case in cases.values()),
        "- RLlib's steps are those that it reports: in every iteration a rollout, and sometimes a few steps more. It",
        "  adds a row to the batch at every end of an episode and of a rollout, and so makes more gradient steps.",
        "- To make RLlib fast, its env runners have the same priority as other processes (Ray lowers it by default)",
        "  and exchange no states of connectors, and Gymnasium's checker is off. Corral turns off the lower priority",
        "  and the checker too.",
        "- Neither library writes checkpoints or TensorBoard files in the measured time. Corral writes its metrics.",
    ]
    return "\n".join([*lines, ""])


def table_row(case: dict[str, Any]) -> str:
    """Return a case's line of the table."""
    speeds = [spread([pair[library]["steps_per_s"] for pair in case["pairs"]], "{:,.0f}") for library in NAMES]
    ratios = ", ".join(f"{pair['ratio']:.2f}" for pair in case["pairs"])
    met = "yes" if case["median_ratio"] >= case["target"] else "**no**"
    cells = [case["work"], *speeds, ratios, f"{case['median_ratio']:.2f}", f"at least {case['target']:g}", met]
    return f"| {' | '.join(cells)} |"


def note(case: dict[str, Any]) -> str:
    """Return how a case was measured."""
    settings, pairs = case["settings"], case["pairs"]
    counts = {
        key: ", ".join(
            f"{statistics.fmean(i[key] for pair in pairs for i in pair[library]['iterations']):,.1f}"
            for library in NAMES
        )
        for key in ("steps", "gradient_steps", "episodes")
    }
    threads = {pair["rllib_torch_threads"]["threads"] for pair in pairs}
    busy = [pair[library]["busy_before_percent"] for pair in pairs for library in NAMES]
    return (
        f"- {case['work']}: rollouts of {settings['n_envs']} × {settings['n_steps']} steps, minibatches of "
        f"{settings['batch_size']}, {settings['n_epochs']} epochs; {case['iterations']} iterations are timed, after "
        f"{case['warm_up_iterations']} others. Means of an iteration, in the order of the table: {counts['steps']} "
        f"steps; {counts['gradient_steps']} gradient steps; {counts['episodes']} episodes that end. Torch chose "
        f"{max(threads)} thread(s). Just before the runs, other programs used {statistics.median(busy):.0f}% of the "
        f"cores (median; at most {max(busy):.0f}%)."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rllib-python", required=True, metavar="FILE", help="Python of a venv with ray[rllib], torch")
    parser.add_argument("--pairs", type=int, default=3, help="rounds of runs of every case (default: 3)")
    parser.add_argument("--cases", nargs="+", choices=list(CASES), metavar="NAME", help=", ".join(CASES))
    parser.add_argument("--iterations", type=int, help="timed iterations of every run (default: depends on the case)")
    parser.add_argument(
        "--out", type=Path, default=HERE / "compare_rllib.json", metavar="FILE", help="the json; .md is beside it"
    )
    options = parser.parse_args()
    if options.pairs < 1 or (options.iterations is not None and options.iterations < 2):
        parser.error("--pairs should be at least 1, --iterations at least 2")
    if options.out.suffix != ".json":
        parser.error("--out should end with .json")
    cases = {name: measure(name, options) for name in options.cases or CASES}
    measured = circumstances(options, cases)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({"measured": measured, "cases": cases}, indent=1) + "\n", encoding="utf-8")
    page = report(measured, cases)
    options.out.with_suffix(".md").write_text(page, encoding="utf-8")
    print(f"\n{page}")


if __name__ == "__main__":
    main()
