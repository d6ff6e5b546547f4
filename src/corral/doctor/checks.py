"""The checks of an env: each examines one thing and returns pass, warn or fail, with a remedy.

Data is checked by the same stepper that training uses, so that what passes here passes there. Every check that makes
the env does so in a child process, where the env may crash or hang.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import cloudpickle
import gymnasium as gym
import psutil

from corral.core.errors import CorralError, EnvFault, UsageError, WorkerDied
from corral.doctor.episodes import check_restoring, check_seeds, check_states
from corral.doctor.finding import Finding
from corral.doctor.isolation import call_isolated
from corral.doctor.walk import check_data
from corral.envs.factory import EnvFactory, resolve_env
from corral.processes.pool import descriptors_needed
from corral.vec import ProcessVectorEnv

__all__ = ["Finding", "examine"]

_MEMORY_ENVS = 4
"""Envs that are added to one, to measure the memory of each."""
_MAX_PICKLE_BYTES = 10 * 2**20
_MAX_MEMORY_FRACTION = 0.8
"""The fraction of the free memory that envs may take."""


def examine(
    env: str | Callable[..., gym.Env[Any, Any]], kwargs: Mapping[str, Any], n_envs: int, steps: int
) -> Iterator[Finding]:
    """Run the checks in order and yield their findings; stop at the first check that raises an error."""
    factory = resolve_env(env, kwargs)
    checks: list[tuple[str, Callable[[], Iterable[Finding]]]] = [
        ("factory pickles", lambda: _check_pickling(factory)),
        ("a fresh process can make and reset it", lambda: _check_spawning(factory)),
        ("returned data fits the spaces", lambda: call_isolated(check_data, factory, steps=steps)),
        ("same seed, same episode", lambda: check_seeds(factory)),
        ("get_state and set_state", lambda: check_states(factory)),
        ("envs come back after a crash", lambda: call_isolated(check_restoring, factory)),
        ("memory", lambda: _check_memory(factory, n_envs)),
        ("open files", lambda: _check_open_files(n_envs)),
    ]
    for what, check in checks:
        try:
            yield from check()
        except CorralError as error:  # later checks would raise it again
            yield Finding("fail", what, str(error), "fix the env; training would stop here too")
            return


def _check_pickling(factory: EnvFactory) -> Iterator[Finding]:
    size = len(cloudpickle.dumps(factory))
    if size > _MAX_PICKLE_BYTES:
        yield Finding("warn", "factory pickles", f"{size / 2**20:.0f} MB", "load large data inside the factory instead")
    else:
        yield Finding("pass", "factory pickles", f"{size:,} bytes")


def _check_spawning(factory: EnvFactory) -> Iterator[Finding]:
    started = time.perf_counter()
    env = ProcessVectorEnv(factory, 1, num_workers=1, start_method="spawn", seed=0)
    try:
        env.reset()
    finally:
        env.close()
    seconds = time.perf_counter() - started
    yield Finding("pass", "a fresh process can make and reset it", f"{seconds:.1f} s, start-up included")


def _check_memory(factory: EnvFactory, n_envs: int) -> Iterator[Finding]:
    worker_bytes = _worker_memory(factory, 1)
    try:
        env_bytes = max(0.0, _worker_memory(factory, 1 + _MEMORY_ENVS) - worker_bytes) / _MEMORY_ENVS
    except UsageError as error:
        yield Finding("fail", "a second env", str(error), "make a new env of the same kind in each call of the factory")
        return
    except (EnvFault, WorkerDied) as error:
        why = error.summary or str(error)
        result = f"{worker_bytes / 2**20:.0f} MB a worker; a second env in the same process fails: {why}"
        yield Finding("warn", "memory", result, "give each env a process of its own: set --num-workers to --n-envs")
        return
    free_bytes = psutil.virtual_memory().available
    result = f"{env_bytes / 2**20:.1f} MB an env, {worker_bytes / 2**20:.0f} MB a worker; "
    result += f"{free_bytes / 2**30:.1f} GB are free"
    max_bytes = _MAX_MEMORY_FRACTION * free_bytes
    if env_bytes * n_envs > max_bytes:
        yield Finding("fail", "memory", result, f"--n-envs {max(1, int(max_bytes / max(env_bytes, 1)))} would fit")
    else:
        yield Finding("pass", "memory", result)


def _worker_memory(factory: EnvFactory, n_envs: int) -> float:
    """Return the resident memory, in bytes, of a worker process with so many envs."""
    env = ProcessVectorEnv(factory, n_envs, num_workers=1, seed=0)
    try:
        env.reset()
        return float(env.apply(_resident_memory, [0])[0])
    finally:
        env.close()


def _resident_memory(_env: Any) -> int:
    return int(psutil.Process().memory_info().rss)


def _check_open_files(n_envs: int) -> Iterator[Finding]:
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = descriptors_needed(n_envs)
    result = f"the limit is {soft:,} (at most {hard:,}); {n_envs} workers would need about {needed}"
    if 0 <= hard < needed:
        yield Finding(
            "fail", "open files", result, "raise it (ulimit -n) or put several envs in each worker (--num-workers)"
        )
    else:
        yield Finding("pass", "open files", result)
