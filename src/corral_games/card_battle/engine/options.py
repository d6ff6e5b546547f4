"""The legal actions (options) of a decision, in canonical order: pass, lands, spells by cost, attacks, blocks.

Equivalent actions are listed once: with equal cards in the hand, or with interchangeable creatures. A list longer than
``MAX_OPTIONS`` is truncated, which removes the last targets of the most expensive spells.
"""

from __future__ import annotations

from corral_games.card_battle.engine.board import BOARD_LIMIT
from corral_games.card_battle.engine.cards import (
    BOUND,
    CARDS,
    COLOURS,
    COST,
    CREATURE,
    DEFENDER,
    FLYING,
    FOE_OR_FACE,
    FRIEND,
    HASTE,
    INSTANT,
    KIND,
    MENACE,
    NOTHING,
    PIPS,
    REACH,
    SPELL,
    TARGET,
)
from corral_games.card_battle.engine.pieces import (
    ATTACK,
    BLOCK,
    CAST,
    FACE,
    FIGHTING,
    LAND,
    MAIN,
    PASS,
    RAIDING,
    Action,
    Creature,
)
from corral_games.card_battle.engine.state import State

__all__ = ["MAX_OPTIONS", "can_attack", "can_block", "list_options"]

MAX_OPTIONS = 200
"""The most legal actions of a decision, and the size of the env's action space."""

_N_LANDS = len(COLOURS)
_PASS = Action(PASS)
_PLAY_LAND = tuple(Action(LAND, card) for card in range(_N_LANDS))
_CAST = tuple(Action(CAST, card) for card in range(len(CARDS)))


def list_options(state: State) -> list[Action]:
    """Return the legal actions of ``state.to_act``; empty only after the end of the duel."""
    if state.winner is not None:
        return []
    options = [_PASS]
    if state.stack or state.phase == FIGHTING:
        _add_spells(state, options, instants_only=True)
    elif state.phase == MAIN:
        _add_spells(state, options, instants_only=False)
    elif state.phase == RAIDING:
        ready = [creature for creature in state.sides[state.active].creatures if can_attack(creature)]
        options += [Action(ATTACK, creature.uid) for creature in _distinct(ready)]
    else:
        return _list_blocks(state)
    return options if len(options) <= MAX_OPTIONS else options[:MAX_OPTIONS]


def can_attack(creature: Creature) -> bool:
    """Return whether a creature can be declared as an attacker in its owner's turn, and is not one yet."""
    if creature.tapped or creature.attacking or creature.keywords & (DEFENDER | BOUND):
        return False
    return not creature.sick or creature.keywords & HASTE != 0


def can_block(attacker: Creature, blocker: Creature) -> bool:
    """Return whether a creature can block an attacker, not counting that menace requires a second blocker."""
    if blocker.tapped or blocker.keywords & BOUND:
        return False
    return not attacker.keywords & FLYING or blocker.keywords & (FLYING | REACH) != 0


def _add_spells(state: State, options: list[Action], instants_only: bool) -> None:
    """Append the lands and spells that ``to_act`` can play: affordable, with a target if they need one."""
    side = state.sides[state.to_act]
    untapped = side.untapped
    mana = sum(untapped)
    previous = -1
    for card in side.hand:
        if card == previous:
            continue
        previous = card
        if card < _N_LANDS:
            if not (instants_only or side.land_played):
                options.append(_PLAY_LAND[card])
            continue
        if COST[card] > mana:  # the hand is sorted by cost
            return
        if instants_only and KIND[card] != INSTANT:
            continue
        for colour, number in PIPS[card]:
            if untapped[colour] < number:
                break
        else:
            if TARGET[card] != NOTHING:
                _add_targeted(state, options, card)
            elif KIND[card] != CREATURE or len(side.creatures) < BOARD_LIMIT:
                options.append(_CAST[card])


def _add_targeted(state: State, options: list[Action], card: int) -> None:
    """Append a spell once for each legal target. A creature can also be cast if its effect has no legal target."""
    seat, target = state.to_act, TARGET[card]
    is_creature = KIND[card] == CREATURE
    if is_creature and len(state.sides[seat].creatures) >= BOARD_LIMIT:
        return
    if target == SPELL:
        if state.stack:
            options.append(Action(CAST, card, state.stack[-1].uid))
        return
    if target == FOE_OR_FACE:
        options.append(Action(CAST, card, FACE))
    creatures = state.sides[seat if target == FRIEND else 1 - seat].creatures
    if is_creature and target != FOE_OR_FACE and not creatures:
        options.append(_CAST[card])
    # A spell on the stack may target one of two otherwise interchangeable creatures, so all of them are listed then.
    for creature in creatures if state.stack else _distinct(creatures):
        options.append(Action(CAST, card, creature.uid))


def _list_blocks(state: State) -> list[Action]:
    """Return the legal blocks. An attacker with menace and one blocker has to get its second before any other block."""
    attackers = [creature for creature in state.sides[state.active].creatures if creature.attacking]
    blockers = [
        creature for creature in state.sides[state.to_act].creatures if not (creature.tapped or creature.blocking)
    ]
    options = [_PASS]
    if not blockers:
        return options
    for attacker in attackers:
        if attacker.keywords & MENACE and attacker.blocked == 1:
            able = [blocker for blocker in blockers if can_block(attacker, blocker)]
            return [Action(BLOCK, blocker.uid, attacker.uid) for blocker in _distinct(able)]
    blockable = [
        attacker
        for attacker in _distinct(attackers)
        if not attacker.keywords & MENACE
        or attacker.blocked
        or sum(can_block(attacker, blocker) for blocker in blockers) > 1
    ]
    for blocker in _distinct(blockers):
        for attacker in blockable:
            if can_block(attacker, blocker):
                options.append(Action(BLOCK, blocker.uid, attacker.uid))
    return options


def _distinct(creatures: list[Creature]) -> list[Creature]:
    """Return the creatures without those that are interchangeable with an earlier one."""
    if len({creature.card for creature in creatures}) == len(creatures):
        return creatures
    kept: list[Creature] = []
    for creature in creatures:
        for other in kept:
            if other.card == creature.card and other.is_equivalent(creature):
                break
        else:
            kept.append(creature)
    return kept
