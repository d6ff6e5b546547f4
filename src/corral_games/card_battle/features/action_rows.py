"""How a legal action is told in numbers: the names of the columns, and how a row is put together.

Rows are bytes of float16. The same ones come up again and again, so those who make them keep them (``lru_cache``).
"""

from __future__ import annotations

import struct
from functools import lru_cache

from corral_games.card_battle.engine.cards import DEATHTOUCH, FIRST_STRIKE, FLYING, HASTE, MENACE, TRAMPLE, VIGILANCE
from corral_games.card_battle.features.features import HIGH, LOW

__all__ = ["ACTION_FEATURES", "POINTS", "WIDTH", "body", "pass_row", "row", "swing_of"]

ACTION_FEATURES = {
    "pass": "1 for passing, or being done",
    "land": "1 for a land",
    "cast": "1 for a spell",
    "attack": "1 for an attack",
    "block": "1 for a block",
    "creature": "1 if the spell is a creature",
    "instant": "1 if it is an instant",
    "lasting": "1 if it is a charm or a mark",
    "cost": "what it costs, 1 = 6",
    "use": "spell: share of the mana that it takes; land: cards in hand that lack its colour, 1 = 3",
    "power": "of the creature that comes, attacks or blocks, or what the spell adds, 1 = 6",
    "toughness": "the same",
    "flying": "1 if it flies",
    "haste": "1 if it can attack at once, or attack and still block",
    "deadly": "1 with first strike or deathtouch",
    "pushing": "1 with trample or menace",
    "damage": "damage of the spell to its target or to each creature, 1 = 6",
    "cards": "cards that it draws, or takes from the other hand, 1 = 2",
    "life": "life that it gains, now or when it strikes, 1 = 5",
    "on_mine": "1 if it is aimed at one's own creature",
    "on_face": "1 if it is aimed at the other player",
    "target_power": "power of the target, of the attacker that is blocked, or of the guard to fear most, 1 = 6",
    "target_toughness": "its toughness less damage, 1 = 6",
    "target_busy": "1 if the target is in combat or about to be struck by a spell",
    "kills": "1 if the target, or the creature that it fights, would die; less if it only leaves for a while",
    "dies": "1 if one's own creature may die of it",
    "free": "1 if nobody can block the attack",
    "saves": "1 if it saves one's own creature, or oneself, from what is coming",
    "swing": "what it seems to bring in all, more than passing would (see scores), 1 = 4 points",
    "face": "damage that gets through to a player, or is kept from oneself, as a share of that player's life",
    "lethal": "1 if it wins the game; -1 for a pass that would lose it",
    "exposed": "damage that would still come, now or in the other side's next turn, as a share of one's own life",
}
"""A row, in order: name and meaning. Whatever is counted stops at 2 times its 1."""

POINTS = 32
"""Scores (see ``action_value``) are told in eighths of a point, and 4 points count 1."""

WIDTH = len(ACTION_FEATURES)
_PACK = struct.Struct(f"={WIDTH}e").pack
_LEAST, _MOST = int(LOW * POINTS), int(HIGH * POINTS)
_AT = {name: place for place, name in enumerate(ACTION_FEATURES)}


def row(**features: float) -> bytes:
    """Put a row together from what is not zero."""
    numbers = [0.0] * WIDTH
    for name, value in features.items():
        numbers[_AT[name]] = HIGH if value > HIGH else LOW if value < LOW else value
    return _PACK(*numbers)


def swing_of(score: float) -> int:
    """A score as rows take it: few different ones, so that few different rows are kept."""
    eighths = int(8 * score)
    return _MOST if eighths > _MOST else _LEAST if eighths < _LEAST else eighths


def body(power: int, toughness: int, keywords: int) -> dict[str, float]:
    """The columns that tell what a creature is like."""
    return {
        "power": power / 6,
        "toughness": toughness / 6,
        "flying": keywords & FLYING != 0,
        "haste": keywords & (HASTE | VIGILANCE) != 0,
        "deadly": keywords & (FIRST_STRIKE | DEATHTOUCH) != 0,
        "pushing": keywords & (TRAMPLE | MENACE) != 0,
    }


@lru_cache(1 << 12)
def pass_row(raid: int, foe_life: int, lethal: int, incoming: int, my_life: int) -> bytes:
    """The row for doing nothing: ``raid`` goes to the other player, ``incoming`` may come back."""
    return row(**{"pass": 1.0}, face=raid / foe_life, lethal=lethal, exposed=incoming / my_life)
