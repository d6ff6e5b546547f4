"""Cards, creatures and actions in words."""

from __future__ import annotations

from corral_games.card_battle.engine.cards import (
    CARDS,
    CHARM,
    CREATURE,
    FOE,
    FOE_OR_FACE,
    FRIEND,
    KIND_NAMES,
    SPELL,
    TERRAIN,
    Card,
    Effect,
    keyword_names,
)
from corral_games.card_battle.engine.pieces import ATTACK, BLOCK, BLOCKING, CAST, FACE, LAND, RAIDING, Action, Creature
from corral_games.card_battle.engine.state import State

__all__ = ["card_text", "creature_text", "describe"]

_TARGETS = {
    FOE: "a creature of the other side",
    FRIEND: "one of your creatures",
    FOE_OR_FACE: "the other player or one of their creatures",
    SPELL: "the spell that it answers",
}

_PHRASES = {
    "bite": "your strongest creature deals its power to {target}",
    "boost": "{target} gets {size} until the end of the turn",
    "boost_all": "your creatures get {size} until the end of the turn",
    "bounce": "return {target} to its owner's hand",
    "counter": "counter {target}",
    "damage": "{n} damage to {target}",
    "damage_all": "{n} damage to every creature",
    "damage_face": "{n} damage to the other player",
    "damage_foes": "{n} damage to each creature of the other side",
    "destroy": "destroy {target}",
    "discard": "the other player discards {n} at random",
    "disenchant": "destroy the other side's newest charm",
    "drain": "the other player loses {n} life and you gain {n}",
    "draw": "draw {n}",
    "edict": "the other side's weakest creature dies",
    "exile": "exile {target}",
    "gain": "gain {n} life",
    "grow": "{target} gets +{n}/+{n} for good",
    "grow_all": "your creatures get +{n}/+{n} for good",
    "land": "put {n} land from your library on the board, tapped",
    "lose": "lose {n} life",
    "recall": "return your costliest creature from the graveyard to your hand",
    "revive": "return your costliest creature from the graveyard to the board",
    "tap": "tap {target}",
    "tap_all": "tap all creatures of the other side",
    "token": "{many} × {n} ({size})",
}


def card_text(card: Card) -> str:
    """Say what is on a card, as in "Ember Bolt (1E, instant): 3 damage to the other player or …"."""
    if card.kind == TERRAIN:
        return f"{card.name} (land)"
    size = f" {card.power}/{card.toughness}" if card.kind == CREATURE else ""
    parts = [", ".join(keyword_names(card.keywords))] if card.keywords else []
    if card.grants != (0, 0, 0):
        whose = "your creatures get" if card.kind == CHARM else f"put on {_TARGETS[card.target]}:"
        parts.append(f"{whose} {_size_text(*card.grants)}")
    when = "when it comes, " if card.kind == CREATURE else ""
    parts += [when + _phrase(card, effect) for effect in card.effects]
    parts += ["when it dies, " + _phrase(card, effect) for effect in card.death]
    parts += ["at the beginning of your turn, " + _phrase(card, effect) for effect in card.upkeep]
    cost = f"{card.cost_text}, " if card.cost_text else ""
    text = f": {'; '.join(parts)}" if parts else ""
    return f"{card.name} ({cost}{KIND_NAMES[card.kind]}{size}){text}"


def _phrase(card: Card, effect: Effect) -> str:
    """Put one effect into words."""
    word, *rest = effect
    size = ""
    if word in ("boost", "boost_all"):
        power, toughness, keywords = rest
        size = f"{power:+}/{toughness:+}" + (f" and {keywords}" if keywords else "")
    elif word == "token":
        token = next(other for other in CARDS if other.name == rest[0])
        keywords = "".join(f" {name}" for name in keyword_names(token.keywords))
        size = f"{token.power}/{token.toughness}{keywords}"
    return _PHRASES[str(word)].format(
        n=rest[0] if rest else "", many=rest[-1] if rest else "", size=size, target=_TARGETS.get(card.target, "")
    )


def _size_text(power: int, toughness: int, keywords: int) -> str:
    """Say what a charm or a mark gives."""
    names = ", ".join("cannot attack or block" if name == "bound" else name for name in keyword_names(keywords))
    size = f"{power:+}/{toughness:+}" if power or toughness else ""
    return " and ".join(part for part in (size, names) if part)


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
