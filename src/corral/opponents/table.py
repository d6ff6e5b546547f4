"""Who plays the other side: the env's own opponents, and policies whose weights lie in shared memory.

The trainer writes a table of chances and, into free slots, weights; every process that holds envs reads them when an
episode begins. Who is drawn follows from the episode's seed and the table alone, so it does not matter where that
happens, and the trainer knows it too. Nothing of a slot changes while an episode still plays against it.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from corral.core.types import ActorSpec, Weights
from corral.envs.opponent_protocol import OPPONENT
from corral.opponents.frozen_policy import FrozenPolicy, PolicyPlayer
from corral.processes import shared_memory

__all__ = ["OpponentTable", "OpponentTableSpec", "SharedOpponentTable"]

Array = npt.NDArray[Any]
_TABLE, _STAMPS = "table", "stamps"


@dataclass(frozen=True, slots=True)
class OpponentTableSpec:
    """What a process needs to seat opponents, besides the shared arrays."""

    own: tuple[tuple[str, Mapping[str, Any]], ...]
    """What the env offers, by name, and what it is reset with to give it: its opponents, or the stages of a curriculum.
    They are numbered first, then the guests, then the slots."""
    frozen_policies: tuple[FrozenPolicy, ...]
    slots: int
    actor: ActorSpec | None
    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]

    @property
    def names(self) -> tuple[str, ...]:
        """Of what the env offers."""
        return tuple(name for name, _ in self.own)

    @property
    def first_slot(self) -> int:
        """The number of the first slot."""
        return len(self.own) + len(self.frozen_policies)

    def build(self, arrays: Mapping[str, Array]) -> OpponentTable:
        """The lineup as this process sees it."""
        return OpponentTable(self, arrays)


class OpponentTable:
    """Draws opponents and seats them. Reads what the trainer writes between rollouts."""

    def __init__(self, setup: OpponentTableSpec, arrays: Mapping[str, Array]) -> None:
        self._setup = setup
        self._table: npt.NDArray[np.float64] = arrays[_TABLE]
        self._stamps: npt.NDArray[np.int64] = arrays[_STAMPS]
        self._slots = _by_slot(arrays, setup.slots)
        self._players: dict[int, tuple[int, PolicyPlayer]] = {}

    def draw(self, seed: int) -> int:
        """The opponent of an episode with this seed, by number."""
        possible = np.flatnonzero(self._table)
        chances = np.cumsum(self._table[possible])
        at = np.random.default_rng([seed, 1]).random() * chances[-1]
        return int(possible[min(np.searchsorted(chances, at, side="right"), len(possible) - 1)])

    def options(self, opponent: int) -> dict[str, Any]:
        """What an env is reset with, to play against it."""
        own = self._setup.own
        if opponent < len(own):
            return copy.deepcopy(dict(own[opponent][1]))
        return {OPPONENT: self._player(opponent).for_new_game()}

    @property
    def is_recurrent(self) -> bool:
        """Whether an opponent may have a memory."""
        actors = [self._setup.actor, *(frozen.actor for frozen in self._setup.frozen_policies)]
        return any(actor is not None and actor.n_state for actor in actors)

    def _player(self, opponent: int) -> PolicyPlayer:
        setup = self._setup
        slot = opponent - setup.first_slot
        if slot < 0:
            frozen = setup.frozen_policies[opponent - len(setup.own)]
            stamp, actor, weights = 0, frozen.actor, frozen.weights
        else:
            assert setup.actor is not None, "slots hold policies of this run"
            stamp, actor, weights = int(self._stamps[slot]), setup.actor, self._slots[slot]
        known, player = self._players.get(opponent) or (-1, None)
        if player is None:
            player = PolicyPlayer(actor.build(0, 1), setup.observation_space, setup.action_space)
        if known != stamp:
            player.actor.load(weights)
            self._players[opponent] = stamp, player
        return player


class SharedOpponentTable:
    """The trainer's side: the arrays, and what may be written into them between rollouts."""

    def __init__(self, setup: OpponentTableSpec, weights: Weights) -> None:
        self.setup = setup
        n = setup.first_slot + setup.slots
        specs = [
            shared_memory.ArraySpec(_TABLE, (n,), "<f8"),
            shared_memory.ArraySpec(_STAMPS, (setup.slots,), "<i8"),
        ]
        for slot in range(setup.slots):
            for name, value in weights.items():
                array = np.asarray(value)
                specs.append(shared_memory.ArraySpec(f"{slot}/{name}", array.shape, array.dtype.str))
        self.shared = shared_memory.create(specs)
        arrays = self.shared.arrays
        arrays[_TABLE][...] = 0.0
        arrays[_STAMPS][...] = 0
        self._slots = _by_slot(arrays, setup.slots)
        self.opponent_sampler = OpponentTable(setup, arrays)

    def write(self, slot: int, weights: Mapping[str, Array]) -> None:
        """Put a policy into a slot that nobody plays against."""
        for name, array in self._slots[slot].items():
            array[...] = weights[name]
        self.shared.arrays[_STAMPS][slot] += 1

    def expected_weights(self) -> dict[str, Array]:
        """What the weights of every slot and guest look like, by the names that a checkpoint has for them."""
        found = {f"{slot}/{name}": array for slot, some in enumerate(self._slots) for name, array in some.items()}
        return found | {
            f"guest/{g.name}/{name}": np.asarray(w) for g in self.setup.frozen_policies for name, w in g.weights.items()
        }

    def set_chances(self, chances: Sequence[float]) -> None:
        """How likely each opponent is, by number, in episodes that begin from now on."""
        self.shared.arrays[_TABLE][...] = chances

    def close(self) -> None:
        """Give up the memory."""
        self.shared.close()


def _by_slot(arrays: Mapping[str, Array], slots: int) -> list[dict[str, Array]]:
    """The weights of each slot, by name."""
    found: list[dict[str, Array]] = [{} for _ in range(slots)]
    for key, array in arrays.items():
        slot, slash, name = key.partition("/")
        if slash:
            found[int(slot)][name] = array
    return found
