"""Envs with somebody on the other side: what such an env offers, so that Corral can choose who that is.

An env takes part by having ``opponents`` and by heeding two reset options:

- ``opponents``: the names of the opponents it can play itself, weakest first;
- ``options["opponent"]``: who plays the other side in this episode: one of those names, or a ``Player``;
- ``options["seat"]``: which side the agent takes in this episode, 0 (the one that begins) or 1; without it, the
  episode's seed decides.

With ``advise(name)`` such an env also says what one of its opponents would play in the agent's place, so that a policy
can begin by imitating it.

Who won is read from the reward of the step that terminates the episode: positive if the agent did, negative if the
opponent did, zero for a draw. A truncated episode is a draw.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import gymnasium as gym
import numpy as np
import numpy.typing as npt

__all__ = ["OPPONENT", "SEAT", "HasOpponents", "Player", "curriculum_of", "opponent_number", "opponents_of", "outcome"]

OPPONENT, SEAT = "opponent", "seat"
"""The reset options."""
Player = Callable[[Any, "npt.NDArray[np.bool_] | None", np.random.Generator], Any]
"""Chooses for the other side: given what that side observes, the mask of its actions (None if the env has no masks)
and a generator that belongs to the episode, it returns an action of the env's action space."""


@runtime_checkable
class HasOpponents(Protocol):
    """An env whose other side can be played by different opponents."""

    opponents: tuple[str, ...]
    """Names of those that the env plays itself, weakest first."""


def opponents_of(env: gym.Env[Any, Any]) -> tuple[str, ...]:
    """The names that an env gives its opponents; none, if it has no other side, or means something else by the word."""
    names = env.get_wrapper_attr("opponents") if env.has_wrapper_attr("opponents") else ()
    named = isinstance(names, list | tuple) and all(isinstance(name, str) for name in names)
    return tuple(names) if named else ()


def curriculum_of(env: gym.Env[Any, Any]) -> tuple[dict[str, Any], ...]:
    """The stages in which an env says it is best learned, as data (see ``config_values.Stage``); none, if it does not.

    ``curriculum = ({"name": "easy", "options": {"level": 1}, "timesteps": 100_000}, ...)``
    """
    stages = env.get_wrapper_attr("curriculum") if env.has_wrapper_attr("curriculum") else ()
    listed = isinstance(stages, list | tuple) and all(isinstance(stage, Mapping) for stage in stages)
    return tuple(dict(stage) for stage in stages) if listed else ()


def opponent_number(options: Mapping[str, Any] | None) -> int:
    """The opponent that reset options name by its number in a run's lineup; -1 if they do not."""
    opponent = None if options is None else options.get(OPPONENT)
    return opponent if isinstance(opponent, int) else -1


def outcome(last_reward: float, terminated: bool) -> float:
    """An episode from the agent's side: 1 won, 0 lost, 0.5 a draw."""
    if not terminated or last_reward == 0:
        return 0.5
    return 1.0 if last_reward > 0 else 0.0
