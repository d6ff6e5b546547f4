"""Playing a duel: which actions are legal, and what follows from one, up to the next real decision."""

from __future__ import annotations

import random

from corral.games.card_battle.decks import DECK_NAMES, DECKS
from corral.games.card_battle.pieces import Action
from corral.games.card_battle.state import State

__all__ = ["Duel", "describe", "new_duel"]


class Duel(State):
    """A duel that can be played. ``clone``, ``determinized``, ``get_state`` and so on are those of ``State``."""

    __slots__ = ()

    def legal(self) -> list[Action]:
        """List what ``to_act`` may do, in canonical order; never empty while the duel goes on. Not to be changed."""
        raise NotImplementedError

    def apply(self, action: Action) -> None:
        """Play one legal action, and whatever is forced after it, up to the next decision or the end."""
        raise NotImplementedError


def new_duel(decks: tuple[str, str], seed: int) -> Duel:
    """Shuffle, draw seven cards each, and go to the first decision. Everything follows from ``seed``."""
    raise NotImplementedError


def describe(duel: State, action: Action) -> str:
    """Say what an action is, as in "cast Ember Bolt on Bog Stalker (3/2)"."""
    raise NotImplementedError
