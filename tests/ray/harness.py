"""Runs of ``corral train --backend ray``, the moments of faults, and how long a run pauses after one."""

from __future__ import annotations

import functools
import json
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.faults.harness import Run, Trainer

GAMES = Path(__file__).with_name("games.py")
WALK, WIDE_WALK, LARGE_WALK = "games.py:Walk", "games.py:WideWalk", "games.py:LargeWalk"
SEEDS = range(5)
SETTINGS = {
    "n_envs": 6,
    "n_steps": 64,
    "batch_size": 128,
    "n_epochs": 2,
    "timesteps": 7680,
    "checkpoint_freq": 768,
    "eval_freq": 0,
    "tensorboard": False,
    "seed": 1,
}
"""Twenty iterations of 384 steps, which take 5 s on three nodes, with a checkpoint after every second one."""


class RayRun(Run):
    """A run directory, next to a copy of ``games.py``."""

    def __init__(self, path: Path, env: str = WALK, **settings: Any) -> None:
        super().__init__(path, env)
        self.settings = {**(SETTINGS if env in (WALK, WIDE_WALK, LARGE_WALK) else {}), **settings}
        shutil.copy(GAMES, path.parent)

    def undisturbed(self) -> tuple[str, int]:
        """Return the hash of the weights and the number of steps of the same run with workers and without faults."""
        return _undisturbed(self.env, json.dumps(self.settings))

    @property
    def result(self) -> tuple[str, int]:
        """Return the hash of the weights and the number of steps."""
        return self.summary["weights_sha256"], self.summary["steps"]

    def check_equal(self) -> None:
        """Check that the run ended like one without faults."""
        assert self.result == self.undisturbed(), "the run differs from one without faults"


@functools.cache
def _undisturbed(env: str, settings: str) -> tuple[str, int]:
    with tempfile.TemporaryDirectory() as directory:
        run = RayRun(Path(directory) / "undisturbed", env, **json.loads(settings))
        run.train("--backend", "worker", "--num-workers", "2").wait()
        return run.result


def flags(address: str, num_workers: int = 3, node_timeout: float = 15.0) -> Sequence[str]:
    """Return the flags of a run on this cluster."""
    words: list[Any] = ["--backend", "ray", "--ray-address", address, "--num-workers", num_workers]
    return [*map(str, words), "--node-timeout", str(node_timeout)]


def moment(name: str, seed: int) -> random.Random:
    """Return a random generator for the moment of a fault and what it hits; print where its seed comes from."""
    print(f"\n{name}, seed {seed}:", end=" ")
    return random.Random(f"{name}-{seed}")


def wait_for_moment(trainer: Trainer, rng: random.Random, first: int = 2, last: int = 8) -> None:
    """Wait for a random number of iterations, and for a random part of one."""
    rows, delay = rng.randint(first, last), rng.random() * 0.5
    trainer.wait_for_rows(rows)
    time.sleep(delay)
    print(f"{delay:.2f} s after {rows} iterations;", end=" ")


def longest_pause(trainer: Trainer, cause: Callable[[], object] = lambda: None, seconds: float = 300.0) -> float:
    """Cause a fault, wait for the end of the trainer, and return the longest time between two iterations.

    Fail if the trainer stays silent for ``seconds``.
    """
    file = trainer.run.path / "metrics.jsonl"
    size, last, longest = file.stat().st_size, time.monotonic(), 0.0
    with ThreadPoolExecutor(1) as executor:
        caused = executor.submit(cause)
        while trainer.process.poll() is None:
            now = time.monotonic()
            if (new := file.stat().st_size) != size:
                size, longest, last = new, max(longest, now - last), now
            if now - last > seconds:
                trainer.kill_all()
                raise AssertionError(f"no iteration for {seconds} s:\n{trainer.out[-3000:]}\n{trainer.err[-3000:]}")
            time.sleep(0.01)
        caused.result()
    print(f"longest pause {longest:.1f} s")
    return longest
