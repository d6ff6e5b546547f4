"""What a card would bring if it happened now, in points (see ``board_value``): one function for each word of a card.

These mirror the functions in ``effects``, but nothing happens, and what cannot be seen (the next card, the other hand)
counts as much as it does on average.
"""

from __future__ import annotations

from collections.abc import Callable

from corral.core.sums import add_up
from corral_games.card_battle.bots.board_value import CARD, DEFEAT, LAND, judge_life, worth
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
from corral_games.card_battle.engine.effects import prepare, size
from corral_games.card_battle.engine.options import can_attack
from corral_games.card_battle.engine.pieces import MAIN, Creature
from corral_games.card_battle.engine.state import State

__all__ = ["RESERVE", "appraise"]

_Appraiser = Callable[..., float]

_LASTING = 3.0
"""How many turns a lasting effect is thought to last."""


def appraise(state: State, seat: int, card: int, target: Creature | None) -> float:
    """Judge what a card does for ``seat`` when it happens; ``target`` None: the other player, or nothing."""
    points = 0.0
    kind = KIND[card]
    if kind == CREATURE:
        points = _appraise_creature(state, seat, card)
    elif kind == MARK:
        assert target is not None
        points = _change(target, *GRANTS[card])
        if target.seat != seat:
            points = -points
    elif kind == CHARM:
        points = _appraise_charm(state, seat, card)
    for appraiser, numbers in _EFFECTS[card]:
        points += appraiser(state, seat, target, *numbers)
    return points


def _appraise_creature(state: State, seat: int, card: int) -> float:
    power, toughness, keywords = state.sides[seat].grants
    data = CARDS[card]
    power += data.power
    points = worth(power, toughness + data.toughness, keywords | data.keywords)
    if data.keywords & HASTE and state.active == seat and state.phase == MAIN:
        points += 0.15 * power
    return points


def _appraise_charm(state: State, seat: int, card: int) -> float:
    """Judge a charm by what it gives to the creatures that are there, and by some turns of what it does."""
    power, toughness, keywords = GRANTS[card]
    points = 0.0
    if power or toughness or keywords:
        points += 0.8
        for creature in state.sides[seat].creatures:
            points += _change(creature, power, toughness, keywords)
    for appraiser, numbers in _UPKEEPS[card]:
        points += _LASTING * appraiser(state, seat, None, *numbers)
    return points


def _value(creature: Creature) -> float:
    return worth(creature.power, creature.toughness, creature.keywords)


def _change(creature: Creature, power: int, toughness: int, keywords: int) -> float:
    """Judge what a creature gains by lasting changes."""
    before = _value(creature)
    if creature.toughness + toughness <= creature.damage:
        return -before
    return worth(creature.power + power, creature.toughness + toughness, creature.keywords | keywords) - before


def _deaths(creatures: list[Creature], amount: int) -> float:
    """Judge the creatures that would die of so much damage each."""
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
    return judge_life(life) - judge_life(life - amount)


def _damage_foes(state: State, seat: int, _: Creature | None, amount: int) -> float:
    return _deaths(state.sides[1 - seat].creatures, amount)


def _damage_all(state: State, seat: int, _: Creature | None, amount: int) -> float:
    return _deaths(state.sides[1 - seat].creatures, amount) - _deaths(state.sides[seat].creatures, amount)


def _destroy(_state: State, _seat: int, creature: Creature | None) -> float:
    return 0.0 if creature is None else _value(creature)


def _edict(state: State, seat: int, _: Creature | None) -> float:
    foes = state.sides[1 - seat].creatures
    return _value(min(foes, key=size)) if foes else 0.0


def _bounce(_state: State, _seat: int, creature: Creature | None) -> float:
    if creature is None:
        return 0.0
    return _value(creature) * (1.0 if CARDS[creature.card].token or creature.marks else 0.4)


def _tap(state: State, _seat: int, creature: Creature | None) -> float:
    if creature is None or creature.tapped or creature.keywords & BOUND or state.phase != MAIN:
        return 0.0
    return 0.2 * _value(creature)


def _tap_all(state: State, seat: int, _: Creature | None) -> float:
    """Without blockers, all that can attack strikes the player."""
    foes = [creature for creature in state.sides[1 - seat].creatures if not creature.tapped]
    power = sum(creature.power for creature in state.sides[seat].creatures if can_attack(creature))
    return 0.7 * _damage_face(state, seat, None, power) if foes else 0.0


