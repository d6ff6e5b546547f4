"""The columns of a legal action's features, and the encoding of a row.

Rows are bytes of float16. The same rows occur often, so the functions that make them are cached (``lru_cache``).
"""

from __future__ import annotations

import struct
from functools import lru_cache

from corral_games.card_battle.engine.cards import DEATHTOUCH, FIRST_STRIKE, FLYING, HASTE, MENACE, TRAMPLE, VIGILANCE
from corral_games.card_battle.features.features import HIGH, LOW

__all__ = ["ACTION_FEATURES", "EIGHTHS_PER_UNIT", "WIDTH", "body_columns", "encode_row", "pass_row", "quantize_score"]

ACTION_FEATURES = {
    "pass": "1 for passing, which also ends the choice of attackers or blockers",
    "land": "1 for a land",
    "cast": "1 for a spell",
    "attack": "1 for an attack",
    "block": "1 for a block",
    "creature": "1 if the spell is a creature",
    "instant": "1 if it is an instant",
    "lasting": "1 if it is a charm or a mark",
    "cost": "mana cost, 1 = 6",
    "use": "spell: share of the untapped lands that it takes; land: cards in hand that lack its colour, 1 = 3",
    "power": "power of the creature that is cast, attacks or blocks, or that the spell adds, 1 = 6",
    "toughness": "toughness of the creature that is cast, attacks or blocks, or that the spell adds, 1 = 6",
    "flying": "1 with flying",
    "haste": "1 with haste or vigilance",
    "deadly": "1 with first strike or deathtouch",
    "pushing": "1 with trample or menace",
    "damage": "damage of the spell to its target or to each creature, 1 = 6",
    "cards": "cards that it draws, or that the opponent discards, 1 = 2",
    "life": "life that it gains, now or by lifelink, 1 = 5",
    "on_mine": "1 if it targets a creature of this player",
    "on_face": "1 if it targets the opponent",
    "target_power": "power of the target, of the attacker that is blocked, or of the worst possible blocker, 1 = 6",
    "target_toughness": "toughness of that creature minus damage, 1 = 6",
    "target_busy": "1 if the target is in combat or the target of the spell on top of the stack",
    "kills": "1 if the target, or the creature that it fights, would die; less if it would be removed for a while",
    "dies": "1 if this player's creature may die of it",
    "free": "1 if no creature can block the attacker",
    "saves": "1 if it saves this player, or a creature of this player, from dying",
    "swing": "estimated value in points more than passing (see action_value), 1 = 4 points",
    "face": "damage to the opponent, or damage to this player that it prevents, as a share of that player's life",
    "lethal": "1 if it wins the game (an attack: with all other possible attackers); -1 for a pass that would lose it",
    "exposed": "damage that remains possible, now or in the opponent's next turn, as a share of this player's life",
}
"""The columns of a row, in order, with their meaning. "1 = 6" is the amount that gives 1; values are clipped at 2."""

EIGHTHS_PER_UNIT = 32
"""The score, in eighths of a point, that gives a ``swing`` of 1: 4 points."""

WIDTH = len(ACTION_FEATURES)
_PACK = struct.Struct(f"={WIDTH}e").pack
_MIN_EIGHTHS, _MAX_EIGHTHS = int(LOW * EIGHTHS_PER_UNIT), int(HIGH * EIGHTHS_PER_UNIT)
_COLUMN = {name: index for index, name in enumerate(ACTION_FEATURES)}


def encode_row(**features: float) -> bytes:
    """Return a row with these features, clipped to their bounds, and 0 in all other columns."""
    numbers = [0.0] * WIDTH
    for name, value in features.items():
        numbers[_COLUMN[name]] = HIGH if value > HIGH else LOW if value < LOW else value
    return _PACK(*numbers)


def quantize_score(score: float) -> int:
    """Truncate a score to eighths of a point within bounds: fewer distinct values make fewer distinct rows to cache."""
    eighths = int(8 * score)
    return _MAX_EIGHTHS if eighths > _MAX_EIGHTHS else _MIN_EIGHTHS if eighths < _MIN_EIGHTHS else eighths


def body_columns(power: int, toughness: int, keywords: int) -> dict[str, float]:
    """Return the columns that describe a creature."""
    return {
        "power": power / 6,
        "toughness": toughness / 6,
        "flying": keywords & FLYING != 0,
        "haste": keywords & (HASTE | VIGILANCE) != 0,
        "deadly": keywords & (FIRST_STRIKE | DEATHTOUCH) != 0,
        "pushing": keywords & (TRAMPLE | MENACE) != 0,
    }


@lru_cache(1 << 12)
def pass_row(outgoing: int, foe_life: int, lethal: int, incoming: int, my_life: int) -> bytes:
    """Return the row of passing: the opponent takes ``outgoing`` damage, this player may take ``incoming``."""
    return encode_row(**{"pass": 1.0}, face=outgoing / foe_life, lethal=lethal, exposed=incoming / my_life)
