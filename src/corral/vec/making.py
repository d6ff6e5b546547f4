"""Making and closing envs, and what they raise in words."""

from __future__ import annotations

import itertools
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import gymnasium as gym

from corral.core.errors import EnvFault, EnvPlace, MissingPackage, UsageError
from corral.core.seeding import making_seed, seed_global_generators
from corral.core.vector_envs import VectorEnv
from corral.vec.api import EnvFacts

__all__ = ["RAISED", "build_envs", "close_env", "facts_of", "mask_method", "named", "own_traceback", "seeding_maker"]

Env = gym.Env[Any, Any]
RAISED = (Exception, SystemExit)
"""What an env may raise that is its own affair."""


def build_envs(factory: Callable[[], Env], first_env: int, n: int) -> list[Env]:
    """Make ``n`` envs; a constructor that raises is a wrong set-up, reported once with its own traceback."""
    envs: list[Env] = []
    try:
        for _ in range(n):
            envs.append(factory())
            EnvFacts.of(envs[0]).check_same(EnvFacts.of(envs[-1]))
    except RAISED as error:
        for made in envs:
            made.close()
        if isinstance(error, UsageError):
            raise
        if isinstance(error, gym.error.DependencyNotInstalled):
            raise MissingPackage(f"the env cannot be made: {error}") from None
        place = EnvPlace(first_env + len(envs), episode=-1, seed=None, step=0)
        raise EnvFault(f"making the env failed: {named(error)}", place, own_traceback(error), True) from error
    return envs


def seeding_maker(factory: Callable[[], Env], first_env: int, seed: int | None) -> Callable[[], Env]:
    """The factory, seeding the global generators before each env that it makes, from ``first_env`` on."""
    if seed is None:
        return factory
    numbers = itertools.count(first_env)

    def make() -> Env:
        seed_global_generators(making_seed(seed, next(numbers)))
        return factory()

    return make


def own_traceback(error: BaseException) -> str:
    """The env's part of a traceback, as text; ours is of no interest."""
    frames, ours = error.__traceback__, [__file__.replace("making", name) for name in ("making", "stepper", "native")]
    while frames is not None and frames.tb_frame.f_code.co_filename in ours:
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(error), error, frames))


def named(error: BaseException) -> str:
    """An exception in a few words."""
    return f"{type(error).__name__}: {error}".rstrip(": ")


def close_env(env: Env | VectorEnv, number: int) -> None:
    """Close an env; if that fails, nothing depends on it."""
    try:
        env.close()
    except Exception as error:
        warnings.warn(f"closing env {number} raised {named(error)}", stacklevel=2)


def facts_of(factory: Callable[[], Env]) -> EnvFacts:
    """What is known of an env before its first step; one is made for it, and closed."""
    (env,) = build_envs(factory, 0, 1)
    facts = EnvFacts.of(env)
    close_env(env, 0)
    return facts


def mask_method(env: Env) -> Callable[[], Any] | None:
    """The env's ``action_masks``, if it has one."""
    return env.get_wrapper_attr("action_masks") if env.has_wrapper_attr("action_masks") else None
