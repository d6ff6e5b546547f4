"""Envs of one run that are made by different factories, as a list of them gives them."""

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
    """A factory for each env of a run, by the env's index; called without one, it makes env 0."""

    each: tuple[EnvFactory, ...] = ()


def factory_of(factory: Callable[[], Env], env: int) -> Callable[[], Env]:
    """The factory that makes the env of this index."""
    return factory.each[env] if isinstance(factory, EnvFactoryList) else factory


def resolve_envs(
    env: EnvName | Sequence[EnvName], n_envs: int | None, kwargs: Mapping[str, Any], default: int
) -> tuple[EnvFactory, int]:
    """The factory behind a name, a callable or a list with one for each env; and how many envs there are."""
    if n_envs is not None and (isinstance(n_envs, bool) or not isinstance(n_envs, int | np.integer) or n_envs < 1):
        raise UsageError(f"n_envs {n_envs!r}: should be a whole number, at least 1")
    if isinstance(env, str | EnvFactory) or callable(env) or not isinstance(env, Iterable):
        return resolve_env(env, kwargs), default if n_envs is None else n_envs
    given = list(env)
    if not given:
        raise UsageError("the list of env factories is empty; give one factory for each env")
    if n_envs is not None and n_envs != len(given):
        raise UsageError(f"n_envs {n_envs} does not agree with a list of {len(given)} factories; leave n_envs out")
    known: dict[int, EnvFactory] = {}  # a factory that is there many times is sent to workers once
    for one in given:
        if id(one) not in known:
            known[id(one)] = resolve_env(one, kwargs)
    each = tuple(known[id(one)] for one in given)
    if any(factory.is_vector for factory in known.values()):
        raise UsageError("a factory that takes num_envs makes all envs at once; give it alone, not in a list")
    first = each[0]
    return EnvFactoryList(
        first.name, first.kwargs, first.pickled, first.local_callable, spec=first.spec, each=each
    ), len(given)
