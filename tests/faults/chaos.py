"""Kills processes of runs at random for some minutes: ``python -m tests.faults.chaos --minutes 5``.

Workers are killed and stopped, and the trainer is killed and resumed, all at random. Then an undisturbed run trains for
the same number of steps, and its weights must be equal bit for bit.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.faults.harness import Run, Trainer

ENVS = ("CartPole-v1", "toy-maze", "toy-everything", "toy-work")
SETTINGS = {"n_envs": 6, "num_workers": 3, "n_steps": 64, "batch_size": 128, "checkpoint_freq": 3840}
STEP_TIMEOUT = 2
PRINT_SECONDS = 5.0
FAULTS = {"kill a worker": 6, "stop a worker": 2, "kill the trainer": 2}


@dataclass
class FaultCounts:
    """How many faults one run had."""

    killed: int = 0
    stopped: int = 0
    trainers: int = 0

    def __str__(self) -> str:
        return f"{self.killed} workers killed, {self.stopped} stopped, {self.trainers} trainers killed"


def disturb(run: Run, seconds: float, rng: random.Random, counts: FaultCounts) -> None:
    """Send signals to processes of a run for so many seconds, then end it with SIGTERM."""
    started, last_printed = time.monotonic(), 0.0
    trainer = run.train()
    while (elapsed := time.monotonic() - started) < seconds:
        if elapsed - last_printed > PRINT_SECONDS:
            last_printed = elapsed
            print(f"  {elapsed:4.0f} s  {_steps(run):>9,} steps  {counts}", flush=True)
        _pause(trainer, rng.uniform(0.2, 2.5))
        fault = rng.choices(list(FAULTS), list(FAULTS.values()))[0]
        if fault == "kill the trainer":
            trainer.kill()
            counts.trainers += 1
            trainer = run.resume_or_train()
        elif _is_under_way(trainer):  # a fault before the first step would end the run
            was_sent = trainer.signal_random_worker(signal.SIGKILL if fault == "kill a worker" else signal.SIGSTOP, rng)
            counts.killed += was_sent and fault == "kill a worker"
            counts.stopped += was_sent and fault == "stop a worker"
    trainer.wait_for(lambda: _is_under_way(trainer), "a last iteration")
    trainer.signal(signal.SIGTERM)
    trainer.wait(143)


def _pause(trainer: Trainer, seconds: float) -> None:
    """Wait; fail if the trainer ends meanwhile."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if trainer.process.poll() is not None:
            trainer.wait(143)  # fails, and shows the exit code and the output
        time.sleep(0.02)


def _is_under_way(trainer: Trainer) -> bool:
    return " steps | " in trainer.out


def _steps(run: Run) -> int:
    return int(run.rows[-1]["time/total_timesteps"]) if run.rows else 0


def check_env(env: str, backend: str, seconds: float, rng: random.Random, directory: Path) -> bool:
    """Return whether a run with faults and an undisturbed run end with the same weights."""
    kwargs = {"step_ms": 0.2} if env == "toy-work" else {}
    settings = {**SETTINGS, "backend": backend, "env_kwargs": kwargs, "step_timeout": STEP_TIMEOUT}
    run, counts = Run(directory / env, env, **settings, timesteps=10**9), FaultCounts()
    print(f"{env}, backend {backend}", flush=True)
    try:
        disturb(run, seconds, rng, counts)
        summary = run.summary
        print(f"  {summary['steps']:,} steps; {counts}; {summary['restarts']} restarts", flush=True)
        undisturbed = Run(directory / f"{env}-undisturbed", env, **settings, timesteps=summary["steps"])
        undisturbed.train().wait(seconds=600 + 3 * seconds)
        assert undisturbed.summary["steps"] == summary["steps"], "the undisturbed run made another number of steps"
        assert undisturbed.summary["weights_sha256"] == summary["weights_sha256"], (
            "the weights differ from those of the undisturbed run"
        )
    except AssertionError as error:
        print(f"  FAIL: {error}\n  its files are in {directory}", flush=True)
        return False
    finally:
        for trainer in run.trainers:
            trainer.kill_all()
    print("  PASS: same weights as without faults", flush=True)
    return True


def main(argv: list[str] | None = None) -> int:
    """Return 0 if all runs have the same weights as without faults."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0, help="how long runs get faults, all envs together [5]")
    parser.add_argument("--seed", type=int, help="to repeat a sequence of faults [random]")
    parser.add_argument("--backend", choices=("process", "worker"), help="[both in turn]")
    parser.add_argument("--env", choices=ENVS, action="append", help="[all]")
    options = parser.parse_args(argv)
    seed = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    rng, directory = random.Random(seed), Path(tempfile.mkdtemp(prefix="chaos-"))
    envs, backends = options.env or ENVS, [options.backend] if options.backend else ["process", "worker"]
    pairs = [(env, backend) for env in envs for backend in backends]
    seconds = 60 * options.minutes / len(pairs)
    print(f"chaos with --seed {seed}: {len(pairs)} runs, {seconds:.0f} s of faults each", flush=True)
    outcomes = {
        (env, backend): check_env(env, backend, seconds, rng, _make_directory(directory / backend))
        for env, backend in pairs
    }
    failed = [f"{env} with backend {backend}" for (env, backend), passed in outcomes.items() if not passed]
    if not failed:
        shutil.rmtree(directory)
    if failed:
        print(f"FAIL: {', '.join(failed)}; again with --seed {seed}")
    else:
        print(f"PASS: all {len(pairs)} runs, --seed {seed}")
    return 1 if failed else 0


def _make_directory(path: Path) -> Path:
    """Create a directory and return its path."""
    path.mkdir(exist_ok=True)
    return path


if __name__ == "__main__":
    sys.exit(main())
