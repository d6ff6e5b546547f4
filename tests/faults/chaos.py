"""Random kills for as long as you like: ``python -m tests.faults.chaos --minutes 5``.

Workers are killed and stopped, the trainer is killed and resumed, all at random. Then the same number of steps is
trained in peace, and the weights must be the same to the last bit.
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
LINE_SECONDS = 5.0
DEEDS = {"kill a worker": 6, "stop a worker": 2, "kill the trainer": 2}


@dataclass
class Tally:
    """What was done to one run."""

    killed: int = 0
    stopped: int = 0
    trainers: int = 0

    def __str__(self) -> str:
        return f"{self.killed} workers killed, {self.stopped} stopped, {self.trainers} trainers killed"


def torment(run: Run, seconds: float, rng: random.Random, tally: Tally) -> None:
    """Disturb a run for a while, then end it in good order."""
    started, said = time.monotonic(), 0.0
    trainer = run.train()
    while (passed := time.monotonic() - started) < seconds:
        if passed - said > LINE_SECONDS:
            said = passed
            print(f"  {passed:4.0f} s  {_steps(run):>9,} steps  {tally}", flush=True)
        _pause(trainer, rng.uniform(0.2, 2.5))
        deed = rng.choices(list(DEEDS), list(DEEDS.values()))[0]
        if deed == "kill the trainer":
            trainer.kill()
            tally.trainers += 1
            trainer = run.go_on()
        elif _is_under_way(trainer):  # before its first step, a fault would be one of the set-up
            hit = trainer.hit(signal.SIGKILL if deed == "kill a worker" else signal.SIGSTOP, rng)
            tally.killed += hit and deed == "kill a worker"
            tally.stopped += hit and deed == "stop a worker"
    trainer.wait_for(lambda: _is_under_way(trainer), "a last iteration")
    trainer.signal(signal.SIGTERM)
    trainer.wait(143)


def _pause(trainer: Trainer, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if trainer.process.poll() is not None:
            trainer.wait(143)  # says that it ended by itself, and with which words
        time.sleep(0.02)


def _is_under_way(trainer: Trainer) -> bool:
    return " steps | " in trainer.out


def _steps(run: Run) -> int:
    return int(run.rows[-1]["time/total_timesteps"]) if run.rows else 0


def try_env(env: str, backend: str, seconds: float, rng: random.Random, place: Path) -> bool:
    """Whether a tormented run and its undisturbed twin end with the same weights."""
    kwargs = {"step_ms": 0.2} if env == "toy-work" else {}
    settings = {**SETTINGS, "backend": backend, "env_kwargs": kwargs, "step_timeout": STEP_TIMEOUT}
    run, tally = Run(place / env, env, **settings, timesteps=10**9), Tally()
    print(f"{env}, backend {backend}", flush=True)
    try:
        torment(run, seconds, rng, tally)
        done = run.summary
        print(f"  {done['steps']:,} steps; {tally}; {done['restarts']} restarts", flush=True)
        twin = Run(place / f"{env}-twin", env, **settings, timesteps=done["steps"])
        twin.train().wait(seconds=600 + 3 * seconds)
        assert twin.summary["steps"] == done["steps"], "the twin made another number of steps"
        assert twin.summary["weights_sha256"] == done["weights_sha256"], "the weights differ from the twin's"
    except AssertionError as error:
        print(f"  FAIL: {error}\n  what it left is in {place}", flush=True)
        return False
    finally:
        for trainer in run.trainers:
            trainer.kill_all()
    print("  PASS: same weights as undisturbed", flush=True)
    return True


def main(argv: list[str] | None = None) -> int:
    """Exit code 0 if all was well."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0, help="of torment, all envs together [5]")
    parser.add_argument("--seed", type=int, help="to repeat a sequence of deeds [drawn]")
    parser.add_argument("--backend", choices=("process", "worker"), help="[both in turn]")
    parser.add_argument("--env", choices=ENVS, action="append", help="[all]")
    options = parser.parse_args(argv)
    seed = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    rng, place = random.Random(seed), Path(tempfile.mkdtemp(prefix="chaos-"))
    envs, backends = options.env or ENVS, [options.backend] if options.backend else ["process", "worker"]
    pairs = [(env, backend) for env in envs for backend in backends]
    seconds = 60 * options.minutes / len(pairs)
    print(f"chaos with --seed {seed}: {len(pairs)} runs, {seconds:.0f} s of torment each", flush=True)
    outcomes = {(env, backend): try_env(env, backend, seconds, rng, _new(place / backend)) for env, backend in pairs}
    bad = [f"{env} with backend {backend}" for (env, backend), good in outcomes.items() if not good]
    if not bad:
        shutil.rmtree(place)
    print(f"FAIL: {', '.join(bad)}; again with --seed {seed}" if bad else f"PASS: all {len(pairs)} runs, --seed {seed}")
    return 1 if bad else 0


def _new(path: Path) -> Path:
    path.mkdir(exist_ok=True)
    return path


if __name__ == "__main__":
    sys.exit(main())
