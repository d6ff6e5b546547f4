"""A trained policy as an opponent: what any process needs of it, and how it plays."""

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
    """A trained policy that never changes, as any process needs it to play."""

    name: str
    actor: ActorSpec
    weights: Mapping[str, Array]
    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]

    def player(self) -> PolicyPlayer:
        """Return a player of its most likely moves."""
        actor = self.actor.build(0, 1)
        actor.load(self.weights)
        return PolicyPlayer(actor, self.observation_space, self.action_space, best=True)


class PolicyPlayer:
    """A policy on one side of the table: it samples its moves, as it does in training, or plays the ``best`` ones."""

    def __init__(
        self, actor: Actor, observation_space: gym.Space[Any], action_space: gym.Space[Any], best: bool = False
    ) -> None:
        self.actor = actor
        self._best = best
        self._layout, self._codec = Layout(observation_space), ActionCodec(action_space)
        self._seen, self._done = self._layout.allocate(1), self._codec.layout.allocate(1)
        self._states = np.zeros((1, actor.n_state), np.float32) if actor.n_state else None

    @property
    def is_recurrent(self) -> bool:
        """Whether it plays by what it saw earlier in the game."""
        return self._states is not None

    def for_new_game(self) -> PolicyPlayer:
        """The same player for another game, of which it remembers nothing yet."""
        if self._states is None:
            return self
        player = copy.copy(self)
        player._states = np.zeros_like(self._states)
        return player

    def __call__(self, observation: Any, mask: npt.NDArray[np.bool_] | None, generator: np.random.Generator) -> Any:
        """An action for what this side observes."""
        self._layout.write(self._seen, 0, observation)
        if isinstance(mask, tuple):  # one array for each dimension of a MultiDiscrete
            mask = np.concatenate(mask)
        masks = None if mask is None else np.asarray(mask, np.bool_)[None]
        if self._best:
            actions, self._states = self.actor.act_greedy(self._seen, masks, self._states)
        else:
            noise = noise_row(generator, self._codec.gaussian)
            acts = self.actor.act(self._seen, masks, noise, self._states)
            actions, self._states = acts.actions, acts.states
        self._codec.decode(actions, self._done)
        return self._codec.layout.reader(self._done)(0)
