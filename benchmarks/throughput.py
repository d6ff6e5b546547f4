"""How fast is Corral? Steps per second, start-up, memory and time to a trained policy, beside what others use.

    python benchmarks/throughput.py                           # all of it, most of an hour on two cores
    python benchmarks/throughput.py --only masked --repeats 3 # one section; the others stay as they are in the json
    python benchmarks/throughput.py --report                  # only write .md and .png anew from the json

Writes throughput.{json,md,png} beside this file, or where --output says. Every measurement runs in a fresh process, one
at a time. Within a section the competitors take turns, and every round starts with another one, so that a machine that
slows down or warms up does so for all. ``throughput_runs.py`` measures, ``throughput_report.py`` writes the report.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from throughput_report import METRICS, spell, write_report
from throughput_runs import EVAL_EPISODES, EVAL_EVERY, Job, Result

import corral
from corral.core.machine import available_cores

HERE = Path(__file__).parent
PACKAGES = ("corral", "torch", "numpy", "gymnasium", "stable-baselines3", "sb3-contrib", "envpool", "ale-py")
PROBE_SECONDS = 3.0
TARGET = 475
RL_ZOO = {
    "n_steps": 32,
    "batch_size": 256,
    "n_epochs": 20,
    "gae_lambda": 0.8,
    "gamma": 0.98,
    "ent_coef": 0.0,
    "learning_rate": 0.001,
    "learning_rate_end": 0.0,
    "clip_range": 0.2,
}
"""What rl-zoo3 uses for CartPole-v1, except that there the clip range falls in a line, which Corral cannot do."""
ATARI = {
    "n_steps": 128,
    "batch_size": 256,
    "n_epochs": 4,
    "learning_rate": 2.5e-4,
    "clip_range": 0.1,
    "ent_coef": 0.01,
    "vf_coef": 0.5,
}
"""What rl-zoo3 uses for Atari, with 8 envs and 4 frames; there learning rate and clip range fall in a line."""


@dataclass(frozen=True, slots=True)
class Section:
    """Some work, who does it, and what is measured."""

    work: str
    competitors: dict[str, Job]
    metrics: tuple[str, ...] = ("steps_per_s",)


def ppo(env: str, n_envs: int, **more: Any) -> Job:
    """The job that all trainers share: 128 steps, 4 epochs, 4 minibatches; the networks are both libraries' default."""
    settings = {"n_steps": 128, "batch_size": 128 * n_envs // 4, "n_epochs": 4}
    return {"env": env, "n_envs": n_envs, "settings": settings, **more}


def trainers(job: Job) -> dict[str, Job]:
    """Corral and Stable-Baselines3, each in two ways."""
    return {
        "corral": {"kind": "train-corral", "backend": "auto", **job},
        "corral-serial": {"kind": "train-corral", "backend": "serial", **job},
        "sb3-dummy": {"kind": "train-sb3", "vec_env": "dummy", **job},
        "sb3-subproc": {"kind": "train-sb3", "vec_env": "subproc", **job},
    }


def steppers(kind: str, names: tuple[str, ...], **more: Any) -> dict[str, Job]:
    """Vector envs of 8 CartPoles."""
    return {name: {"kind": kind, "vec_env": name, "env": "CartPole-v1", "n_envs": 8, **more} for name in names}


def sections() -> dict[str, Section]:
    """Everything that can be measured, in the order of the report."""
    work = ppo("toy-work", 8, env_kwargs={"step_ms": 0.8})
    varied = ppo("toy-work", 8, env_kwargs={"step_ms": 0.8, "spread": 0.8})
    game_boy = ppo("game-boy", 8)
    masked = trainers(ppo("toy-maze", 8, masked=True))
    pong = {"env": "ale_py:PongNoFrameskip-v4", "n_envs": 8, "settings": ATARI, "atari": True}
    nature = {"kind": "train-corral", "backend": "auto", "n_envs": 8, "settings": ATARI | {"cnn_features": 512}}
    played = {"episodic_life": True, "reward_clip": True}
    poles = {"gym": "CartPole-v1", "envpool": "envpool:CartPole-v1"}
    zoo = {"env": "CartPole-v1", "n_envs": 8, "settings": RL_ZOO, "timesteps": 100_000, "until": TARGET}
    return {
        "cartpole-8": Section("PPO on CartPole-v1, 8 envs", trainers(ppo("CartPole-v1", 8))),
        "cartpole-32": Section("PPO on CartPole-v1, 32 envs", trainers(ppo("CartPole-v1", 32))),
        "work-0.8ms": Section(
            "PPO on `toy-work`, 8 envs; a step takes 0.8 ms of processor time",
            trainers(work) | {"bare": {"kind": "bare", **work}},
        ),
        "work-varied": Section(
            "PPO on `toy-work`, 8 envs; a step takes 0.16 to 1.44 ms, evenly spread",
            trainers(varied) | {"bare": {"kind": "bare", **varied}},
        ),
        "game-boy": Section(
            "PPO on `game-boy`, 8 envs; a step is four frames of an emulated Game Boy, seen as `ram`",
            trainers(game_boy) | {"bare": {"kind": "bare", **game_boy}},
        ),
        "masked": Section(
            "PPO with action masks on `toy-maze`, 8 envs; SB3 is sb3-contrib's MaskablePPO",
            {name: masked[name] for name in ("corral", "sb3-dummy", "sb3-subproc")},
        ),
        "vec-only": Section(
            "stepping alone, with random actions: 8 CartPoles, no policy",
            steppers("step", ("corral", "sb3-subproc", "sb3-dummy", "gymnasium-async", "gymnasium-sync")),
        ),
        "collect-8-vs-64": Section(
            "Corral while it collects, learning left out: CartPole-v1 with 8 and with 64 envs",
            {f"corral-{n}": trainers(ppo("CartPole-v1", n))["corral"] for n in (8, 64)},
            ("collect_steps_per_s",),
        ),
        "pong": Section(
            "PPO on Atari's Pong, 8 envs, the Nature network, four frames of 84 x 84, rl-zoo3's settings",
            {
                "corral-envpool": {**nature, "env": "envpool:Pong-v5", "env_kwargs": played},
                "corral-ale": {**nature, "env": "ALE/Pong-v5", "env_kwargs": {"repeat_action_probability": 0.0}},
                "sb3-dummy": {"kind": "train-sb3", "vec_env": "dummy", **pong},
                "sb3-subproc": {"kind": "train-sb3", "vec_env": "subproc", **pong},
            },
        ),
        "envpool-cartpole": Section(
            "PPO on CartPole-v1 in Corral, stepped by Gymnasium and by EnvPool, with 8, 64 and 256 envs",
            {f"{name}-{n}": trainers(ppo(env, n))["corral"] for n in (8, 64, 256) for name, env in poles.items()},
            ("collect_steps_per_s", "steps_per_s"),
        ),
        "start": Section(
            "starting 8 worker processes with a CartPole each, until the first reset has returned",
            steppers("start", ("corral", "sb3-subproc", "gymnasium-async"), num_workers=8),
            ("start_s", "worker_mb"),
        ),
        "wall-clock": Section(
            f"training until CartPole-v1 is solved: mean reward at least {TARGET} in {EVAL_EPISODES} episodes with the "
            f"most likely actions, looked at every {EVAL_EVERY:,} steps; rl-zoo3's settings, one seed per repeat",
            {name: trainers(zoo)[name] for name in ("corral", "sb3-dummy")},
            ("seconds_to_reward", "steps_to_reward"),
        ),
    }


def measure(job: Job, seconds: float, seed: int) -> Result:
    """Run a job in a fresh process. What else the machine is doing is noted just before."""
    busy = psutil.cpu_percent(interval=0.2)
    command = [sys.executable, str(HERE / "throughput_runs.py"), json.dumps({**job, "seconds": seconds, "seed": seed})]
    inherited = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=900 + 10 * seconds, env=inherited)
    if done.returncode:
        raise SystemExit(f"{json.dumps(job)} failed:\n{done.stderr}")
    return {"busy_before_percent": busy, **json.loads(done.stdout.splitlines()[-1])}


