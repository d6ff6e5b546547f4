"""The examination of an env: each check looks at one thing and says pass, warn or fail, with the remedy.

Data is looked at through the same stepper that training uses, so what passes here passes there. Every check that makes
the env does so in another process, where the env may crash or hang.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import cloudpickle
import gymnasium as gym

from corral.core.errors import CorralError, EnvFault, UsageError, WorkerDied
from corral.doctor.apart import apart
from corral.doctor.episodes import check_coming_back, check_seeds, check_states
from corral.doctor.finding import Finding
from corral.doctor.walk import check_data
from corral.envs.factory import EnvFactory, resolve_env
from corral.processes.pool import descriptors_needed
from corral.vec import ProcessVectorEnv

__all__ = ["Finding", "examine"]

_MEMORY_ENVS = 4


def examine(
    env: str | Callable[..., gym.Env[Any, Any]], kwargs: Mapping[str, Any], n_envs: int, steps: int
) -> Iterator[Finding]:
    """Run every check, one finding after the other; the later ones are left out if the env cannot even be made."""
    factory = resolve_env(env, kwargs)
    checks: list[tuple[str, Callable[[], Iterable[Finding]]]] = [
        ("factory pickles", lambda: _pickles(factory)),
        ("a fresh process can make and reset it", lambda: _spawns(factory)),
        ("returned data fits the spaces", lambda: apart(check_data, factory, steps=steps)),
        ("same seed, same episode", lambda: check_seeds(factory)),
        ("get_state and set_state", lambda: check_states(factory)),
        ("envs come back after a crash", lambda: apart(check_coming_back, factory)),
        ("memory", lambda: _memory(factory, n_envs)),
        ("open files", lambda: _limits(n_envs)),
    ]
    for what, check in checks:
        try:
            yield from check()
        except CorralError as error:  # the later ones would meet it again
            yield Finding("fail", what, str(error), "fix the env; training would stop here too")
            return


def _pickles(factory: EnvFactory) -> Iterator[Finding]:
    size = len(cloudpickle.dumps(factory))
    if size > 10 * 2**20:
        yield Finding("warn", "factory pickles", f"{size / 2**20:.0f} MB", "load large data inside the factory instead")
    else:
        yield Finding("pass", "factory pickles", f"{size:,} bytes")


def _spawns(factory: EnvFactory) -> Iterator[Finding]:
    started = time.perf_counter()
    env = ProcessVectorEnv(factory, 1, num_workers=1, start_method="spawn", seed=0)
    try:
        env.reset()
    finally:
        env.close()
    seconds = time.perf_counter() - started
    yield Finding("pass", "a fresh process can make and reset it", f"{seconds:.1f} s, start-up included")


def _memory(factory: EnvFactory, n_envs: int) -> Iterator[Finding]:
    def resident(n: int) -> float:
        env = ProcessVectorEnv(factory, n, num_workers=1, seed=0)
        try:
            env.reset()
            return float(env.apply(_resident_memory, [0])[0])
        finally:
            env.close()

    import psutil

    base = resident(1)
    try:
        each = max(0.0, resident(1 + _MEMORY_ENVS) - base) / _MEMORY_ENVS
    except UsageError as error:
        yield Finding("fail", "a second env", str(error), "make a new env of the same kind in each call of the factory")
        return
    except (EnvFault, WorkerDied) as error:
        why = error.summary or str(error)
        seen = f"{base / 2**20:.0f} MB a worker; a second env in the same process fails: {why}"
        yield Finding("warn", "memory", seen, "give each env a process of its own: --num-workers as many as --n-envs")
        return
    free = psutil.virtual_memory().available
    seen = f"{each / 2**20:.1f} MB an env, {base / 2**20:.0f} MB a worker; {free / 2**30:.1f} GB are free"
    if each * n_envs > 0.8 * free:
        yield Finding("fail", "memory", seen, f"--n-envs {max(1, int(0.8 * free / max(each, 1)))} would fit")
    else:
        yield Finding("pass", "memory", seen)


def _resident_memory(_env: Any) -> int:
    import psutil

    return int(psutil.Process().memory_info().rss)


def _limits(n_envs: int) -> Iterator[Finding]:
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = descriptors_needed(n_envs)
    seen = f"{soft:,} (at most {hard:,}); {n_envs} workers would need about {needed}"
    if 0 <= hard < needed:
        yield Finding(
            "fail", "open files", seen, "raise it (ulimit -n) or put several envs in each worker (--num-workers)"
        )
    else:
        yield Finding("pass", "open files", seen)
