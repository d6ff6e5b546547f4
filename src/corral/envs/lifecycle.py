"""Making and closing envs, and what they raise in words."""

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
from corral.core.seeding import making_seed, seed_global_generators
from corral.envs.env_info import EnvInfo
from corral.envs.env_lists import factory_of
from corral.envs.vector_adapter import VectorEnv

__all__ = [
    "ENV_EXCEPTIONS",
    "FLAG",
    "build_envs",
    "close_env",
    "format_action",
    "mask_after",
    "mask_method",
    "named",
    "note_in_use",
    "own_traceback",
    "probe_env",
    "scalar",
    "seeding_maker",
]

Env = gym.Env[Any, Any]
ENV_EXCEPTIONS = (Exception, SystemExit)
"""What an env may raise that is its own affair."""
_OURS = ("corral.vec.", "corral.envs.lifecycle", "corral.processes.")
"""How the names of modules begin that call envs."""
_in_use: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
"""The envs of this process that were made and not closed, without their wrappers, by identity."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_use.clear)  # a forked worker has copies of its own


def build_envs(factory: Callable[[], Env], first_env: int, n: int) -> list[Env]:
    """Make ``n`` envs; a constructor that raises is a wrong set-up, reported once with its own traceback."""
    envs: list[Env] = []
    try:
        for i in range(first_env, first_env + n):
            env = factory_of(factory, i)()
            note_in_use(env, factory)
            envs.append(env)
            EnvInfo.from_env(envs[0]).check_same(EnvInfo.from_env(envs[-1]))
    except ENV_EXCEPTIONS as error:
        another = bool(_in_use)
        for i, made in enumerate(envs):
            close_env(made, first_env + i)
        if isinstance(error, UsageError):
            raise
        if isinstance(error, gym.error.DependencyNotInstalled):
            raise MissingPackage(f"the env cannot be made: {error}") from None
        location = EnvLocation(first_env + len(envs), episode=-1, seed=None, step=0)
        fault = EnvFault(f"making the env failed: {named(error)}", location, own_traceback(error), True)
        if another:
            fault.advice = (
                "Another env was made in the same process before. If there can be only one, give each a process of its "
                "own: --num-workers as many as --n-envs"
            )
        raise fault from error
    return envs


def seeding_maker(factory: Callable[[], Env], first_env: int, seed: int | None) -> Callable[[], Env]:
    """The factory, seeding the global generators before each env that it makes, from ``first_env`` on."""
    if seed is None:
        return factory
    numbers = itertools.count(first_env)

    def make() -> Env:
        number = next(numbers)
        seed_global_generators(making_seed(seed, number))
        return factory_of(factory, number)()

    make.name = getattr(factory, "name", "the env factory")  # type: ignore[attr-defined]  # for errors
    return make


def note_in_use(env: Env | VectorEnv, factory: Callable[[], Env]) -> None:
    """Refuse an env that was made before and is still used: two rows of data would come from one env."""
    inner = env.unwrapped
    if _in_use.get(id(inner)) is inner:
        raise UsageError(
            f"{getattr(factory, 'name', 'the env factory')} returned the same env object again, but every env of a run "
            "must be its own: make a new one in each call, as in lambda: MyEnv()"
        )
    with contextlib.suppress(TypeError):  # a class with __slots__ may allow no weak references
        _in_use[id(inner)] = inner


def own_traceback(error: BaseException) -> str:
    """The env's part of a traceback, as text; ours is of no interest."""
    frames = error.__traceback__
    while frames is not None and str(frames.tb_frame.f_globals.get("__name__")).startswith(_OURS):
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(error), error, frames))


def named(error: BaseException) -> str:
    """An exception in a few words."""
    return f"{type(error).__name__}: {error}".rstrip(": ")


def format_action(action: Any) -> str:
    """An action in a few words."""
    plain = action.item() if isinstance(action, np.generic) else action
    return f"{plain!r:.120}"


def close_env(env: Env | VectorEnv, number: int) -> None:
    """Close an env; if that fails, nothing depends on it."""
    try:
        _in_use.pop(id(env.unwrapped), None)
        env.close()
    except Exception as error:
        warnings.warn(f"closing env {number} raised {named(error)}", stacklevel=2)


def probe_env(factory: Callable[[], Env]) -> EnvInfo:
    """What is known of an env before its first step; one is made for it, and closed."""
    with contextlib.chdir("."):  # an env may change the working directory
        (env,) = build_envs(factory, 0, 1)
        env_info = EnvInfo.from_env(env)
        close_env(env, 0)
    return env_info


def mask_method(env: Env) -> Callable[[], Any] | None:
    """The env's ``action_masks``, if it has one."""
    return env.get_wrapper_attr("action_masks") if env.has_wrapper_attr("action_masks") else None


def mask_after(method: Callable[[], Any] | None, outcome: Any) -> Any:
    """The mask after a step, where there is a method for it and a next action."""
    if method is None or not isinstance(outcome, tuple) or len(outcome) != 5:
        return None
    ended = any(isinstance(flag, FLAG) and flag for flag in map(scalar, outcome[2:4]))
    return None if ended else method()


FLAG = (bool, np.bool_, int, np.integer)


def scalar(value: Any) -> Any:
    """What an array without axes holds, as ``np.array(1.0)`` does; anything else as it is.

    An array of shape (1,) is refused like any other: it comes from an env that is batched where none is expected.
    """
    return value[()] if isinstance(value, np.ndarray) and value.shape == () else value
