"""What a duel is worth to a player: a quick static judgement, in points or as a chance to win.

Points compare what could happen in one decision: a creature without keywords is worth a little over half a point for
each of its power and toughness. The numbers were fitted to who won some thousands of duels between scripted players.
"""

from __future__ import annotations

from functools import cache
from itertools import accumulate
from math import exp, sqrt

from corral.core.sums import add_up
from corral_games.card_battle.engine.cards import (
    BOUND,
    CARDS,
    COLOURS,
    DEATHTOUCH,
    DEFENDER,
    FIRST_STRIKE,
    FLYING,
    LIFELINK,
    MENACE,
    REACH,
    TRAMPLE,
    VIGILANCE,
)
from corral_games.card_battle.engine.pieces import Side
from corral_games.card_battle.engine.state import State

__all__ = ["CARD", "DEFEAT", "LAND", "judge_life", "judge_side", "win_chance", "win_chance_dealt", "worth"]

DEFEAT = -60.0
"""What it is worth to have no life left."""
CARD = 2.0
"""A card in the hand."""
LAND = (4.0, 4.0, 4.0, 3.0, 1.5, 0.8, 0.2, 0.1)
"""One more land, by how many there are; the last number also stands for more."""
_LIFE = (2.4,) * 5 + (1.25,) * 5 + (0.8,) * 5 + (0.6,) * 5 + (0.25,) * 40
"""One more life, by how much there is."""
_LANDS = (0.0, *accumulate(LAND + LAND[-1:] * 23))

_LIFE_ODDS = (0.0, *accumulate((0.40,) * 5 + (0.18,) * 5 + (0.11,) * 5 + (0.07,) * 5 + (0.01,) * 40))
_LAND_ODDS = (0.0, *accumulate((1.8, 1.4, 1.0, 0.72, 0.48, 0.15) + (0.02,) * 24))
_HELD_LAND_ODDS = tuple(max(0.7 - 0.13 * lands, 0.0) for lands in range(31))
_HELD_SPELL_ODDS = 0.57
_CHARM_ODDS = tuple(0.8 if card.upkeep else 0.3 for card in CARDS)
_BOARD_ODDS = 1.3
_TURN_ODDS = 0.2
_LAST_CARDS = 8
_LAST_CARD_ODDS = 0.45


@cache
def worth(power: int, toughness: int, keywords: int) -> float:
    """Judge a creature on the board by what it can do, in points."""
    if keywords & BOUND:
        return 0.3
    power = max(power, 0)
    points = 0.2 + 0.6 * power + 0.6 * toughness
    if keywords & DEFENDER:
        return points - 0.5 * power
    if toughness >= 5:
        points += 0.8
    if keywords & FLYING:
        points += 0.55 * power
    if keywords & TRAMPLE:
        points += 0.05 * power
    if keywords & FIRST_STRIKE:
        points += 0.35 * power
    if keywords & DEATHTOUCH:
        points += 0.9
    if keywords & LIFELINK:
        points += 0.3 * power
    if keywords & VIGILANCE:
        points += 0.1 * power
    if keywords & MENACE:
        points += 0.25 * power
    if keywords & REACH:
        points += 0.5
    return points


@cache
def judge_life(life: int) -> float:
    """Judge what is left of a player's life, in points: the last ones count most."""
    return add_up(_LIFE[:life]) if life > 0 else DEFEAT + 0.5 * max(life, -40)


def judge_side(side: Side) -> float:
    """Judge what both players see of one side, in points: life, creatures, lands, and how many cards it holds."""
    points = judge_life(side.life) + CARD * len(side.hand) + _LANDS[min(sum(side.lands), 30)]
    for creature in side.creatures:
        points += worth(creature.power, creature.toughness, creature.keywords)
    return points


def win_chance(state: State, seat: int) -> float:
    """Estimate a player's chance to win, from 0 to 1, from what that player sees; after the end, the result.

    The other hand counts as an average one of the cards that were not seen yet.
    """
    other = state.sides[1 - seat]
    unseen = other.library + other.hand
    lands = len(other.hand) * sum(card < len(COLOURS) for card in unseen) / max(len(unseen), 1)
    return _chance(state, seat, _held_lands(state.sides[seat]), lands)


def win_chance_dealt(state: State, seat: int) -> float:
    """Estimate the same from both hands: only for duels whose hidden cards were dealt anew."""
    return _chance(state, seat, _held_lands(state.sides[seat]), _held_lands(state.sides[1 - seat]))


def _chance(state: State, seat: int, lands: float, other_lands: float) -> float:
    if state.winner is not None:
        return 0.5 if state.winner == 2 else float(state.winner == seat)
    odds = _odds(state.sides[seat], lands) - _odds(state.sides[1 - seat], other_lands)
    odds += _TURN_ODDS if state.active == seat else -_TURN_ODDS
    return 1.0 / (1.0 + exp(-odds))


def _held_lands(side: Side) -> int:
    """Count the lands in a hand, which is sorted with lands first."""
    count = 0
    for card in side.hand:
        if card >= len(COLOURS):
            break
        count += 1
    return count


def _odds(side: Side, held_lands: float) -> float:
    """Judge one side as logarithmic odds. The more creatures there are, the less one more matters."""
    board = 2.0
    for creature in side.creatures:
        board += worth(creature.power, creature.toughness, creature.keywords)
    lands = min(sum(side.lands), 30)
    odds = _LIFE_ODDS[max(0, min(side.life, 60))] + _LAND_ODDS[lands] + _BOARD_ODDS * sqrt(board)
    odds += _HELD_SPELL_ODDS * (len(side.hand) - held_lands) + _HELD_LAND_ODDS[lands] * held_lands
    for charm in side.charms:
        odds += _CHARM_ODDS[charm]
    if len(side.library) < _LAST_CARDS:
        odds -= _LAST_CARD_ODDS * (_LAST_CARDS - len(side.library))
    return odds
