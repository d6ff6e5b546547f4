"""Texts that describe cards, creatures and actions to players."""

from __future__ import annotations

from corral_games.card_battle.engine.cards import (
    CARD_NUMBERS,
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

_TARGET_TEXTS = {
    FOE: "a creature of the other side",
    FRIEND: "one of your creatures",
    FOE_OR_FACE: "the other player or one of their creatures",
    SPELL: "the spell that it answers",
}

_EFFECT_TEXTS = {
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
    """Describe a card, as in "Ember Bolt (1E, instant): 3 damage to the other player or …"."""
    if card.kind == TERRAIN:
        return f"{card.name} (land)"
    size = f" {card.power}/{card.toughness}" if card.kind == CREATURE else ""
    parts = [", ".join(keyword_names(card.keywords))] if card.keywords else []
    if card.grants != (0, 0, 0):
        receiver = "your creatures get" if card.kind == CHARM else f"put on {_TARGET_TEXTS[card.target]}:"
        parts.append(f"{receiver} {_grants_text(*card.grants)}")
    when = "when it comes, " if card.kind == CREATURE else ""
    parts += [when + _effect_text(card, effect) for effect in card.effects]
    parts += ["when it dies, " + _effect_text(card, effect) for effect in card.death]
    parts += ["at the beginning of your turn, " + _effect_text(card, effect) for effect in card.upkeep]
    cost = f"{card.cost_text}, " if card.cost_text else ""
    text = f": {'; '.join(parts)}" if parts else ""
    return f"{card.name} ({cost}{KIND_NAMES[card.kind]}{size}){text}"


def _effect_text(card: Card, effect: Effect) -> str:
    """Describe one effect of a card."""
    name, *arguments = effect
    size = ""
    if name in ("boost", "boost_all"):
        power, toughness, keywords = arguments
        size = f"{power:+}/{toughness:+}" + (f" and {keywords}" if keywords else "")
    elif name == "token":
        token = CARDS[CARD_NUMBERS[str(arguments[0])]]
        keywords = "".join(f" {keyword}" for keyword in keyword_names(token.keywords))
        size = f"{token.power}/{token.toughness}{keywords}"
    return _EFFECT_TEXTS[str(name)].format(
        n=arguments[0] if arguments else "",
        many=arguments[-1] if arguments else "",
        size=size,
        target=_TARGET_TEXTS.get(card.target, ""),
    )


def _grants_text(power: int, toughness: int, keywords: int) -> str:
    """Describe what a charm or a mark grants."""
    names = ", ".join("cannot attack or block" if name == "bound" else name for name in keyword_names(keywords))
    size = f"{power:+}/{toughness:+}" if power or toughness else ""
    return " and ".join(part for part in (size, names) if part)


def creature_text(creature: Creature) -> str:
    """Describe a creature by its name, its power and the damage that would kill it, as in "Bog Stalker (3/2)"."""
    return f"{CARDS[creature.card].name} ({creature.power}/{creature.toughness - creature.damage})"


def describe(state: State, action: Action) -> str:
    """Describe an action, as in "cast Ember Bolt on Bog Stalker (3/2)"."""
    kind, subject, target = action
    if kind == LAND:
        return f"play {CARDS[subject].name}"
    if kind == CAST:
        return f"cast {CARDS[subject].name}{_target_text(state, subject, target)}"
    if kind == ATTACK:
        return f"attack with {_uid_text(state, subject)}"
    if kind == BLOCK:
        return f"block {_uid_text(state, target)} with {_uid_text(state, subject)}"
    if state.stack:
        return "no answer"
    return {RAIDING: "done attacking", BLOCKING: "done blocking"}.get(state.phase, "pass")


def _target_text(state: State, card: int, target: int) -> str:
    if target == FACE:
        return " at the other player"
    if target <= 0:
        return ""
    if CARDS[card].target == SPELL:
        names = [CARDS[spell.card].name for spell in state.stack if spell.uid == target]
        return f" against {names[0]}" if names else ""
    return f" on {_uid_text(state, target)}"


def _uid_text(state: State, uid: int) -> str:
    creature = state.find(uid)
    return creature_text(creature) if creature is not None else "a creature that is gone"
