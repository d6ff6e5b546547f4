"""The value of a card if it resolved now, in points (see ``board_value``): one function for each effect of ``effects``.

A value function takes the same arguments as the effect function of the same name, but changes nothing. Hidden cards
(the next card of a library, the opponent's hand) count with their average value.
"""

from __future__ import annotations

from collections.abc import Callable

from corral.core.sums import add_up
from corral_games.card_battle.bots.board_value import (
    CARD_POINTS,
    DEFEAT_POINTS,
    LAND_POINTS,
    creature_value,
    life_value,
)
from corral_games.card_battle.engine.board import BOARD_LIMIT
from corral_games.card_battle.engine.cards import (
    BOUND,
    CARDS,
    CHARM,
    CREATURE,
    FRIEND,
    GRANTS,
    HASTE,
    KIND,
    MARK,
    SPELL,
    TARGET,
)
from corral_games.card_battle.engine.effects import bind_effects, power_plus_toughness
from corral_games.card_battle.engine.options import can_attack
from corral_games.card_battle.engine.pieces import MAIN, Creature
from corral_games.card_battle.engine.state import State

__all__ = ["HOLD_VALUE", "card_value"]

_ValueFunction = Callable[..., float]

_CHARM_TURNS = 3.0
"""The number of turns for which the upkeep effects of a charm are counted."""


def card_value(state: State, seat: int, card: int, target: Creature | None) -> float:
    """Return the points that ``seat`` gains if a card resolves; ``target`` is None for the opponent or no target."""
    points = 0.0
    kind = KIND[card]
    if kind == CREATURE:
        points = _entering_creature_value(state, seat, card)
    elif kind == MARK:
        assert target is not None
        points = _change_value(target, *GRANTS[card])
        if target.seat != seat:
            points = -points
    elif kind == CHARM:
        points = _charm_value(state, seat, card)
    for value_function, numbers in _EFFECTS[card]:
        points += value_function(state, seat, target, *numbers)
    return points


def _entering_creature_value(state: State, seat: int, card: int) -> float:
    """Return the value of a creature that enters now, with what its side's charms grant."""
    power, toughness, keywords = state.sides[seat].grants
    data = CARDS[card]
    power += data.power
    points = creature_value(power, toughness + data.toughness, keywords | data.keywords)
    if data.keywords & HASTE and state.active == seat and state.phase == MAIN:
        points += 0.15 * power
    return points


def _charm_value(state: State, seat: int, card: int) -> float:
    """Return the value of a charm: what it grants to the creatures on the board, and a few turns of its upkeep."""
    power, toughness, keywords = GRANTS[card]
    points = 0.0
    if power or toughness or keywords:
        points += 0.8
        for creature in state.sides[seat].creatures:
            points += _change_value(creature, power, toughness, keywords)
    for value_function, numbers in _UPKEEP_EFFECTS[card]:
        points += _CHARM_TURNS * value_function(state, seat, None, *numbers)
    return points


def _value(creature: Creature) -> float:
    return creature_value(creature.power, creature.toughness, creature.keywords)


def _change_value(creature: Creature, power: int, toughness: int, keywords: int) -> float:
    """Return by how much permanent changes increase the value of a creature; minus its value if they kill it."""
    before = _value(creature)
    if creature.toughness + toughness <= creature.damage:
        return -before
    return creature_value(creature.power + power, creature.toughness + toughness, creature.keywords | keywords) - before


def _killed_value(creatures: list[Creature], amount: int) -> float:
    """Return the value of the creatures that ``amount`` damage to each would kill."""
    points = 0.0
    for creature in creatures:
        if creature.damage + amount >= creature.toughness:
            points += _value(creature)
    return points


def _damage(state: State, seat: int, creature: Creature | None, amount: int) -> float:
    if creature is None:
        return _damage_face(state, seat, None, amount)
    return _value(creature) if creature.damage + amount >= creature.toughness else 0.0


def _damage_face(state: State, seat: int, _: Creature | None, amount: int) -> float:
    life = state.sides[1 - seat].life
    return life_value(life) - life_value(life - amount)


