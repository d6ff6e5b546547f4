"""Predictions without playing: which of two creatures survives a fight, and a summary of the effects of each card."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from corral_games.card_battle.engine.cards import (
    BOUND,
    CARDS,
    CHARM,
    DEATHTOUCH,
    FIRST_STRIKE,
    MARK,
    Card,
    keyword_bits,
)
from corral_games.card_battle.engine.pieces import Creature

__all__ = ["EFFECT_SUMMARIES", "EffectSummary", "FightResult", "fight", "fight_creatures"]


class FightResult(NamedTuple):
    """The result of a fight between two creatures."""

    first_dies: bool
    second_dies: bool


class EffectSummary(NamedTuple):
    """A summary of what a card does when it resolves."""

    damage: int = 0
    """Damage to the target; for a card without target, to each creature."""
    face: int = 0
    """Damage to the opponent, independent of the target."""
    cards: int = 0
    """Cards that the caster gets or the opponent loses."""
    life: int = 0
    """Life that the caster gains."""
    removal: int = 0
    """How lastingly the target is removed: 10 permanently, less if it may return, 0 not at all."""
    boost: tuple[int, int, int] = (0, 0, 0)
    """Power, toughness and keywords that it adds."""
    bites: bool = False
    """Whether the caster's strongest creature deals damage to the target."""

    @property
    def harm(self) -> int:
        """By how much damage and loss of toughness together reduce the remaining toughness of the target."""
        return self.damage - self.boost[1]


@lru_cache(1 << 14)
def fight(
    power: int, toughness: int, keywords: int, other_power: int, other_toughness: int, other_keywords: int
) -> FightResult:
    """Return the result of a fight between two creatures, of which ``toughness`` is given without damage taken."""
    other_dies = power >= other_toughness or (power > 0 and keywords & DEATHTOUCH != 0)
    dies = other_power >= toughness or (other_power > 0 and other_keywords & DEATHTOUCH != 0)
    is_first, other_is_first = bool(keywords & FIRST_STRIKE), bool(other_keywords & FIRST_STRIKE)
    if dies and other_dies and is_first != other_is_first:
        return FightResult(first_dies=not is_first, second_dies=is_first)
    return FightResult(first_dies=dies, second_dies=other_dies)


def fight_creatures(first: Creature, second: Creature) -> FightResult:
    """Return the result of a fight between two creatures in their present condition."""
    return fight(
        first.power,
        first.toughness - first.damage,
        first.keywords,
        second.power,
        second.toughness - second.damage,
        second.keywords,
    )


_REMOVAL = {"destroy": 10, "exile": 10, "counter": 10, "bounce": 6, "tap": 3}
_CARD_ADVANTAGE = ("draw", "discard", "land", "recall")


def _summarize(card: Card) -> EffectSummary:
    """Return a summary of a card's effects; effects that are not listed here are left out."""
    damage = face = cards = life = removal = 0
    boost = (0, 0, 0)
    for name, *arguments in card.effects:
        amount = arguments[0] if arguments and isinstance(arguments[0], int) else 0
        damage += amount if name in ("damage", "damage_foes", "damage_all") else 0
        face += amount if name in ("damage_face", "drain") else 0
        cards += amount if name in _CARD_ADVANTAGE else 0
        life += amount if name in ("gain", "drain") else -amount if name == "lose" else 0
        removal = max(removal, _REMOVAL.get(str(name), 0))
        if name in ("boost", "boost_all"):
            boost = (amount, int(arguments[1]), keyword_bits(str(arguments[2])))
        elif name == "grow":
            boost = (amount, amount, 0)
    if card.kind in (MARK, CHARM):
        boost = card.grants
        removal = 8 if boost[2] & BOUND else removal
    bites = ("bite",) in card.effects
    return EffectSummary(damage=damage, face=face, cards=cards, life=life, removal=removal, boost=boost, bites=bites)


EFFECT_SUMMARIES = tuple(_summarize(card) for card in CARDS)
"""The summary of each card, by card number."""
