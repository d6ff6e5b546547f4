"""What ``auto`` means: a short look at the env and the machine, and a reason in words."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import Literal

import numpy as np

from corral.core.config import TrainConfig
from corral.core.envs import EnvFactory
from corral.core.machine import available_cores
from corral.vec import make_vector_env

__all__ = ["BackendChoice", "choose_backend"]

_MESSAGE_US = 150.0
"""What it costs, in microseconds, to tell the workers to step and to hear that all of them have."""
_PROBE_STEPS, _PROBE_SECONDS = 200, 0.5


@dataclass(frozen=True, slots=True)
class BackendChoice:
    """Who steps, with how many workers, and why. Never changes a result."""

    backend: Literal["serial", "process", "worker"]
    num_workers: int
    why: str


def choose_backend(config: TrainConfig, factory: EnvFactory) -> BackendChoice:
    """What the user asked for, or the backend that a step of one env suggests."""
    cores = available_cores()
    if config.backend == "serial":
        return BackendChoice("serial", 1, "as asked")
    workers = config.num_workers or min(cores, config.n_envs)
    if config.backend in ("process", "worker"):
        return BackendChoice(config.backend, workers, "as asked")
    if config.num_workers is not None:
        return BackendChoice("worker", workers, "workers were asked for")
    if workers == 1:
        reason = "there is one core" if cores == 1 else "there is one env"
        return BackendChoice("serial", 1, f"auto: {reason}, so workers would only cost messages")
    step = _step_microseconds(factory)
    alone = step * config.n_envs
    shared = step * -(-config.n_envs // workers) + _MESSAGE_US
    figures = f"auto: {config.n_envs} envs step in {alone:,.0f} µs here, in {shared:,.0f} µs with {workers} workers"
    return BackendChoice("worker", workers, figures) if shared < alone else BackendChoice("serial", 1, figures)


def _step_microseconds(factory: EnvFactory) -> float:
    """Median time of a step of one env with random legal actions."""
    env = make_vector_env(factory, 1, backend="serial", seed=0, infos="summed")
    try:
        env.reset_arrays()
        times: list[float] = []
        end = time.perf_counter() + _PROBE_SECONDS
        random = np.random.default_rng(0)
        while len(times) < _PROBE_STEPS and (time.perf_counter() < end or not times):
            env.codec.decode(env.codec.random(env.masks, 1, random), env.arrays.actions)
            start = time.perf_counter()
            env.send()
            env.recv()
            times.append(time.perf_counter() - start)
        return statistics.median(times) * 1e6
    finally:
        env.close()
