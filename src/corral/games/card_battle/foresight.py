"""A quick look ahead, without playing: what a creature is worth, who survives a fight, and what a card will do."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from corral.games.card_battle.cards import (
    BOUND,
    CARD_NUMBERS,
    CARDS,
    CREATURE,
    DEATHTOUCH,
    DEFENDER,
    FIRST_STRIKE,
    FLYING,
    FOE,
    LIFELINK,
    MARK,
    MENACE,
    NOTHING,
    TRAMPLE,
    Card,
    keyword_bits,
)
from corral.games.card_battle.pieces import Creature

__all__ = ["PLANS", "Fight", "Plan", "creature_worth", "fight", "worth"]


class Fight(NamedTuple):
    """How one creature against another would end."""

    first_dies: bool
    second_dies: bool


class Plan(NamedTuple):
    """What a card does when it resolves, summed up."""

    body: int = 0
    """What the creatures that come are worth."""
    damage: int = 0
    """Damage to the target."""
    face: int = 0
    """Damage to the other player, whatever the target."""
    sweep: int = 0
    """Damage to each creature of the other side."""
    own_sweep: int = 0
    """Damage to each of one's own."""
    cards: int = 0
    """Cards that one gets, or that the other player loses."""
    life: int = 0
    """Life that one gains."""
    removal: int = 0
    """How far the target is taken out of the game: 10 for good, less if it comes back."""
    boost: tuple[int, int, int] = (0, 0, 0)
    """Power, toughness and keywords that the target gets."""
    lasts: bool = False
    """Whether the boost stays."""
    team_boost: tuple[int, int, int] = (0, 0, 0)
    """The same for all of one's creatures."""
    other: str = ""
    """A word whose worth depends on what lies where: bite, edict, revive, recall, disenchant, tap_all or counter."""
    looks: bool = False
    """Whether a cast without a target needs a look at the table."""


@lru_cache(1 << 12)
def worth(power: int, toughness: int, keywords: int) -> int:
    """What a creature is worth: twice its power, its toughness, and its keywords."""
    power = max(power, 0)
    value = 2 * power + toughness
    if keywords & FLYING:
        value += power
    if keywords & (TRAMPLE | MENACE):
        value += power // 2
    if keywords & LIFELINK:
        value += power
    if keywords & FIRST_STRIKE:
        value += 1
    if keywords & DEATHTOUCH:
        value += 3
    if keywords & DEFENDER:
        value -= power
    return value // 4 if keywords & BOUND else value


def creature_worth(creature: Creature) -> int:
    """What a creature on the board is worth now."""
    return worth(creature.power, creature.toughness - creature.damage, creature.keywords)


@lru_cache(1 << 14)
def fight(
    power: int, toughness: int, keywords: int, other_power: int, other_toughness: int, other_keywords: int
) -> Fight:
    """Let one creature fight another; ``toughness`` is what is left of it."""
    other_dies = power >= other_toughness or (power > 0 and keywords & DEATHTOUCH != 0)
    dies = other_power >= toughness or (other_power > 0 and other_keywords & DEATHTOUCH != 0)
    fast, other_fast = keywords & FIRST_STRIKE, other_keywords & FIRST_STRIKE
    if dies and other_dies and bool(fast) != bool(other_fast):
        return Fight(not fast, bool(fast))
    return Fight(dies, other_dies)


_REMOVAL = {"destroy": 10, "exile": 10, "counter": 10, "bounce": 6, "tap": 3}
_ON_SIGHT = ("bite", "edict", "revive", "recall", "disenchant", "tap_all", "counter")


def _plan(card: Card) -> Plan:
    """Sum up the effects of a card; a word that is not known here counts for nothing."""
    body = damage = face = sweep = own_sweep = cards = life = removal = 0
    boost, team_boost, lasts, other = (0, 0, 0), (0, 0, 0), False, ""
    if card.kind == CREATURE:
        body = worth(card.power, card.toughness, card.keywords)
    for word, *numbers in card.effects:
        first = numbers[0] if numbers else 0
        amount = first if isinstance(first, int) else 0
        if word == "damage":
            damage += amount
        elif word in ("damage_face", "drain"):
            face += amount
        elif word in ("damage_foes", "damage_all"):
            sweep += amount
            own_sweep += amount if word == "damage_all" else 0
        elif word in ("draw", "discard", "land"):
            cards += amount
        elif word == "token":
            token = CARDS[CARD_NUMBERS[str(first)]]
            body += worth(token.power, token.toughness, token.keywords) * int(numbers[1])
        elif word in ("boost", "boost_all"):
            given = (amount, int(numbers[1]), keyword_bits(str(numbers[2])))
            boost, team_boost = (given, team_boost) if word == "boost" else (boost, given)
        elif word == "grow":
            boost, lasts = (amount, amount, 0), True
        elif word in _ON_SIGHT:
            other = str(word)
        if word in ("gain", "drain"):
            life += amount
        elif word == "lose":
            life -= amount
        removal = max(removal, _REMOVAL.get(str(word), 0))
    if card.kind == MARK:
        boost, lasts = card.grants, True
        removal = 8 if card.target == FOE and card.grants[2] & BOUND else removal
    elif card.grants != (0, 0, 0):
        team_boost, lasts = card.grants, True
    body += 6 * len(card.upkeep)
    looks = bool(sweep or other or team_boost != (0, 0, 0)) and card.target == NOTHING
    return Plan(body, damage, face, sweep, own_sweep, cards, life, removal, boost, lasts, team_boost, other, looks)


PLANS = tuple(_plan(card) for card in CARDS)
"""What each card does, by its number."""
