"""What cards do: one function for each effect that a card in ``cards`` can name.

An effect function takes the duel, the seat of the player whose effect it is, the creature that is targeted (None if the
target is the opponent, or if there is none) and the numbers of the effect. ``apply_effects`` calls the functions of a
card and then removes dead creatures from the board.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from corral_games.card_battle.engine.board import (
    BOARD_LIMIT,
    damage_creature,
    draw,
    enter,
    leave,
    recompute_stats,
    update_grants,
    write_log,
)
from corral_games.card_battle.engine.cards import CARD_NUMBERS, CARDS, CREATURE, TERRAIN, Effect, keyword_bits
from corral_games.card_battle.engine.pieces import Creature
from corral_games.card_battle.engine.state import State

__all__ = [
    "EFFECTS",
    "UPKEEP_EFFECTS",
    "apply_effects",
    "bind_effects",
    "check_winner",
    "power_plus_toughness",
    "remove_dead_creatures",
]

_EffectFunction = Callable[..., None]
_Function = TypeVar("_Function", bound=Callable[..., Any])
_BoundEffects = tuple[tuple[_EffectFunction, tuple[int, ...]], ...]
"""The effects of a card as functions and their numbers."""


def apply_effects(state: State, seat: int, target: Creature | None, effects: _BoundEffects) -> None:
    """Apply effects in order, then remove dead creatures and check whether the duel is over."""
    for function, numbers in effects:
        function(state, seat, target, *numbers)
    remove_dead_creatures(state)
    check_winner(state)


def remove_dead_creatures(state: State) -> None:
    """Remove dead creatures from the board, all at once, and apply their death effects, until nothing more dies.

    The active player's creatures come first.
    """
    sides = state.sides
    while True:
        dead = [creature for side in sides for creature in side.creatures if creature.damage >= creature.toughness]
        if not dead:
            return
        if state.active:
            dead.sort(key=_seat_1_first)
        for creature in dead:
            leave(state, creature, sides[creature.seat].graveyard)
        for creature in dead:
            if state.log is not None:  # most duels have no log, and need no text
                write_log(state, creature.seat, f"{CARDS[creature.card].name} dies")
            for function, numbers in _DEATH_EFFECTS[creature.card]:
                function(state, creature.seat, None, *numbers)


def _seat_1_first(creature: Creature) -> bool:
    return not creature.seat


def check_winner(state: State) -> None:
    """End the duel if a player has no life left; if neither has, it is a draw."""
    if state.winner is None:
        first, second = state.sides[0].life <= 0, state.sides[1].life <= 0
        if first or second:
            state.winner = 2 if first and second else int(first)


def _damage(state: State, seat: int, creature: Creature | None, amount: int) -> None:
    """Deal damage to the target: a creature, or the opponent."""
    if creature is None:
        _damage_face(state, seat, None, amount)
    else:
        creature.damage += amount


def _damage_face(state: State, seat: int, _: Creature | None, amount: int) -> None:
    """Deal damage to the opponent."""
    state.sides[1 - seat].life -= amount
    write_log(state, 1 - seat, f"loses {amount} life")


def _damage_foes(state: State, seat: int, _: Creature | None, amount: int) -> None:
    """Deal damage to each creature of the opponent."""
    for creature in state.sides[1 - seat].creatures:
        creature.damage += amount


def _damage_all(state: State, _seat: int, _: Creature | None, amount: int) -> None:
    """Deal damage to every creature of both players."""
    for side in state.sides:
        for creature in side.creatures:
            creature.damage += amount


def _destroy(_state: State, _seat: int, creature: Creature | None) -> None:
    """Destroy the target."""
    if creature is not None:
        creature.damage = max(creature.damage, creature.toughness)


def _edict(state: State, seat: int, _: Creature | None) -> None:
    """Destroy the opponent's weakest creature (least power + toughness; of equals the oldest)."""
    foes = state.sides[1 - seat].creatures
    if foes:
        _destroy(state, seat, min(foes, key=power_plus_toughness))


def power_plus_toughness(creature: Creature) -> int:
    """Return the size of a creature, by which the weakest one is found."""
    return creature.power + creature.toughness


def _exile(state: State, _seat: int, creature: Creature | None) -> None:
    """Remove the target from the game."""
    if creature is not None:
        leave(state, creature, state.sides[creature.seat].exile)


def _bounce(state: State, _seat: int, creature: Creature | None) -> None:
    """Return the target to its owner's hand."""
    if creature is not None:
        hand = state.sides[creature.seat].hand
        leave(state, creature, hand)
        hand.sort()


def _tap(_state: State, _seat: int, creature: Creature | None) -> None:
    """Tap the target."""
    if creature is not None:
        creature.tapped = True


def _tap_all(state: State, seat: int, _: Creature | None) -> None:
    """Tap all creatures of the opponent."""
    for creature in state.sides[1 - seat].creatures:
        creature.tapped = True


def _boost(state: State, _seat: int, creature: Creature | None, power: int, toughness: int, keywords: int) -> None:
    """Change the target's power and toughness and add keywords until the end of the turn."""
    if creature is not None:
        old_power, old_toughness, old_keywords = creature.boost
        creature.boost = (old_power + power, old_toughness + toughness, old_keywords | keywords)
        recompute_stats(state, creature)


def _boost_all(state: State, seat: int, _: Creature | None, power: int, toughness: int, keywords: int) -> None:
    """Boost all creatures of ``seat`` until the end of the turn."""
    for creature in state.sides[seat].creatures:
        _boost(state, seat, creature, power, toughness, keywords)


def _grow(state: State, _seat: int, creature: Creature | None, number: int) -> None:
    """Put ``number`` permanent +1/+1 counters on the target."""
    if creature is not None:
        creature.counters += number
        recompute_stats(state, creature)