def _damage_foes(state: State, seat: int, _: Creature | None, amount: int) -> float:
    return _killed_value(state.sides[1 - seat].creatures, amount)


def _damage_all(state: State, seat: int, _: Creature | None, amount: int) -> float:
    return _killed_value(state.sides[1 - seat].creatures, amount) - _killed_value(state.sides[seat].creatures, amount)


def _destroy(_state: State, _seat: int, creature: Creature | None) -> float:
    return 0.0 if creature is None else _value(creature)


def _edict(state: State, seat: int, _: Creature | None) -> float:
    foes = state.sides[1 - seat].creatures
    return _value(min(foes, key=power_plus_toughness)) if foes else 0.0


def _bounce(_state: State, _seat: int, creature: Creature | None) -> float:
    if creature is None:
        return 0.0
    return _value(creature) * (1.0 if CARDS[creature.card].token or creature.marks else 0.4)


def _tap(state: State, _seat: int, creature: Creature | None) -> float:
    if creature is None or creature.tapped or creature.keywords & BOUND or state.phase != MAIN:
        return 0.0
    return 0.2 * _value(creature)


def _tap_all(state: State, seat: int, _: Creature | None) -> float:
    """Count the damage of all possible attackers, which the opponent could not block."""
    foes = [creature for creature in state.sides[1 - seat].creatures if not creature.tapped]
    power = sum(creature.power for creature in state.sides[seat].creatures if can_attack(creature))
    return 0.7 * _damage_face(state, seat, None, power) if foes else 0.0


def _boost(state: State, seat: int, creature: Creature | None, _power: int, toughness: int, _keywords: int) -> float:
    """Count an opponent's creature that dies of it, or a creature saved from the spell on top of the stack.

    ``action_value`` scores what a boost changes in combat.
    """
    if creature is None:
        return 0.0
    if creature.seat != seat:
        return _value(creature) if creature.damage >= creature.toughness + toughness else 0.0
    if not state.stack or state.stack[-1].target != creature.uid:
        return 0.0
    spell = state.stack[-1]
    for value_function, numbers in _EFFECTS[spell.card]:
        if value_function is _damage:
            damage = creature.damage + numbers[0]
        elif value_function is _boost:
            damage = creature.damage - numbers[1]
        else:
            continue
        if creature.toughness <= damage < creature.toughness + toughness:
            return _value(creature)
    return 0.0


def _boost_all(state: State, seat: int, _: Creature | None, power: int, _toughness: int, _keywords: int) -> float:
    """Count the damage of possible attackers if each untapped creature of the opponent blocks one of the strongest."""
    powers = sorted(creature.power + power for creature in state.sides[seat].creatures if can_attack(creature))
    n_blockers = sum(not creature.tapped for creature in state.sides[1 - seat].creatures)
    unblocked = sum(powers[: max(len(powers) - n_blockers, 0)])
    return 0.5 * power * len(powers) + _damage_face(state, seat, None, unblocked) if powers else 0.0


def _grow(_state: State, _seat: int, creature: Creature | None, number: int) -> float:
    return 0.0 if creature is None else _change_value(creature, number, number, 0)


def _grow_all(state: State, seat: int, _: Creature | None, number: int) -> float:
    return add_up([_change_value(creature, number, number, 0) for creature in state.sides[seat].creatures])


def _bite(state: State, seat: int, creature: Creature | None) -> float:
    friends = state.sides[seat].creatures
    if creature is None or not friends:
        return 0.0
    power = max([friend.power for friend in friends])
    return _value(creature) if creature.damage + power >= creature.toughness else 0.0


def _token(state: State, seat: int, _: Creature | None, card: int, number: int) -> float:
    room = BOARD_LIMIT - len(state.sides[seat].creatures)
    return _entering_creature_value(state, seat, card) * min(number, room)


def _draw(state: State, seat: int, _: Creature | None, number: int) -> float:
    return CARD_POINTS * number if len(state.sides[seat].library) > number else DEFEAT_POINTS


def _discard(state: State, seat: int, _: Creature | None, number: int) -> float:
    return CARD_POINTS * min(number, len(state.sides[1 - seat].hand))


