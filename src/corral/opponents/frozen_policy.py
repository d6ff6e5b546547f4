"""A trained policy as an opponent, in a form that any process can hold and play."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from corral.core.actions import ActionCodec
from corral.core.seeding import noise_row
from corral.core.spaces import Layout
from corral.core.types import Actor, ActorSpec

__all__ = ["FrozenPolicy", "PolicyPlayer"]

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class FrozenPolicy:
    """A trained policy whose weights never change; it can be pickled and sent to any process."""

    name: str
    actor: ActorSpec
    weights: Mapping[str, Array]
    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]

    def player(self) -> PolicyPlayer:
        """Return a player that always takes this policy's most likely action."""
        actor = self.actor.build(0, 1)
        actor.load(self.weights)
        return PolicyPlayer(actor, self.observation_space, self.action_space, greedy=True)


class PolicyPlayer:
    """A policy that plays one side of a game: it samples its actions, or takes the most likely ones if ``greedy``.

    It is a ``corral.envs.opponent_protocol.Player``.
    """

    def __init__(
        self, actor: Actor, observation_space: gym.Space[Any], action_space: gym.Space[Any], greedy: bool = False
    ) -> None:
        self.actor = actor
        self._greedy = greedy
        self._layout, self._codec = Layout(observation_space), ActionCodec(action_space)
        self._observations, self._actions = self._layout.allocate(1), self._codec.layout.allocate(1)
        self._states = np.zeros((1, actor.n_state), np.float32) if actor.n_state else None

    @property
    def is_recurrent(self) -> bool:
        """Whether the actions depend on earlier observations of the same game."""
        return self._states is not None

    def for_new_game(self) -> PolicyPlayer:
        """Return this player with an initial recurrent state; without such a state, the player itself."""
        if self._states is None:
            return self
        player = copy.copy(self)
        player._states = np.zeros_like(self._states)
        return player

    def __call__(self, observation: Any, mask: npt.NDArray[np.bool_] | None, generator: np.random.Generator) -> Any:
        """Return an action for what this side observes."""
        self._layout.write(self._observations, 0, observation)
        if isinstance(mask, tuple):  # one array for each dimension of a MultiDiscrete
            mask = np.concatenate(mask)
        masks = None if mask is None else np.asarray(mask, np.bool_)[None]  # [1, A]
        if self._greedy:
            actions, self._states = self.actor.act_greedy(self._observations, masks, self._states)
        else:
            noise = noise_row(generator, self._codec.gaussian)
            sample = self.actor.act(self._observations, masks, noise, self._states)
            actions, self._states = sample.actions, sample.states
        self._codec.decode(actions, self._actions)
        return self._codec.layout.reader(self._actions)(0)
