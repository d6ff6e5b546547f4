"""What a duel is worth to a player, from what that player may see: a quick static judgement, in points.

The numbers were fitted to who won some thousands of duels between scripted players; a card in the hand is worth about
one point.
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from math import exp

from corral.games.card_battle.cards import (
    BOUND,
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
from corral.games.card_battle.pieces import Side
from corral.games.card_battle.state import State

__all__ = ["CARD", "DEFEAT", "LAND", "judge", "judge_life", "judge_side", "win_chance", "worth"]

DEFEAT = -60.0
"""What it is worth to have no life left."""
CARD = 2.0
"""A card in the hand."""
LAND = (4.0, 4.0, 4.0, 3.0, 1.5, 0.8, 0.2, 0.1)
"""One more land, by how many there are; the last number also stands for more."""

_LIFE = ((0, 2.4), (5, 1.25), (10, 0.8), (15, 0.6), (20, 0.25), (10**6, 0.0))
"""Points for each life from there on."""
_LANDS = tuple(sum(LAND[:count]) + LAND[-1] * max(count - len(LAND), 0) for count in range(31))
_TEMPO = 1.0
"""To be the one whose turn it is."""
_SCALE = 0.14
"""How sure a lead of one point makes one."""


@cache
def worth(power: int, toughness: int, keywords: int) -> float:
    """Judge a creature on the board by what it can do."""
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
    """Judge what is left of a player's life: the last points count most."""
    if life <= 0:
        return DEFEAT + 0.5 * max(life, -40)
    points = 0.0
    for (start, each), (end, _) in pairwise(_LIFE):
        points += each * (min(life, end) - start) if life > start else 0.0
    return points


def judge_side(side: Side) -> float:
    """Judge what the other player, too, sees of one side: life, creatures, lands, and how many cards it holds."""
    points = judge_life(side.life) + CARD * len(side.hand) + _LANDS[sum(side.lands)] + 2.0 * len(side.charms)
    for creature in side.creatures:
        points += worth(creature.power, creature.toughness, creature.keywords)
    return points


def judge(state: State, seat: int) -> float:
    """Judge a duel for one player, in points of lead."""
    points = judge_side(state.sides[seat]) - judge_side(state.sides[1 - seat])
    return points + (_TEMPO if state.active == seat else -_TEMPO)


def win_chance(state: State, seat: int) -> float:
    """Turn the judgement into a chance to win between 0 and 1; after the end, the result."""
    if state.winner is not None:
        return 0.5 if state.winner == 2 else float(state.winner == seat)
    return 1.0 / (1.0 + exp(-_SCALE * judge(state, seat)))
