"""Cards, creatures and actions in words."""

from __future__ import annotations

from corral.games.card_battle.cards import CARDS, SPELL
from corral.games.card_battle.pieces import ATTACK, BLOCK, BLOCKING, CAST, FACE, LAND, RAIDING, Action, Creature
from corral.games.card_battle.state import State

__all__ = ["creature_text", "describe"]


def creature_text(creature: Creature) -> str:
    """Name a creature with its present strength, as in "Bog Stalker (3/2)"."""
    return f"{CARDS[creature.card].name} ({creature.power}/{creature.toughness - creature.damage})"


def describe(state: State, action: Action) -> str:
    """Say what an action is, as in "cast Ember Bolt on Bog Stalker (3/2)"."""
    kind, subject, target = action
    if kind == LAND:
        return f"play {CARDS[subject].name}"
    if kind == CAST:
        return f"cast {CARDS[subject].name}{_aim(state, subject, target)}"
    if kind == ATTACK:
        return f"attack with {_find_text(state, subject)}"
    if kind == BLOCK:
        return f"block {_find_text(state, target)} with {_find_text(state, subject)}"
    if state.stack:
        return "no answer"
    return {RAIDING: "done attacking", BLOCKING: "done blocking"}.get(state.phase, "pass")


def _aim(state: State, card: int, target: int) -> str:
    if target == FACE:
        return " at the other player"
    if target <= 0:
        return ""
    if CARDS[card].target == SPELL:
        spells = [CARDS[spell.card].name for spell in state.stack if spell.uid == target]
        return f" against {spells[0]}" if spells else ""
    return f" on {_find_text(state, target)}"


def _find_text(state: State, uid: int) -> str:
    creature = state.find(uid)
    return creature_text(creature) if creature is not None else "a creature that is gone"