def _grow_all(state: State, seat: int, _: Creature | None, number: int) -> None:
    """Put ``number`` permanent +1/+1 counters on each creature of ``seat``."""
    for creature in state.sides[seat].creatures:
        _grow(state, seat, creature, number)


def _bite(state: State, seat: int, creature: Creature | None) -> None:
    """Let the creature of ``seat`` with the most power (of equals the oldest) deal it to the target as damage."""
    friends = state.sides[seat].creatures
    if creature is not None and friends:
        strongest = max(friends, key=_power)
        if strongest.power > 0:
            damage_creature(state, strongest, creature, strongest.power)


def _power(creature: Creature) -> int:
    return creature.power


def _token(state: State, seat: int, _: Creature | None, card: int, number: int) -> None:
    """Create ``number`` tokens."""
    for _i in range(number):
        enter(state, seat, card)


def _draw(state: State, seat: int, _: Creature | None, number: int) -> None:
    """Draw ``number`` cards."""
    write_log(state, seat, f"draws {number}")
    draw(state, seat, number)


def _discard(state: State, seat: int, _: Creature | None, number: int) -> None:
    """Let the opponent discard ``number`` cards, drawn with the linear congruential generator of the duel."""
    foe = state.sides[1 - seat]
    for _i in range(min(number, len(foe.hand))):
        state.rng_state = (state.rng_state * 1103515245 + 12345) & 0x7FFFFFFF
        card = foe.hand.pop((state.rng_state >> 8) % len(foe.hand))
        foe.graveyard.append(card)
        write_log(state, 1 - seat, f"discards {CARDS[card].name}")


def _gain(state: State, seat: int, _: Creature | None, amount: int) -> None:
    """Add life to ``seat``."""
    state.sides[seat].life += amount
    write_log(state, seat, f"gains {amount} life")


def _lose(state: State, seat: int, _: Creature | None, amount: int) -> None:
    """Take life from ``seat``."""
    state.sides[seat].life -= amount
    write_log(state, seat, f"loses {amount} life")


def _drain(state: State, seat: int, _: Creature | None, amount: int) -> None:
    """Take life from the opponent and add as much to ``seat``."""
    _damage_face(state, seat, None, amount)
    _gain(state, seat, None, amount)


def _land(state: State, seat: int, _: Creature | None, number: int) -> None:
    """Put the topmost ``number`` lands of the library on the board, tapped; the other cards keep their order."""
    side = state.sides[seat]
    for _i in range(number):
        for i in range(len(side.library) - 1, -1, -1):
            if CARDS[side.library[i]].kind == TERRAIN:
                card = side.library.pop(i)
                side.lands[card] += 1
                write_log(state, seat, f"finds {CARDS[card].name}")
                break


def _recall(state: State, seat: int, _: Creature | None, number: int) -> None:
    """Return the ``number`` costliest creature cards from the graveyard to the hand."""
    side = state.sides[seat]
    for _i in range(number):
        card = _costliest_creature(side.graveyard)
        if card is not None:
            side.graveyard.remove(card)
            insort(side.hand, card)
            write_log(state, seat, f"takes {CARDS[card].name} back to the hand")


def _revive(state: State, seat: int, _: Creature | None) -> None:
    """Return the costliest creature card from the graveyard to the board, unless the board is full."""
    side = state.sides[seat]
    card = _costliest_creature(side.graveyard)
    if card is not None and len(side.creatures) < BOARD_LIMIT:
        side.graveyard.remove(card)
        enter(state, seat, card)
        write_log(state, seat, f"brings {CARDS[card].name} back to the board")


def _costliest_creature(cards: list[int]) -> int | None:
    """Return the costliest creature card, or None; card numbers increase with the cost."""
    return max((card for card in cards if CARDS[card].kind == CREATURE), default=None)


def _counter(state: State, _seat: int, _: Creature | None) -> None:
    """Move the spell on top of the stack to its owner's graveyard; the countering spell has left the stack already."""
    spell = state.stack.pop()
    state.sides[spell.seat].graveyard.append(spell.card)
    write_log(state, spell.seat, f"{CARDS[spell.card].name} is countered")


def _disenchant(state: State, seat: int, _: Creature | None) -> None:
    """Destroy the opponent's newest charm."""
    foe = state.sides[1 - seat]
    if foe.charms:
        card = foe.charms.pop()
        foe.graveyard.append(card)
        update_grants(state, 1 - seat)
        write_log(state, 1 - seat, f"{CARDS[card].name} is destroyed")


_EFFECT_FUNCTIONS: dict[str, _EffectFunction] = {
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
    "exile": _exile,
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


def bind_effects(
    effects: tuple[Effect, ...], functions: Mapping[str, _Function]
) -> tuple[tuple[_Function, tuple[int, ...]], ...]:
    """Look up the function of each effect, and convert names of tokens and keywords among its arguments to numbers."""
    bound = []
    for name, *arguments in effects:
        number_of = CARD_NUMBERS.__getitem__ if name == "token" else keyword_bits
        numbers = tuple(number_of(argument) if isinstance(argument, str) else argument for argument in arguments)
        bound.append((functions[str(name)], numbers))
    return tuple(bound)


EFFECTS = tuple(bind_effects(card.effects, _EFFECT_FUNCTIONS) for card in CARDS)
"""The effects of each card when it resolves, by card number."""
UPKEEP_EFFECTS = tuple(bind_effects(card.upkeep, _EFFECT_FUNCTIONS) for card in CARDS)
"""The effects of each charm at the beginning of its owner's turns, by card number."""
_DEATH_EFFECTS = tuple(bind_effects(card.death, _EFFECT_FUNCTIONS) for card in CARDS)
