"""The protocol of two-player envs, with which Corral chooses the opponent and the side of each episode.

An env takes part if it has the attribute ``opponents`` and reads two reset options:

- ``opponents``: the names of the scripted opponents that are part of the env, weakest first;
- ``options["opponent"]``: the opponent of this episode: one of those names, or a ``Player``;
- ``options["seat"]``: the side that the agent takes in this episode: 0 (which begins) or 1. Without it, the seed of the
  episode decides.

If the env also has ``advise(name)``, which returns the action that this opponent would play in the agent's place, a
policy can begin by imitating that opponent.

The result is read from the reward of the step that terminates the episode: positive if the agent won, negative if the
opponent won, zero for a draw. A truncated episode is a draw.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import gymnasium as gym
import numpy as np
import numpy.typing as npt

__all__ = ["OPPONENT", "SEAT", "HasOpponents", "Player", "curriculum_of", "opponent_number", "opponents_of", "outcome"]

OPPONENT, SEAT = "opponent", "seat"
"""Names of the reset options."""
Player = Callable[[Any, "npt.NDArray[np.bool_] | None", np.random.Generator], Any]
"""A callable that plays the opponent's side: given that side's observation, its action mask (None if the env has no
masks) and a random generator for the episode, it returns an action."""


@runtime_checkable
class HasOpponents(Protocol):
    """An env in which different opponents can play the other side."""

    opponents: tuple[str, ...]
    """Names of the scripted opponents that are part of the env, weakest first."""


def opponents_of(env: gym.Env[Any, Any]) -> tuple[str, ...]:
    """Return the names of an env's scripted opponents; none if ``opponents`` is missing or is not a list of names."""
    names = env.get_wrapper_attr("opponents") if env.has_wrapper_attr("opponents") else ()
    are_names = isinstance(names, list | tuple) and all(isinstance(name, str) for name in names)
    return tuple(names) if are_names else ()


def curriculum_of(env: gym.Env[Any, Any]) -> tuple[dict[str, Any], ...]:
    """Return the training stages that an env recommends, as data (see ``config.values.Stage``); none if it has none.

    ``curriculum = ({"name": "easy", "options": {"level": 1}, "timesteps": 100_000}, ...)``
    """
    stages = env.get_wrapper_attr("curriculum") if env.has_wrapper_attr("curriculum") else ()
    are_stages = isinstance(stages, list | tuple) and all(isinstance(stage, Mapping) for stage in stages)
    return tuple(dict(stage) for stage in stages) if are_stages else ()


def opponent_number(options: Mapping[str, Any] | None) -> int:
    """Return the opponent's number in the run's opponent table, if the reset options hold one; -1 otherwise."""
    opponent = None if options is None else options.get(OPPONENT)
    return opponent if isinstance(opponent, int) else -1


def outcome(last_reward: float, terminated: bool) -> float:
    """Return the result of an episode for the agent: 1 for a win, 0 for a loss, 0.5 for a draw."""
    if not terminated or last_reward == 0:
        return 0.5
    return 1.0 if last_reward > 0 else 0.0
