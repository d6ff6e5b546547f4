"""Lists of env factories: the envs of one run may be made by different factories, one for each env."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from corral.core.errors import UsageError
from corral.envs.factory import EnvFactory, resolve_env

__all__ = ["EnvFactoryList", "factory_of", "resolve_envs"]

Env = gym.Env[Any, Any]
EnvName = str | Callable[..., Env] | EnvFactory


@dataclass(frozen=True, slots=True)
class EnvFactoryList(EnvFactory):
    """A factory for each env of a run. Calling the list makes env 0."""

    factories: tuple[EnvFactory, ...] = ()
    """The factories by the index of their env."""


def factory_of(factory: Callable[[], Env], env: int) -> Callable[[], Env]:
    """Return the factory that makes the env with index ``env``."""
    return factory.factories[env] if isinstance(factory, EnvFactoryList) else factory


def resolve_envs(
    env: EnvName | Sequence[EnvName], n_envs: int | None, kwargs: Mapping[str, Any], default: int
) -> tuple[EnvFactory, int]:
    """Return the factory for a name, a callable or a list with one for each env, and the number of envs.

    The number is ``n_envs``, or the length of the list, or else ``default``.
    """
    if n_envs is not None and (isinstance(n_envs, bool) or not isinstance(n_envs, int | np.integer) or n_envs < 1):
        raise UsageError(f"n_envs {n_envs!r}: should be a whole number, at least 1")
    if isinstance(env, str | EnvFactory) or callable(env) or not isinstance(env, Iterable):
        return resolve_env(env, kwargs), default if n_envs is None else n_envs
    entries = list(env)
    if not entries:
        raise UsageError("the list of env factories is empty; give one factory for each env")
    if n_envs is not None and n_envs != len(entries):
        raise UsageError(f"n_envs {n_envs} does not agree with a list of {len(entries)} factories; leave n_envs out")
    return _resolve_list(entries, kwargs), len(entries)


def _resolve_list(entries: Sequence[EnvName], kwargs: Mapping[str, Any]) -> EnvFactoryList:
    """Return one factory for a list of names or callables."""
    resolved: dict[int, EnvFactory] = {}  # by identity, so that a repeated factory is sent to workers only once
    for entry in entries:
        if id(entry) not in resolved:
            resolved[id(entry)] = resolve_env(entry, kwargs)
    if any(factory.is_vector for factory in resolved.values()):
        raise UsageError("a factory that takes num_envs makes all envs at once; give it alone, not in a list")
    factories = tuple(resolved[id(entry)] for entry in entries)
    first = factories[0]
    return EnvFactoryList(
        name=first.name,
        kwargs=first.kwargs,
        pickled=first.pickled,
        local_callable=first.local_callable,
        spec=first.spec,
        factories=factories,
    )
