"""Which actions are legal, in canonical order: pass, lands, spells by cost, attacks, blocks.

Choices that nobody could tell apart are listed once: equal cards in the hand, and creatures of the same card in the
same condition. There are at most ``MAX_OPTIONS``; beyond that the last ones (the dearest spells' last targets) are cut.
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

_LANDS = len(COLOURS)
_PASS = Action(PASS)
_PLAY_LAND = tuple(Action(LAND, card) for card in range(_LANDS))
_CAST = tuple(Action(CAST, card) for card in range(len(CARDS)))


def list_options(state: State) -> list[Action]:
    """List what ``state.to_act`` may do. Empty only after the end."""
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
    """Whether it may attack (and does not yet) in its owner's turn."""
    if creature.tapped or creature.attacking or creature.keywords & (DEFENDER | BOUND):
        return False
    return not creature.sick or creature.keywords & HASTE != 0


def can_block(attacker: Creature, blocker: Creature) -> bool:
    """Whether one may stand in the way of the other, as far as the two are concerned."""
    if blocker.tapped or blocker.keywords & BOUND:
        return False
    return not attacker.keywords & FLYING or blocker.keywords & (FLYING | REACH) != 0


def _add_spells(state: State, options: list[Action], instants_only: bool) -> None:
    """Add lands and spells from the hand of ``to_act`` that can be paid for and have a target if they need one."""
    side = state.sides[state.to_act]
    untapped = side.untapped
    mana = sum(untapped)
    last = -1
    for card in side.hand:
        if card == last:
            continue
        last = card
        if card < _LANDS:
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
                _add_aimed(state, options, card)
            elif KIND[card] != CREATURE or len(side.creatures) < BOARD_LIMIT:
                options.append(_CAST[card])


def _add_aimed(state: State, options: list[Action], card: int) -> None:
    """Add a spell once for each of its targets. A creature that finds none may come all the same."""
    seat, target = state.to_act, TARGET[card]
    comes = KIND[card] == CREATURE
    if comes and len(state.sides[seat].creatures) >= BOARD_LIMIT:
        return
    if target == SPELL:
        if state.stack:
            options.append(Action(CAST, card, state.stack[-1].uid))
        return
    if target == FOE_OR_FACE:
        options.append(Action(CAST, card, FACE))
    creatures = state.sides[seat if target == FRIEND else 1 - seat].creatures
    if comes and target != FOE_OR_FACE and not creatures:
        options.append(_CAST[card])
    aimed_at = [spell.target for spell in state.stack]  # which makes a creature unlike its twin
    for creature in creatures if aimed_at else _distinct(creatures):
        options.append(Action(CAST, card, creature.uid))


def _list_blocks(state: State) -> list[Action]:
    """List the blocks that can be added. A menacing attacker with one blocker needs its second before anything else."""
    attackers = [creature for creature in state.sides[state.active].creatures if creature.attacking]
    blockers = [
        creature for creature in state.sides[state.to_act].creatures if not (creature.tapped or creature.blocking)
    ]
    options = [_PASS]
    if not blockers:
        return options
    for attacker in attackers:
        if attacker.keywords & MENACE and attacker.blocked == 1:
            able = [creature for creature in blockers if can_block(attacker, creature)]
            return [Action(BLOCK, creature.uid, attacker.uid) for creature in _distinct(able)]
    open_to = [
        attacker
        for attacker in _distinct(attackers)
        if not attacker.keywords & MENACE
        or attacker.blocked
        or sum(can_block(attacker, creature) for creature in blockers) > 1
    ]
    for blocker in _distinct(blockers):
        for attacker in open_to:
            if can_block(attacker, blocker):
                options.append(Action(BLOCK, blocker.uid, attacker.uid))
    return options


def _distinct(creatures: list[Creature]) -> list[Creature]:
    """Keep one of those that nobody could tell apart, the oldest."""
    if len({creature.card for creature in creatures}) == len(creatures):
        return creatures
    kept: list[Creature] = []
    for creature in creatures:
        for other in kept:
            if other.card == creature.card and other.same(creature):
                break
        else:
            kept.append(creature)
    return kept