def _gain(state: State, seat: int, _: Creature | None, amount: int) -> float:
    life = state.sides[seat].life
    return life_value(life + amount) - life_value(life)


def _lose(state: State, seat: int, _: Creature | None, amount: int) -> float:
    return _gain(state, seat, None, -amount)


def _drain(state: State, seat: int, _: Creature | None, amount: int) -> float:
    return _damage_face(state, seat, None, amount) + _gain(state, seat, None, amount)


def _land(state: State, seat: int, _: Creature | None, number: int) -> float:
    lands = sum(state.sides[seat].lands)
    return add_up(LAND_POINTS[min(lands + i, len(LAND_POINTS) - 1)] for i in range(number))


def _recall(state: State, seat: int, _: Creature | None, number: int) -> float:
    return CARD_POINTS * min(sum(KIND[card] == CREATURE for card in state.sides[seat].graveyard), number)


def _revive(state: State, seat: int, _: Creature | None) -> float:
    creatures = [card for card in state.sides[seat].graveyard if KIND[card] == CREATURE]
    return _entering_creature_value(state, seat, max(creatures)) if creatures else 0.0


def _counter(state: State, _seat: int, _: Creature | None) -> float:
    """Return the value of the topmost spell that is not itself a counterspell."""
    for spell in reversed(state.stack):
        if TARGET[spell.card] != SPELL:
            target = state.find(spell.target) if spell.target > 0 else None
            has_target = target is not None or spell.target <= 0
            return card_value(state, spell.seat, spell.card, target) if has_target else 0.0
    return 0.0


def _disenchant(state: State, seat: int, _: Creature | None) -> float:
    charms = state.sides[1 - seat].charms
    return _charm_value(state, 1 - seat, charms[-1]) if charms else 0.0


_VALUE_FUNCTIONS: dict[str, _ValueFunction] = {
    "bite": _bite,
    "boost": _boost,
    "boost_all": _boost_all,
    "bounce": _bounce,
    "counter": _counter,
    "damage": _damage,
    "damage_all": _damage_all,
    "damage_face": _damage_face,
    "damage_foes": _damage_foes,
    "destroy": _destroy,
    "discard": _discard,
    "disenchant": _disenchant,
    "drain": _drain,
    "draw": _draw,
    "edict": _edict,
    "exile": _destroy,
    "gain": _gain,
    "grow": _grow,
    "grow_all": _grow_all,
    "land": _land,
    "lose": _lose,
    "recall": _recall,
    "revive": _revive,
    "tap": _tap,
    "tap_all": _tap_all,
    "token": _token,
}

_HOLD_POINTS = {
    "bite": (1.5, 0.0),
    "boost": (0.0, 0.5),
    "boost_all": (0.0, 1.0),
    "bounce": (0.8, 0.0),
    "counter": (2.2, 0.0),
    "damage": (0.4, 0.5),
    "damage_all": (2.0, 0.3),
    "destroy": (2.4, 0.0),
    "edict": (1.5, 0.0),
    "exile": (2.4, 0.0),
    "revive": (3.0, 0.0),
    "tap_all": (1.5, 0.0),
}
"""By effect, the value of holding a spell with that effect for later: points, and points times its first number."""


def _hold_value(card: int) -> float:
    """Return the value of holding a card for a better moment."""
    data = CARDS[card]
    if data.kind == MARK:
        return 1.0 if data.target == FRIEND else 2.0
    if data.kind in (CREATURE, CHARM):
        return 0.0
    points = 0.0
    for name, *numbers in data.effects:
        base, per_number = _HOLD_POINTS.get(str(name), (0.0, 0.0))
        points += base + (per_number * abs(int(numbers[0])) if per_number else 0.0)
    return points


_EFFECTS = tuple(bind_effects(card.effects, _VALUE_FUNCTIONS) for card in CARDS)
_UPKEEP_EFFECTS = tuple(bind_effects(card.upkeep, _VALUE_FUNCTIONS) for card in CARDS)
HOLD_VALUE = tuple(_hold_value(card) for card in range(len(CARDS)))
"""The value of holding each card, by card number: it is cast only if its ``card_value`` is higher."""