def choose_threads(job: Job, seconds: float) -> dict[str, Any]:
    """Whether SB3 is faster with torch's own number of threads than with one, by the better of two short runs of each.

    In case of doubt it is one: a second thread waits for its turn in a loop, and is ruinous when a core is taken.
    """
    job = {key: value for key, value in job.items() if key not in ("until", "timesteps")}
    rates_by_threads: dict[int | None, list[float]] = {1: [], None: []}
    for _ in range(2):
        for threads, rates in rates_by_threads.items():
            rates.append(measure({**job, "threads": threads}, seconds, seed=1)["steps_per_s"])
    one, default = max(rates_by_threads[1]), max(rates_by_threads[None])
    return {"one_thread": one, "torch_default": default, "used": None if default > 1.05 * one else 1}


def measure_section(name: str, section: Section, repeats: int, seconds: float) -> dict[str, Any]:
    """All repeats of all competitors, in turns."""
    probes: dict[str, Any] = {}
    jobs = dict(section.competitors)
    for competitor, job in jobs.items():
        if job["kind"] == "train-sb3":
            probe = probes[competitor] = choose_threads(job, min(seconds, PROBE_SECONDS))
            jobs[competitor] = {**job, "threads": probe["used"]}
            chosen = "one" if probe["used"] else "torch's default"
            print(f"{name:15} {competitor:15} threads: {chosen}", flush=True)
    runs = []
    for repeat in range(repeats):
        first = repeat % len(jobs)
        for competitor in [*jobs, *jobs][first : first + len(jobs)]:
            result = measure(jobs[competitor], seconds, seed=repeat + 1)
            runs.append({"competitor": competitor, "repeat": repeat, **result})
            shown = ", ".join(f"{spell(result[key], key)} {METRICS[key].unit}" for key in section.metrics)
            busy = result["busy_before_percent"]
            warning = f" (something else kept the machine {busy:.0f}% busy just before)" if busy > 20 else ""
            print(f"{name:15} {competitor:15} {repeat + 1}/{repeats}: {shown}{warning}", flush=True)
    return {"work": section.work, "metrics": section.metrics, "threads": probes, "jobs": jobs, "runs": runs}


