"""Which stepper steps which envs: those that are made one by one, or those that come many at a time."""

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
    named,
    note_in_use,
    own_traceback,
    seeding_maker,
)
from corral.envs.vector_adapter import VectorEnv, unsupported_reason
from corral.vec.api import StepArrays, StepperOptions
from corral.vec.batch_stepper import BatchStepper
from corral.vec.env_stepper import Stepper

__all__ = [
    *("STEPPERS", "AnyStepper", "StepperOptions"),
    *("build", "close_all", "read_env_info", "is_inseparable", "stepper_of"),
]

AnyStepper = Stepper | BatchStepper
Made = VectorEnv | list[gym.Env[Any, Any]]
"""Envs as a factory made them: one by one, or all at once."""


def build(
    factory: Callable[[], gym.Env[Any, Any]], first_env: int, n: int, seed: int | None, seed_globals: bool = False
) -> Made:
    """Make ``n`` envs; with a factory of vector envs one of those, if its envs can live as single ones would.

    ``seed_globals``: before each env is made, Python's and numpy's global generators are seeded for it.
    """
    if not isinstance(factory, EnvFactory) or not factory.is_vector or (n == 1 and seed is None):
        return build_envs(seeding_maker(factory, first_env, seed if seed_globals else None), first_env, n)
    try:
        vector = factory.make_vector(n, episode_seeds(seed, first_env, [0] * n))
        note_in_use(vector, factory)
    except ENV_EXCEPTIONS as error:
        if isinstance(error, UsageError):
            raise
        location = EnvLocation(first_env, episode=-1, seed=None, step=0)
        raise EnvFault(f"making the envs failed: {named(error)}", location, own_traceback(error), True) from error
    alone = n == 1 and not factory.seeded_at_construction  # whether several could live together does not show
    if (
        why := _separation_reason(factory) if alone else unsupported_reason(vector, factory.seeded_at_construction)
    ) is None:
        return vector
    close_env(vector, first_env)
    warnings.warn(f"the vector env {factory.name} is made once for each env, which is slower: {why}", stacklevel=2)
    return build_envs(factory, first_env, n)


def is_inseparable(factory: EnvFactory) -> bool:
    """Whether envs of a factory come in vector envs that cannot be taken apart, and so never come back."""
    return factory.is_vector and _separation_reason(factory) is None


def _separation_reason(factory: EnvFactory) -> str | None:
    """Why envs of a factory are made one by one; None if they need not be."""
    vector = factory.make_vector(1 if factory.seeded_at_construction else 2)
    try:
        return unsupported_reason(vector, factory.seeded_at_construction)
    finally:
        vector.close()


def read_env_info(made: Made) -> EnvInfo:
    """What envs are like."""
    return EnvInfo.from_vector_env(made) if isinstance(made, gym.vector.VectorEnv) else EnvInfo.from_env(made[0])


def close_all(made: Made, first_env: int) -> None:
    """Close what ``build`` made."""
    if isinstance(made, list):
        for i, env in enumerate(made):
            close_env(env, first_env + i)
    else:
        close_env(made, first_env)


def _step_each(made: Made, arrays: StepArrays, options: StepperOptions) -> Stepper | None:
    """Step envs one after the other."""
    if not isinstance(made, list):
        return None
    return Stepper(
        made,
        arrays,
        first_env=options.first_env,
        seed=options.seed,
        infos=options.infos,
        factory=options.factory if options.heal else None,
        known_to_work=options.known_to_work,
        heartbeat=options.heartbeat,
        seed_globals=options.seed_globals,
    )


def _step_together(made: Made, arrays: StepArrays, options: StepperOptions) -> BatchStepper | None:
    """Step a vector env."""
    if isinstance(made, list):
        return None
    return BatchStepper(made, arrays, options)


STEPPERS: list[Callable[[Made, StepArrays, StepperOptions], AnyStepper | None]] = [_step_each, _step_together]
"""Each returns a stepper for envs that it can step, and None for others. A new kind of stepper is one more entry."""


def stepper_of(made: Made, arrays: StepArrays, options: StepperOptions) -> AnyStepper:
    """Return the first of ``STEPPERS`` that steps such envs."""
    return next(stepper for make in STEPPERS if (stepper := make(made, arrays, options)) is not None)
