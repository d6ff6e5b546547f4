"""Card battle positions for tests, set up by card names, and actions chosen by their descriptions."""

import random
from collections.abc import Sequence

from corral_games.card_battle.engine.board import enter
from corral_games.card_battle.engine.cards import CARD_NUMBERS, CARDS
from corral_games.card_battle.engine.pieces import PASS, Action, Creature
from corral_games.card_battle.engine.rules import Duel, describe, new_duel

__all__ = [
    "card_names",
    "card_number",
    "find_creature",
    "legal_descriptions",
    "make_duel",
    "play_actions",
    "play_randomly",
]


def card_number(name: str) -> int:
    return CARD_NUMBERS[name]


def card_names(cards: Sequence[int]) -> list[str]:
    return [CARDS[card].name for card in cards]


def make_duel(
    creatures: Sequence[str] = (),
    opponent_creatures: Sequence[str] = (),
    hand: Sequence[str] = (),
    opponent_hand: Sequence[str] = (),
    lands: int = 9,
    opponent_lands: int = 9,
) -> Duel:
    """Return a duel in which player 0 is in the main phase of a turn and has played the land of this turn.

    With creatures and an empty hand, the duel is in the attack phase already. Both players have lands of every colour
    on the board, and only lands in their libraries.
    """
    duel = Duel((0, 0))
    duel.turn = 9
    for seat, board, cards, count in (
        (0, creatures, hand, lands),
        (1, opponent_creatures, opponent_hand, opponent_lands),
    ):
        side = duel.sides[seat]
        side.library = [0] * 20
        side.hand = sorted(card_number(name) for name in cards)
        side.lands = [count] * 5
        side.untapped = [count] * 5
        side.land_played = True
        for name in board:
            enter(duel, seat, card_number(name))
            side.creatures[-1].sick = False
    duel.log = []
    if creatures and not hand:
        duel.apply(Action(PASS))
    return duel


def legal_descriptions(duel: Duel) -> list[str]:
    """Return the descriptions of all legal actions."""
    return [describe(duel, action) for action in duel.legal()]


def play_actions(duel: Duel, *starts: str) -> None:
    """Play one action after the other: each time the first legal one whose description starts with the text."""
    for start in starts:
        for action in duel.legal():
            if describe(duel, action).startswith(start):
                duel.apply(action)
                break
        else:
            raise AssertionError(f"{start!r} is not among {legal_descriptions(duel)}")


def find_creature(duel: Duel, name: str) -> Creature:
    """Return the first creature of that name on the board."""
    for side in duel.sides:
        for creature in side.creatures:
            if CARDS[creature.card].name == name:
                return creature
    raise AssertionError(f"no {name} on the board")


def play_randomly(seed: int, steps: int, decks: tuple[str, str] = ("random", "random")) -> Duel:
    """Return a duel after that many random actions, or at its end."""
    duel = new_duel(decks, seed)
    rng = random.Random(seed)
    for _ in range(steps):
        if duel.winner is not None:
            break
        duel.apply(rng.choice(duel.legal()))
    return duel
