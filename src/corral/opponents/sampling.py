"""The table that opponents are drawn from: the env's own, and policies whose weights lie in shared memory.

Opponents have numbers: first those of the env, then frozen policies of other runs, then slots, which hold copies of the
policy in training. The trainer writes the probability of each number and, into free slots, weights. Every process that
holds envs reads them when an episode begins. The draw depends only on the episode's seed and on the table, so that it
has the same result in every process, the trainer included. A slot stays as it is while an episode plays against it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from corral.core.types import ActorSpec, Weights
from corral.envs.opponent_protocol import OPPONENT
from corral.opponents.frozen_policy import FrozenPolicy, PolicyPlayer
from corral.processes import shared_memory

__all__ = [
    "FROZEN_POLICY_KEY",
    "OpponentTable",
    "OpponentTableChanges",
    "OpponentTableSpec",
    "SharedOpponentTable",
    "weights_by_key",
]

Array = npt.NDArray[Any]
_PROBABILITIES, _VERSIONS = "probabilities", "versions"
"""Names of shared arrays: the probability of each opponent, and how often each slot was written."""
FROZEN_POLICY_KEY = "guest"
"""First part of the keys that the weights of frozen policies have in checkpoints."""


@dataclass(frozen=True, slots=True)
class OpponentTableSpec:
    """What a process needs, besides the shared arrays, to draw opponents and to play them."""

    env_reset_options: tuple[tuple[str, Mapping[str, Any]], ...]
    """Names and reset options of what the env offers: its opponents, or the stages of a curriculum."""
    frozen_policies: tuple[FrozenPolicy, ...]
    slots: int
    actor: ActorSpec | None
    """Builds the actor of the policies in slots; None if there are no slots."""
    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of what the env offers, by opponent number."""
        return tuple(name for name, _ in self.env_reset_options)

    @property
    def first_slot(self) -> int:
        """The opponent number of slot 0."""
        return len(self.env_reset_options) + len(self.frozen_policies)

    def build(self, arrays: Mapping[str, Array]) -> OpponentTable:
        """Return the table that reads these shared arrays."""
        return OpponentTable(self, arrays)


class OpponentTable:
    """Draws the opponents of episodes and gives envs the options to play against them.

    It reads what the trainer writes between rollouts.
    """

    def __init__(self, spec: OpponentTableSpec, arrays: Mapping[str, Array]) -> None:
        self._spec = spec
        self._probabilities: npt.NDArray[np.float64] = arrays[_PROBABILITIES]
        self._versions: npt.NDArray[np.int64] = arrays[_VERSIONS]
        self._slot_weights = _weights_by_slot(arrays, spec.slots)
        self._players: dict[int, PolicyPlayer] = {}
        self._loaded_versions: dict[int, int] = {}

    def draw(self, seed: int) -> int:
        """Return the number of the opponent for the episode with this seed."""
        candidates = np.flatnonzero(self._probabilities)
        cumulative = np.cumsum(self._probabilities[candidates])
        threshold = np.random.default_rng([seed, 1]).random() * cumulative[-1]
        return int(candidates[min(np.searchsorted(cumulative, threshold, side="right"), len(candidates) - 1)])

    def options(self, opponent: int) -> dict[str, Any]:
        """Return the options that an env is reset with to play against an opponent."""
        if opponent < len(self._spec.env_reset_options):
            _, reset_options = self._spec.env_reset_options[opponent]
            return copy.deepcopy(dict(reset_options))
        return {OPPONENT: self._player(opponent).for_new_game()}

    @property
    def is_recurrent(self) -> bool:
        """Whether an opponent's actions may depend on earlier observations of the same game."""
        actors = [self._spec.actor, *(frozen.actor for frozen in self._spec.frozen_policies)]
        return any(actor is not None and actor.n_state for actor in actors)

    def _player(self, opponent: int) -> PolicyPlayer:
        """Return the player of a frozen policy or of a slot; load the slot's weights if they have changed."""
        spec = self._spec
        slot = opponent - spec.first_slot
        if slot < 0:
            frozen = spec.frozen_policies[opponent - len(spec.env_reset_options)]
            version, actor, weights = 0, frozen.actor, frozen.weights
        else:
            assert spec.actor is not None, "slots hold policies of this run"
            version, actor, weights = int(self._versions[slot]), spec.actor, self._slot_weights[slot]
        if opponent not in self._players:
            player = PolicyPlayer(actor.build(0, 1), spec.observation_space, spec.action_space)
            self._players[opponent] = player
        if self._loaded_versions.get(opponent) != version:
            self._players[opponent].actor.load(weights)
            self._loaded_versions[opponent] = version
        return self._players[opponent]


