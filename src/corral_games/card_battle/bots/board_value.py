"""Static evaluation of a duel for one player, in points or as a probability of winning.

Points compare the outcomes of one decision: a creature without keywords has a little over half a point for each of its
power and toughness. The coefficients were fitted to the results of several thousand duels between scripted players.
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

__all__ = [
    "CARD_POINTS",
    "DEFEAT_POINTS",
    "LAND_POINTS",
    "creature_value",
    "life_value",
    "side_value",
    "win_probability",
    "win_probability_determinized",
]

DEFEAT_POINTS = -60.0
"""Points of a player without life."""
CARD_POINTS = 2.0
"""Points of a card in hand."""
LAND_POINTS = (4.0, 4.0, 4.0, 3.0, 1.5, 0.8, 0.2, 0.1)
"""Points of one more land, by the number of lands before; the last entry holds for all larger numbers."""
_POINTS_PER_LIFE = (2.4,) * 5 + (1.25,) * 5 + (0.8,) * 5 + (0.6,) * 5 + (0.25,) * 40
"""Points of one more life, by the life before."""
_TOTAL_LAND_POINTS = (0.0, *accumulate(LAND_POINTS + LAND_POINTS[-1:] * 23))
"""Points of all lands on the board, by their number."""

# Terms of the log odds of winning:
_LIFE_LOG_ODDS = (0.0, *accumulate((0.40,) * 5 + (0.18,) * 5 + (0.11,) * 5 + (0.07,) * 5 + (0.01,) * 40))
"""By life."""
_LAND_LOG_ODDS = (0.0, *accumulate((1.8, 1.4, 1.0, 0.72, 0.48, 0.15) + (0.02,) * 24))
"""By the number of lands on the board."""
_HELD_LAND_LOG_ODDS = tuple(max(0.7 - 0.13 * lands, 0.0) for lands in range(31))
"""For each land in hand, by the number of lands on the board."""
_HELD_SPELL_LOG_ODDS = 0.57
"""For each other card in hand."""
_CHARM_LOG_ODDS = tuple(0.8 if card.upkeep else 0.3 for card in CARDS)
"""For each charm on the board, by card number."""
_BOARD_LOG_ODDS = 1.3
"""Times the square root of the value of all creatures."""
_TURN_LOG_ODDS = 0.2
"""For the active player; the other player gets minus this."""
_SMALL_LIBRARY = 8
_MISSING_CARD_LOG_ODDS = 0.45
"""Subtracted for each card that a library has fewer than ``_SMALL_LIBRARY``."""


@cache
def creature_value(power: int, toughness: int, keywords: int) -> float:
    """Return the points of a creature on the board."""
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
def life_value(life: int) -> float:
    """Return the points of a player's life total; the lower the life, the more one life counts."""
    return add_up(_POINTS_PER_LIFE[:life]) if life > 0 else DEFEAT_POINTS + 0.5 * max(life, -40)


def side_value(side: Side) -> float:
    """Return the points of what both players see of a side: life, creatures, lands, and the number of cards in hand."""
    points = life_value(side.life) + CARD_POINTS * len(side.hand) + _TOTAL_LAND_POINTS[min(sum(side.lands), 30)]
    for creature in side.creatures:
        points += creature_value(creature.power, creature.toughness, creature.keywords)
    return points


def win_probability(state: State, seat: int) -> float:
    """Estimate the probability that ``seat`` wins from what ``seat`` sees; after the end, return the result.

    The opponent's hand is assumed to have the average number of lands, given the cards that ``seat`` has not seen.
    """
    foe = state.sides[1 - seat]
    unseen = foe.library + foe.hand
    expected_lands = len(foe.hand) * sum(card < len(COLOURS) for card in unseen) / max(len(unseen), 1)
    return _win_probability(state, seat, _held_lands(state.sides[seat]), expected_lands)


def win_probability_determinized(state: State, seat: int) -> float:
    """Estimate the probability that ``seat`` wins from both hands; only for determinized duels, as hands are hidden."""
    return _win_probability(state, seat, _held_lands(state.sides[seat]), _held_lands(state.sides[1 - seat]))


def _win_probability(state: State, seat: int, held_lands: float, opponent_held_lands: float) -> float:
    """Return the result of a duel that is over, otherwise the logistic function of the difference in log odds."""
    if state.winner is not None:
        return 0.5 if state.winner == 2 else float(state.winner == seat)
    log_odds = _log_odds(state.sides[seat], held_lands) - _log_odds(state.sides[1 - seat], opponent_held_lands)
    log_odds += _TURN_LOG_ODDS if state.active == seat else -_TURN_LOG_ODDS
    return 1.0 / (1.0 + exp(-log_odds))


def _held_lands(side: Side) -> int:
    """Return the number of lands in a hand, which is sorted with lands first."""
    count = 0
    for card in side.hand:
        if card >= len(COLOURS):
            break
        count += 1
    return count


def _log_odds(side: Side, held_lands: float) -> float:
    """Return the contribution of one side to the log odds. Each further creature contributes less (square root)."""
    board = 2.0
    for creature in side.creatures:
        board += creature_value(creature.power, creature.toughness, creature.keywords)
    lands = min(sum(side.lands), 30)
    log_odds = _LIFE_LOG_ODDS[max(0, min(side.life, 60))] + _LAND_LOG_ODDS[lands] + _BOARD_LOG_ODDS * sqrt(board)
    log_odds += _HELD_SPELL_LOG_ODDS * (len(side.hand) - held_lands) + _HELD_LAND_LOG_ODDS[lands] * held_lands
    for charm in side.charms:
        log_odds += _CHARM_LOG_ODDS[charm]
    if len(side.library) < _SMALL_LIBRARY:
        log_odds -= _MISSING_CARD_LOG_ODDS * (_SMALL_LIBRARY - len(side.library))
    return log_odds
