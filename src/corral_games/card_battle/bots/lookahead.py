"""A quick look ahead, without playing: who survives a fight, and what a card does in a few numbers."""

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

__all__ = ["PLANS", "Fight", "Plan", "fight"]


class Fight(NamedTuple):
    """How one creature against another would end."""

    first_dies: bool
    second_dies: bool


class Plan(NamedTuple):
    """What a card does when it happens, in a few numbers."""

    damage: int = 0
    """Damage to the target; without one, to each creature."""
    face: int = 0
    """Damage to the other player, whatever the target."""
    cards: int = 0
    """Cards that one gets, or that the other player loses."""
    life: int = 0
    """Life that one gains."""
    removal: int = 0
    """How far the target is taken out of the game: 10 for good, less if it may come back."""
    boost: tuple[int, int, int] = (0, 0, 0)
    """Power, toughness and keywords that it gives."""
    bites: bool = False
    """Whether one's strongest creature deals the damage."""

    @property
    def harm(self) -> int:
        """How much less toughness the target has left, whatever the way."""
        return self.damage - self.boost[1]


@lru_cache(1 << 14)
def fight(
    power: int, toughness: int, keywords: int, other_power: int, other_toughness: int, other_keywords: int
) -> Fight:
    """Let one creature fight another; ``toughness`` is what is left of it."""
    other_dies = power >= other_toughness or (power > 0 and keywords & DEATHTOUCH != 0)
    dies = other_power >= toughness or (other_power > 0 and other_keywords & DEATHTOUCH != 0)
    fast, other_fast = bool(keywords & FIRST_STRIKE), bool(other_keywords & FIRST_STRIKE)
    if dies and other_dies and fast != other_fast:
        return Fight(not fast, fast)
    return Fight(dies, other_dies)


_REMOVAL = {"destroy": 10, "exile": 10, "counter": 10, "bounce": 6, "tap": 3}
_CARDS = ("draw", "discard", "land", "recall")


def _plan(card: Card) -> Plan:
    """Sum up what a card does; a word that is not known here counts for nothing."""
    damage = face = cards = life = removal = 0
    boost = (0, 0, 0)
    for word, *numbers in card.effects:
        amount = numbers[0] if numbers and isinstance(numbers[0], int) else 0
        damage += amount if word in ("damage", "damage_foes", "damage_all") else 0
        face += amount if word in ("damage_face", "drain") else 0
        cards += amount if word in _CARDS else 0
        life += amount if word in ("gain", "drain") else -amount if word == "lose" else 0
        removal = max(removal, _REMOVAL.get(str(word), 0))
        if word in ("boost", "boost_all"):
            boost = (amount, int(numbers[1]), keyword_bits(str(numbers[2])))
        elif word == "grow":
            boost = (amount, amount, 0)
    if card.kind in (MARK, CHARM):
        boost = card.grants
        removal = 8 if boost[2] & BOUND else removal
    return Plan(damage, face, cards, life, removal, boost, ("bite",) in card.effects)


PLANS = tuple(_plan(card) for card in CARDS)
"""What each card does, by its number."""
