"""Make envs and the stepper for them: ``Stepper`` for single envs, ``BatchStepper`` for a vector env."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import gymnasium as gym

from corral.core.errors import EnvFault, EnvLocation, UsageError
from corral.core.seeding import episode_seeds
from corral.envs.env_info import EnvInfo
from corral.envs.factory import EnvFactory
from corral.envs.lifecycle import (
    ENV_EXCEPTIONS,
    build_envs,
    close_env,
    describe_error,
    format_env_traceback,
    register_open_env,
    seeded_factory,
)
from corral.envs.vector_adapter import VectorEnv, unsupported_reason
from corral.vec.api import StepArrays
from corral.vec.batch_stepper import BatchStepper
from corral.vec.env_stepper import Stepper
from corral.vec.stepper_options import StepperOptions

__all__ = ["STEPPERS", "AnyStepper", "close_envs", "is_inseparable", "make_envs", "make_stepper", "read_env_info"]

AnyStepper = Stepper | BatchStepper
MadeEnvs = VectorEnv | list[gym.Env[Any, Any]]
"""Envs as a factory made them: one vector env, or a list of single envs."""


def make_envs(
    factory: Callable[[], gym.Env[Any, Any]], first_env: int, n: int, seed: int | None, seed_globals: bool = False
) -> MadeEnvs:
    """Make ``n`` envs: one vector env if the factory makes vector envs that Corral can step, otherwise single envs.

    ``first_env`` is the index of the first of them in the run. ``seed_globals``: seed Python's and numpy's global
    random generators before each single env is made.
    """
    if not isinstance(factory, EnvFactory) or not factory.is_vector or (n == 1 and seed is None):
        return build_envs(seeded_factory(factory, first_env, seed if seed_globals else None), first_env, n)
    vector = _make_vector(factory, n, episode_seeds(seed, first_env, [0] * n), first_env)
    if n == 1 and not factory.seeded_at_construction:
        # A vector env of one env does not show whether several can be seeded and reset independently.
        reason = _separation_reason(factory, first_env)
    else:
        reason = unsupported_reason(vector, factory.seeded_at_construction)
    if reason is None:
        return vector
    close_env(vector, first_env)
    warnings.warn(f"the vector env {factory.name} is made once for each env, which is slower: {reason}", stacklevel=2)
    return build_envs(factory, first_env, n)


def is_inseparable(factory: EnvFactory) -> bool:
    """Return whether a factory makes vector envs that are stepped as a whole; such envs cannot be restored."""
    return factory.is_vector and _separation_reason(factory) is None


def _separation_reason(factory: EnvFactory, first_env: int = 0) -> str | None:
    """Return why a vector env has to be made once for each env, with a vector env as a probe; None if it need not."""
    vector = _make_vector(factory, 1 if factory.seeded_at_construction else 2, first_env=first_env)
    try:
        return unsupported_reason(vector, factory.seeded_at_construction)
    finally:
        close_env(vector, first_env)


def _make_vector(factory: EnvFactory, n: int, seeds: list[int] | None = None, first_env: int = 0) -> VectorEnv:
    """Make a vector env of ``n`` envs; raise an ``EnvFault`` if that raises an exception."""
    try:
        vector = factory.make_vector(n, seeds)
        register_open_env(vector, factory)
    except ENV_EXCEPTIONS as error:
        if isinstance(error, UsageError):
            raise
        location = EnvLocation(first_env, episode=-1, seed=None, step=0)
        raise EnvFault(
            f"making the envs failed: {describe_error(error)}", location, format_env_traceback(error), True
        ) from error
    return vector


def read_env_info(envs: MadeEnvs) -> EnvInfo:
    """Return the spaces and metadata of envs that ``make_envs`` made."""
    return EnvInfo.from_vector_env(envs) if isinstance(envs, gym.vector.VectorEnv) else EnvInfo.from_env(envs[0])


def close_envs(envs: MadeEnvs, first_env: int) -> None:
    """Close envs that ``make_envs`` made."""
    if isinstance(envs, list):
        for i, env in enumerate(envs):
            close_env(env, first_env + i)
    else:
        close_env(envs, first_env)


def _env_stepper(envs: MadeEnvs, arrays: StepArrays, options: StepperOptions) -> Stepper | None:
    """Return a ``Stepper`` for a list of single envs; None for a vector env."""
    return Stepper(envs, arrays, options) if isinstance(envs, list) else None


def _batch_stepper(envs: MadeEnvs, arrays: StepArrays, options: StepperOptions) -> BatchStepper | None:
    """Return a ``BatchStepper`` for a vector env; None for a list of single envs."""
    return None if isinstance(envs, list) else BatchStepper(envs, arrays, options)


STEPPERS: list[Callable[[MadeEnvs, StepArrays, StepperOptions], AnyStepper | None]] = [_env_stepper, _batch_stepper]
"""Each function returns a stepper for the envs that it supports, and None for others. New kinds are added here."""


def make_stepper(envs: MadeEnvs, arrays: StepArrays, options: StepperOptions) -> AnyStepper:
    """Return a stepper made by the first entry of ``STEPPERS`` that supports these envs."""
    return next(stepper for make in STEPPERS if (stepper := make(envs, arrays, options)) is not None)