def _boost(state: State, seat: int, creature: Creature | None, _power: int, toughness: int, _keywords: int) -> float:
    """Count deaths of foes, and friends saved from the spell that is being answered; combat is judged elsewhere."""
    if creature is None:
        return 0.0
    if creature.seat != seat:
        return _value(creature) if creature.damage >= creature.toughness + toughness else 0.0
    if not state.stack or state.stack[-1].target != creature.uid:
        return 0.0
    spell = state.stack[-1]
    for appraiser, numbers in _EFFECTS[spell.card]:
        if appraiser is _damage:
            hurt = creature.damage + numbers[0]
        elif appraiser is _boost:
            hurt = creature.damage - numbers[1]
        else:
            continue
        if creature.toughness <= hurt < creature.toughness + toughness:
            return _value(creature)
    return 0.0


def _boost_all(state: State, seat: int, _: Creature | None, power: int, _toughness: int, _keywords: int) -> float:
    """Count the damage that gets past one's foes, each of which stops one attacker."""
    strikes = sorted(creature.power + power for creature in state.sides[seat].creatures if can_attack(creature))
    stopped = sum(not creature.tapped for creature in state.sides[1 - seat].creatures)
    through = sum(strikes[: max(len(strikes) - stopped, 0)])
    return 0.5 * power * len(strikes) + _damage_face(state, seat, None, through) if strikes else 0.0


def _grow(_state: State, _seat: int, creature: Creature | None, number: int) -> float:
    return 0.0 if creature is None else _change(creature, number, number, 0)


def _grow_all(state: State, seat: int, _: Creature | None, number: int) -> float:
    return add_up([_change(creature, number, number, 0) for creature in state.sides[seat].creatures])


def _bite(state: State, seat: int, creature: Creature | None) -> float:
    friends = state.sides[seat].creatures
    if creature is None or not friends:
        return 0.0
    power = max([friend.power for friend in friends])
    return _value(creature) if creature.damage + power >= creature.toughness else 0.0


def _token(state: State, seat: int, _: Creature | None, card: int, number: int) -> float:
    room = BOARD_LIMIT - len(state.sides[seat].creatures)
    return _appraise_creature(state, seat, card) * min(number, room)


def _draw(state: State, seat: int, _: Creature | None, number: int) -> float:
    return CARD * number if len(state.sides[seat].library) > number else DEFEAT


def _discard(state: State, seat: int, _: Creature | None, number: int) -> float:
    return CARD * min(number, len(state.sides[1 - seat].hand))


def _gain(state: State, seat: int, _: Creature | None, amount: int) -> float:
    life = state.sides[seat].life
    return judge_life(life + amount) - judge_life(life)


def _lose(state: State, seat: int, _: Creature | None, amount: int) -> float:
    return _gain(state, seat, None, -amount)


def _drain(state: State, seat: int, _: Creature | None, amount: int) -> float:
    return _damage_face(state, seat, None, amount) + _gain(state, seat, None, amount)


def _land(state: State, seat: int, _: Creature | None, number: int) -> float:
    lands = sum(state.sides[seat].lands)
    return add_up(LAND[min(lands + more, len(LAND) - 1)] for more in range(number))


def _recall(state: State, seat: int, _: Creature | None, number: int) -> float:
    return CARD * min(sum(KIND[card] == CREATURE for card in state.sides[seat].graveyard), number)


def _revive(state: State, seat: int, _: Creature | None) -> float:
    creatures = [card for card in state.sides[seat].graveyard if KIND[card] == CREATURE]
    return _appraise_creature(state, seat, max(creatures)) if creatures else 0.0


def _counter(state: State, _seat: int, _: Creature | None) -> float:
    """Count the spell that all of this is about, below those that counter each other."""
    for spell in reversed(state.stack):
        if TARGET[spell.card] != SPELL:
            target = state.find(spell.target) if spell.target > 0 else None
            return appraise(state, spell.seat, spell.card, target) if target is not None or spell.target <= 0 else 0.0
    return 0.0


def _disenchant(state: State, seat: int, _: Creature | None) -> float:
    charms = state.sides[1 - seat].charms
    return _appraise_charm(state, 1 - seat, charms[-1]) if charms else 0.0


_WORDS: dict[str, _Appraiser] = {
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

_KEPT = {
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
"""What it is worth to keep a spell with such a word for a better moment: points, and points for its first number."""


def _keep(card: int) -> float:
    data = CARDS[card]
    if data.kind == MARK:
        return 1.0 if data.target == FRIEND else 2.0
    if data.kind in (CREATURE, CHARM):
        return 0.0
    points = 0.0
    for word, *numbers in data.effects:
        base, more = _KEPT.get(str(word), (0.0, 0.0))
        points += base + (more * abs(int(numbers[0])) if more else 0.0)
    return points


_EFFECTS = tuple(prepare(card.effects, _WORDS) for card in CARDS)
_UPKEEPS = tuple(prepare(card.upkeep, _WORDS) for card in CARDS)
RESERVE = tuple(_keep(card) for card in range(len(CARDS)))
"""What each card is worth in the hand: it is cast only for more than this."""
