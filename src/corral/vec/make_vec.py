"""Functions that make vector envs: for training, and for users who want only a fast vector env."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, Literal

from corral.core.errors import UsageError
from corral.envs.env_lists import EnvName, resolve_envs
from corral.envs.factory import EnvFactory
from corral.processes.pool import StartMethod
from corral.processes.recovery_config import RecoveryConfig
from corral.vec.api import CorralVectorEnv, InfoMode
from corral.vec.process import ProcessVectorEnv
from corral.vec.serial import SerialVectorEnv

__all__ = ["make_parallel_env", "make_vector_env"]


def make_vector_env(
    factory: EnvFactory,
    n_envs: int,
    *,
    backend: Literal["serial", "process"],
    num_workers: int | None = None,
    start_method: StartMethod = "auto",
    seed: int | None = None,
    infos: InfoMode = "full",
    recovery: RecoveryConfig | None = None,
) -> CorralVectorEnv:
    """Return a vector env of ``n_envs`` copies with this backend. The backends differ only in speed."""
    if backend not in ("serial", "process"):
        raise UsageError(f"backend is {backend!r}, expected 'serial' or 'process'")
    if backend == "serial":
        recovery = recovery or RecoveryConfig()
        return SerialVectorEnv(
            factory,
            n_envs,
            seed=seed,
            infos=infos,
            recover=recovery.recover,
            env_known_to_work=recovery.env_known_to_work,
        )
    return ProcessVectorEnv(
        factory, n_envs, num_workers=num_workers, start_method=start_method, seed=seed, infos=infos, recovery=recovery
    )


def make_parallel_env(
    env: EnvName | Sequence[EnvName],
    n_envs: int | None = None,
    *,
    num_workers: int | None = None,
    start_method: StartMethod = "auto",
    backend: Literal["serial", "process"] = "process",
    seed: int | None = None,
    step_timeout: float | None = None,
    **env_kwargs: Any,
) -> CorralVectorEnv:
    """Return a parallel ``gymnasium.vector.VectorEnv`` of ``n_envs`` copies of ``env`` (default: 8).

    ``env`` is a name (as on the command line) or any callable that returns an env: lambdas and local classes work. It
    may also be a list of names and callables, one for each env; the length of the list is then the number of envs.
    ``seed`` determines the seed of every episode of every env; without it, seed the envs by ``reset(seed=...)``.

    A worker that dies, or makes no progress for ``step_timeout`` seconds, is restarted with a warning, and its envs are
    restored to where they were by replaying their episodes. An env that raises is restored in the same way. Where that
    cannot be done exactly (for example in episodes without a known seed), the episode is truncated. Attributes that
    were set by ``set_attr`` are not restored.
    """
    factory, n_envs = resolve_envs(env, n_envs, env_kwargs, default=8)
    if num_workers is not None and not 1 <= num_workers <= n_envs:
        raise UsageError(f"num_workers is {num_workers}, expected 1 to n_envs ({n_envs})")
    if backend == "serial" and (num_workers or start_method != "auto" or step_timeout is not None):
        raise UsageError("num_workers, start_method and step_timeout are for backend process, but backend is serial")
    return make_vector_env(
        factory,
        n_envs,
        backend=backend,
        num_workers=num_workers,
        start_method=start_method,
        seed=seed,
        recovery=RecoveryConfig(
            recover=True, step_timeout=step_timeout, warn=lambda text: warnings.warn(text, stacklevel=2)
        ),
    )
