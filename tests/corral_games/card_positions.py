"""Positions for tests of card battle, set up by card name, and moves by their words."""

import random
from collections.abc import Sequence

from corral_games.card_battle.engine.board import enter
from corral_games.card_battle.engine.cards import CARD_NUMBERS, CARDS
from corral_games.card_battle.engine.pieces import PASS, Action, Creature
from corral_games.card_battle.engine.rules import Duel, describe, new_duel

__all__ = ["arena", "creature", "do", "names", "number", "play_randomly", "words"]


def number(name: str) -> int:
    return CARD_NUMBERS[name]


def names(cards: Sequence[int]) -> list[str]:
    return [CARDS[card].name for card in cards]


def arena(
    mine: Sequence[str] = (),
    theirs: Sequence[str] = (),
    hand: Sequence[str] = (),
    their_hand: Sequence[str] = (),
    lands: int = 9,
    their_lands: int = 9,
) -> Duel:
    """Player 0 is in the main phase of a turn in the middle of a game; the land of the turn has been played.

    With creatures and no hand it is time to attack already. Both have lands of every colour, and nothing but lands left in their libraries.
    """
    duel = Duel((0, 0))
    duel.turn = 9
    for seat, board, cards, count in ((0, mine, hand, lands), (1, theirs, their_hand, their_lands)):
        side = duel.sides[seat]
        side.library = [0] * 20
        side.hand = sorted(number(name) for name in cards)
        side.lands = [count] * 5
        side.untapped = [count] * 5
        side.land_played = True
        for name in board:
            enter(duel, seat, number(name))
            side.creatures[-1].sick = False
    duel.log = []
    if mine and not hand:
        duel.apply(Action(PASS))
    return duel


def words(duel: Duel) -> list[str]:
    """What is legal, in words."""
    return [describe(duel, action) for action in duel.legal()]


def do(duel: Duel, *beginnings: str) -> None:
    """Play one action after the other, each the first legal one whose words begin like this."""
    for beginning in beginnings:
        for action in duel.legal():
            if describe(duel, action).startswith(beginning):
                duel.apply(action)
                break
        else:
            raise AssertionError(f"{beginning!r} is not among {words(duel)}")


def creature(duel: Duel, name: str) -> Creature:
    """The first creature of that name on the board."""
    for side in duel.sides:
        for found in side.creatures:
            if CARDS[found.card].name == name:
                return found
    raise AssertionError(f"no {name} on the board")


def play_randomly(seed: int, steps: int, decks: tuple[str, str] = ("random", "random")) -> Duel:
    """A duel after some random actions, or at its end."""
    duel = new_duel(decks, seed)
    rng = random.Random(seed)
    for _ in range(steps):
        if duel.winner is not None:
            break
        duel.apply(rng.choice(duel.legal()))
    return duel
