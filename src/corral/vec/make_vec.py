"""One way to make a vector env, for training and for people who want nothing else from Corral."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, Literal

from corral.core.errors import UsageError
from corral.envs.env_lists import EnvName, resolve_envs
from corral.envs.factory import EnvFactory
from corral.processes.pool import StartMethod
from corral.processes.supervision import RecoveryConfig
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
    """A vector env of either kind; apart from speed they behave the same."""
    if backend not in ("serial", "process"):
        raise UsageError(f"backend {backend!r}: should be serial or process")
    if backend == "serial":
        recovery = recovery or RecoveryConfig()
        return SerialVectorEnv(
            factory, n_envs, seed=seed, infos=infos, heal=recovery.heal, known_to_work=recovery.known_to_work
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
    """A parallel ``gymnasium.vector.VectorEnv`` of ``n_envs`` copies of ``env`` (8 of them, if it is not given).

    ``env`` is a name (as on the command line) or any callable that returns an env: lambdas and local classes work.
    Or it is a list of those with one for each env, whose length is the number of envs.
    ``seed`` fixes the seed of every episode of every env; without it, seed through ``reset(seed=...)``.

    A worker that dies, or gives no sign of life for ``step_timeout`` seconds, is replaced, and its envs are brought
    back to where they were, with a warning; so is an env that raises. Where that cannot be done exactly (as in
    episodes that have no known seed) the episode ends as truncated. What was set with ``set_attr`` is not set again.
    """
    factory, n_envs = resolve_envs(env, n_envs, env_kwargs, default=8)
    if num_workers is not None and not 1 <= num_workers <= n_envs:
        raise UsageError(f"num_workers {num_workers}: should be from 1 to n_envs {n_envs}")
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
            heal=True, step_timeout=step_timeout, warn=lambda text: warnings.warn(text, stacklevel=2)
        ),
    )
