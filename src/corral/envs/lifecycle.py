"""Makes, probes and closes envs, and describes the exceptions that they raise."""

from __future__ import annotations

import contextlib
import itertools
import os
import traceback
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np

from corral.core.errors import EnvFault, EnvLocation, MissingPackage, UsageError
from corral.core.seeding import construction_seed, seed_global_generators
from corral.envs.env_info import EnvInfo
from corral.envs.env_lists import factory_of
from corral.envs.vector_adapter import VectorEnv

__all__ = [
    "ENV_EXCEPTIONS",
    "FLAG_TYPES",
    "build_envs",
    "close_env",
    "describe_error",
    "format_action",
    "format_env_traceback",
    "mask_after",
    "mask_method",
    "probe_env",
    "register_open_env",
    "seeded_factory",
    "unwrap_scalar",
]

Env = gym.Env[Any, Any]
ENV_EXCEPTIONS = (Exception, SystemExit)
"""Exceptions of an env that Corral handles as a fault of the env."""
FLAG_TYPES = (bool, np.bool_, int, np.integer)
"""Types that ``terminated`` and ``truncated`` may have."""
_CALLING_MODULES = ("corral.vec.", "corral.envs.lifecycle", "corral.processes.")
"""Prefixes of the modules of Corral that call envs."""
_open_envs: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
"""The unwrapped envs that this process made and has not closed, by ``id``."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_open_envs.clear)  # a forked worker may use its copies of these envs


def build_envs(factory: Callable[[], Env], first_env: int, n: int) -> list[Env]:
    """Make ``n`` envs, the first with index ``first_env``.

    If a constructor raises, close the envs that were made and raise an EnvFault with the traceback.
    """
    envs: list[Env] = []
    try:
        for i in range(first_env, first_env + n):
            env = factory_of(factory, i)()
            register_open_env(env, factory)
            envs.append(env)
            EnvInfo.from_env(envs[0]).check_same(EnvInfo.from_env(envs[-1]))
    except ENV_EXCEPTIONS as error:
        other_env_is_open = bool(_open_envs)
        for i, env in enumerate(envs):
            close_env(env, first_env + i)
        if isinstance(error, UsageError):
            raise
        if isinstance(error, gym.error.DependencyNotInstalled):
            raise MissingPackage(f"the env cannot be made: {error}") from None
        location = EnvLocation(first_env + len(envs), episode=-1, seed=None, step=0)
        fault = EnvFault(f"making the env failed: {describe_error(error)}", location, format_env_traceback(error), True)
        if other_env_is_open:
            fault.advice = (
                "The same process made another env before. If a process can hold only one, give each env a process of "
                "its own: set --num-workers to the number of --n-envs"
            )
        raise fault from error
    return envs


def seeded_factory(factory: Callable[[], Env], first_env: int, seed: int | None) -> Callable[[], Env]:
    """Return a factory that seeds the global random generators before each env it makes.

    Its first call makes the env with index ``first_env``, the next call the env after it. Without a seed, it is
    ``factory`` itself.
    """
    if seed is None:
        return factory
    indices = itertools.count(first_env)

    def make() -> Env:
        index = next(indices)
        seed_global_generators(construction_seed(seed, index))
        return factory_of(factory, index)()

    make.name = getattr(factory, "name", "the env factory")  # type: ignore[attr-defined]  # for error messages
    return make


def register_open_env(env: Env | VectorEnv, factory: Callable[[], Env]) -> None:
    """Record that an env is open; raise a UsageError if the factory returned an env that is open already.

    Otherwise two rows of a batch would step the same env.
    """
    unwrapped = env.unwrapped
    if _open_envs.get(id(unwrapped)) is unwrapped:
        raise UsageError(
            f"{getattr(factory, 'name', 'the env factory')} returned the same env object again, but each env of a run "
            "must be an object of its own: make a new one in each call, as in lambda: MyEnv()"
        )
    with contextlib.suppress(TypeError):  # a class with __slots__ may allow no weak references
        _open_envs[id(unwrapped)] = unwrapped


def format_env_traceback(error: BaseException) -> str:
    """Return the traceback of an env's exception as text, without the frames of Corral that called the env."""
    trace = error.__traceback__
    while trace is not None and str(trace.tb_frame.f_globals.get("__name__")).startswith(_CALLING_MODULES):
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace))


def describe_error(error: BaseException) -> str:
    """Return the type and the message of an exception."""
    return f"{type(error).__name__}: {error}".rstrip(": ")


def format_action(action: Any) -> str:
    """Return an action as text of at most 120 characters."""
    value = action.item() if isinstance(action, np.generic) else action
    return f"{value!r:.120}"


def close_env(env: Env | VectorEnv, number: int) -> None:
    """Close an env. An exception is only a warning, as the env is not used any more."""
    try:
        _open_envs.pop(id(env.unwrapped), None)
        env.close()
    except Exception as error:
        warnings.warn(f"closing env {number} raised {describe_error(error)}", stacklevel=2)


def probe_env(factory: Callable[[], Env]) -> EnvInfo:
    """Return the properties of the envs of a factory. This makes an env and closes it."""
    with contextlib.chdir("."):  # restores the working directory, which an env may change
        (env,) = build_envs(factory, 0, 1)
        env_info = EnvInfo.from_env(env)
        close_env(env, 0)
    return env_info


def mask_method(env: Env) -> Callable[[], Any] | None:
    """Return the env's method ``action_masks``; None if it has none."""
    return env.get_wrapper_attr("action_masks") if env.has_wrapper_attr("action_masks") else None


def mask_after(method: Callable[[], Any] | None, outcome: Any) -> Any:
    """Return the action mask after a step; None without a mask method, or if the episode ended.

    ``outcome`` is what ``step`` returned. It is validated later, so it may be anything.
    """
    if method is None or not isinstance(outcome, tuple) or len(outcome) != 5:
        return None
    is_done = any(isinstance(flag, FLAG_TYPES) and flag for flag in map(unwrap_scalar, outcome[2:4]))
    return None if is_done else method()


def unwrap_scalar(value: Any) -> Any:
    """Return the element of an array of shape (), such as ``np.array(1.0)``; return anything else as it is.

    An array of shape (1,) is not unwrapped, because it comes from a batched env where a single one is expected.
    """
    return value[()] if isinstance(value, np.ndarray) and value.shape == () else value