def circumstances(options: argparse.Namespace) -> dict[str, Any]:
    """When, where and with what: kept with every section, for they need not be measured together."""
    only = ["--only", *options.only] if options.only else []
    words = [*only, "--repeats", options.repeats, "--seconds", f"{options.seconds:g}"]
    return {
        "date": time.strftime("%Y-%m-%d"),
        "command": shlex.join(["python", "benchmarks/throughput.py", *map(str, words)]),
        "repeats": options.repeats,
        "seconds": options.seconds,
        "machine": {
            "cpu": cpu_model(),
            "cores": available_cores(),
            "ram_gb": round(psutil.virtual_memory().total / 1e9),
            "os": f"{platform.system()} {'.'.join(platform.release().split('.')[:2])}",
        },
        "versions": {"python": platform.python_version()} | {name: version(name) for name in PACKAGES},
    }


def version(package: str) -> str:
    if package == "corral":  # which may be a source tree that is not installed
        return corral.__version__
    return importlib.metadata.version(package)


def cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def main() -> None:
    everything = sections()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=list(everything), metavar="NAME", help=", ".join(everything))
    parser.add_argument("--repeats", type=int, default=5, help="of every competitor (default: 5)")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each timed run (default: 8)")
    parser.add_argument("--output", type=Path, default=HERE, metavar="DIR", help="default: beside this script")
    parser.add_argument("--report", action="store_true", help="measure nothing, write .md and .png from the json")
    options = parser.parse_args()
    if options.repeats < 1 or options.seconds <= 0:
        parser.error("--repeats should be at least 1, --seconds more than 0")
    options.output.mkdir(parents=True, exist_ok=True)
    path = options.output / "throughput.json"
    known = json.loads(path.read_text(encoding="utf-8"))["sections"] if path.exists() else {}
    if not options.report:
        where = circumstances(options)
        for name in options.only or everything:
            known[name] = {
                "measured": where,
                **measure_section(name, everything[name], options.repeats, options.seconds),
            }
            known = {other: known[other] for other in everything if other in known}
            path.write_text(json.dumps({"sections": known}, indent=1) + "\n", encoding="utf-8")
            write_report(known, options.output)
    elif not known:
        parser.error(f"there is no {path.name} to report in {options.output}")
    else:
        write_report(known, options.output)
    print((options.output / "throughput.md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