@dataclass(frozen=True, slots=True)
class OpponentTableChanges:
    """What must be written into a copy of a table, on another machine, to make it equal again."""

    probabilities: npt.NDArray[np.float64]
    versions: npt.NDArray[np.int64]
    weights: Mapping[int, Mapping[str, Array]]
    """Weights by name, of every slot that has changed."""


class SharedOpponentTable:
    """The trainer's side of the table: it owns the shared arrays and writes them between rollouts."""

    def __init__(self, spec: OpponentTableSpec, weights: Weights) -> None:
        self.spec = spec
        n_opponents = spec.first_slot + spec.slots
        specs = [
            shared_memory.ArraySpec(_PROBABILITIES, (n_opponents,), "<f8"),
            shared_memory.ArraySpec(_VERSIONS, (spec.slots,), "<i8"),
        ]
        for slot in range(spec.slots):
            for name, value in weights.items():
                array = np.asarray(value)
                specs.append(shared_memory.ArraySpec(f"{slot}/{name}", array.shape, array.dtype.str))
        self.shared = shared_memory.create(specs)
        arrays = self.shared.arrays
        arrays[_PROBABILITIES][...] = 0.0
        arrays[_VERSIONS][...] = 0
        self._slot_weights = _weights_by_slot(arrays, spec.slots)
        self.opponent_sampler = OpponentTable(spec, arrays)

    def write(self, slot: int, weights: Mapping[str, Array]) -> None:
        """Copy a policy into a slot that no episode plays against."""
        for name, array in self._slot_weights[slot].items():
            array[...] = weights[name]
        self.shared.arrays[_VERSIONS][slot] += 1

    def expected_weights(self) -> dict[str, Array]:
        """Return arrays like the weights of every slot and frozen policy, by their keys in a checkpoint."""
        return weights_by_key(dict(enumerate(self._slot_weights)), self.spec.frozen_policies)

    def set_probabilities(self, probabilities: Sequence[float] | npt.NDArray[np.float64]) -> None:
        """Set the probability of each opponent number for episodes that begin from now on."""
        self.shared.arrays[_PROBABILITIES][...] = probabilities

    def changes_since(self, versions: npt.NDArray[np.int64] | None) -> OpponentTableChanges:
        """Return what differs from a table whose slots had these versions; None for a new table."""
        current = self.shared.arrays[_VERSIONS]
        changed = np.flatnonzero(current if versions is None else current != versions)
        return OpponentTableChanges(
            self.shared.arrays[_PROBABILITIES].copy(),
            current.copy(),
            {int(slot): {name: array.copy() for name, array in self._slot_weights[slot].items()} for slot in changed},
        )

    def apply(self, changes: OpponentTableChanges) -> None:
        """Make this table equal to the one that returned ``changes``."""
        self.set_probabilities(changes.probabilities)
        for slot, weights in changes.weights.items():
            self.write(slot, weights)
        self.shared.arrays[_VERSIONS][...] = changes.versions

    def close(self) -> None:
        """Release the shared memory."""
        self.shared.close()


def weights_by_key(
    slots: Mapping[int, Mapping[str, Array]], frozen_policies: Iterable[FrozenPolicy]
) -> dict[str, Array]:
    """Return weights by their keys in a checkpoint: ``<slot>/<name>`` and ``guest/<policy>/<name>``."""
    by_key = {f"{slot}/{name}": array for slot, weights in slots.items() for name, array in weights.items()}
    for frozen in frozen_policies:
        for name, array in frozen.weights.items():
            by_key[f"{FROZEN_POLICY_KEY}/{frozen.name}/{name}"] = np.asarray(array)
    return by_key


def _weights_by_slot(arrays: Mapping[str, Array], slots: int) -> list[dict[str, Array]]:
    """Return the weights in each slot by name; shared arrays of weights are called ``<slot>/<name>``."""
    by_slot: list[dict[str, Array]] = [{} for _ in range(slots)]
    for key, array in arrays.items():
        slot, slash, name = key.partition("/")
        if slash:
            by_slot[int(slot)][name] = array
    return by_slot
