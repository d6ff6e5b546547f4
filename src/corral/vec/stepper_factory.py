"""Which stepper steps which envs: those that are made one by one, or those that come many at a time."""

from __future__ import annotations

import warnings
from collections.abc import Callable, MutableSequence
from typing import Any

import gymnasium as gym

from corral.core.errors import EnvFault, EnvPlace, UsageError
from corral.core.seeding import episode_seeds
from corral.envs.env_info import EnvFacts
from corral.envs.factory import EnvFactory
from corral.envs.lifecycle import RAISED, build_envs, close_env, named, note_in_use, own_traceback, seeding_maker
from corral.envs.vector_adapter import VectorEnv, why_not_together
from corral.vec.api import InfoMode, StepArrays
from corral.vec.batch_stepper import NativeStepper
from corral.vec.env_stepper import Stepper

__all__ = ["AnyStepper", "build", "close_all", "facts_from", "stays_together", "stepper_of"]

AnyStepper = Stepper | NativeStepper
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
        vector = factory.many(n, episode_seeds(seed, first_env, [0] * n))
        note_in_use(vector, factory)
    except RAISED as error:
        if isinstance(error, UsageError):
            raise
        place = EnvPlace(first_env, episode=-1, seed=None, step=0)
        raise EnvFault(f"making the envs failed: {named(error)}", place, own_traceback(error), True) from error
    alone = n == 1 and not factory.born_seeded  # whether several could live together does not show
    if (why := _why_apart(factory) if alone else why_not_together(vector, factory.born_seeded)) is None:
        return vector
    close_env(vector, first_env)
    warnings.warn(f"the vector env {factory.name} is made once for each env, which is slower: {why}", stacklevel=2)
    return build_envs(factory, first_env, n)


def stays_together(factory: EnvFactory) -> bool:
    """Whether envs of a factory come in vector envs that cannot be taken apart, and so never come back."""
    return factory.is_vector and _why_apart(factory) is None


def _why_apart(factory: EnvFactory) -> str | None:
    """Why envs of a factory are made one by one; None if they need not be."""
    vector = factory.many(1 if factory.born_seeded else 2)
    try:
        return why_not_together(vector, factory.born_seeded)
    finally:
        vector.close()


def facts_from(made: Made) -> EnvFacts:
    """What envs are like."""
    return EnvFacts.of_vector(made) if isinstance(made, gym.vector.VectorEnv) else EnvFacts.of(made[0])


def close_all(made: Made, first_env: int) -> None:
    """Close what ``build`` made."""
    if isinstance(made, list):
        for i, env in enumerate(made):
            close_env(env, first_env + i)
    else:
        close_env(made, first_env)


def stepper_of(
    made: Made,
    arrays: StepArrays,
    factory: Callable[[], gym.Env[Any, Any]],
    *,
    first_env: int,
    seed: int | None,
    infos: InfoMode,
    heal: bool,
    proven: bool,
    pulse: MutableSequence[int] | None,
    seed_globals: bool = False,
) -> AnyStepper:
    """Whoever steps such envs."""
    if isinstance(made, list):
        return Stepper(
            made,
            arrays,
            first_env=first_env,
            seed=seed,
            infos=infos,
            factory=factory if heal else None,
            proven=proven,
            pulse=pulse,
            seed_globals=seed_globals,
        )
    assert isinstance(factory, EnvFactory)
    return NativeStepper(made, arrays, factory, first_env, seed, infos, heal, proven, pulse)
