"""What cards do: one function for each word that a card in ``cards`` may use.

An effect is called with the duel, the seat that it works for, the creature that it is aimed at (None: the other
player, or nothing at all), and its numbers. ``perform`` calls those of a card and then takes the dead off the board.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from corral_games.card_battle.engine.board import BOARD_LIMIT, draw, enter, gather_grants, leave, refresh, strike, tell
from corral_games.card_battle.engine.cards import CARD_NUMBERS, CARDS, CREATURE, TERRAIN, Effect, keyword_bits
from corral_games.card_battle.engine.pieces import Creature
from corral_games.card_battle.engine.state import State

__all__ = ["EFFECTS", "UPKEEPS", "bury", "perform", "prepare", "settle", "size"]

Performer = Callable[..., None]
Function = TypeVar("Function", bound=Callable[..., Any])
Numbers = tuple[int, ...]
Prepared = tuple[tuple[Performer, Numbers], ...]
"""Effects with their words replaced by functions and numbers."""


def bury(state: State) -> None:
    """Take dead creatures off the board, all at once, and let their last effects happen, until nothing more dies."""
    sides = state.sides
    while True:
        dead = [creature for side in sides for creature in side.creatures if creature.damage >= creature.toughness]
        if not dead:
            return
        if state.active:
            dead.sort(key=_second_seat_first)
        for creature in dead:
            leave(state, creature, sides[creature.seat].graveyard)
        for creature in dead:
            if state.log is not None:
                state.log.append(f"{creature.seat}: {CARDS[creature.card].name} dies")
            for performer, numbers in _DEATHS[creature.card]:
                performer(state, creature.seat, None, *numbers)


def _second_seat_first(creature: Creature) -> bool:
    return not creature.seat


def settle(state: State) -> None:
    """End the duel if a player has no life left; if both have none, it is a draw."""
    if state.winner is None:
        first, second = state.sides[0].life <= 0, state.sides[1].life <= 0
        if first or second:
            state.winner = 2 if first and second else int(first)


def perform(state: State, seat: int, creature: Creature | None, effects: Prepared) -> None:
    """Let several effects happen in order, and then take off what died."""
    for performer, numbers in effects:
        performer(state, seat, creature, *numbers)
    bury(state)
    settle(state)


def _damage(state: State, seat: int, creature: Creature | None, amount: int) -> None:
    """Damage to the target: a creature, or the other player."""
    if creature is None:
        _damage_face(state, seat, None, amount)
    else:
        creature.damage += amount


def _damage_face(state: State, seat: int, _: Creature | None, amount: int) -> None:
    """Damage to the other player."""
    state.sides[1 - seat].life -= amount
    tell(state, 1 - seat, f"loses {amount} life")


def _damage_foes(state: State, seat: int, _: Creature | None, amount: int) -> None:
    """Damage to each creature of the other side."""
    for creature in state.sides[1 - seat].creatures:
        creature.damage += amount


def _damage_all(state: State, _seat: int, _: Creature | None, amount: int) -> None:
    """Damage to every creature."""
    for side in state.sides:
        for creature in side.creatures:
            creature.damage += amount


def _destroy(_state: State, _seat: int, creature: Creature | None) -> None:
    """The target dies."""
    if creature is not None:
        creature.damage = max(creature.damage, creature.toughness)


def _edict(state: State, seat: int, _: Creature | None) -> None:
    """The other side's weakest creature (power + toughness; of equals the oldest) dies."""
    foes = state.sides[1 - seat].creatures
    if foes:
        _destroy(state, seat, min(foes, key=size))


def size(creature: Creature) -> int:
    """What decides which creature is the smallest."""
    return creature.power + creature.toughness


def _exile(state: State, _seat: int, creature: Creature | None) -> None:
    """The target leaves the game."""
    if creature is not None:
        leave(state, creature, state.sides[creature.seat].exile)


def _bounce(state: State, _seat: int, creature: Creature | None) -> None:
    """The target goes back to its owner's hand."""
    if creature is not None:
        hand = state.sides[creature.seat].hand
        leave(state, creature, hand)
        hand.sort()


def _tap(_state: State, _seat: int, creature: Creature | None) -> None:
    """The target is tapped."""
    if creature is not None:
        creature.tapped = True


def _tap_all(state: State, seat: int, _: Creature | None) -> None:
    """The other side's creatures are tapped."""
    for creature in state.sides[1 - seat].creatures:
        creature.tapped = True


def _boost(state: State, _seat: int, creature: Creature | None, power: int, toughness: int, keywords: int) -> None:
    """The target has more power, toughness and keywords (or less) until the end of the turn."""
    if creature is not None:
        old_power, old_toughness, old_keywords = creature.boost
        creature.boost = (old_power + power, old_toughness + toughness, old_keywords | keywords)
        refresh(state, creature)


def _boost_all(state: State, seat: int, _: Creature | None, power: int, toughness: int, keywords: int) -> None:
    """The same for all of one's creatures."""
    for creature in state.sides[seat].creatures:
        _boost(state, seat, creature, power, toughness, keywords)


def _grow(state: State, _seat: int, creature: Creature | None, number: int) -> None:
    """The target has that many +1/+1 more, for good."""
    if creature is not None:
        creature.counters += number
        refresh(state, creature)


def _grow_all(state: State, seat: int, _: Creature | None, number: int) -> None:
    """The same for all of one's creatures."""
    for creature in state.sides[seat].creatures:
        _grow(state, seat, creature, number)


def _bite(state: State, seat: int, creature: Creature | None) -> None:
    """One's strongest creature (of equals the oldest) deals its power to the target."""
    friends = state.sides[seat].creatures
    if creature is not None and friends:
        hunter = max(friends, key=_power)
        if hunter.power > 0:
            strike(state, hunter, creature, hunter.power)


def _power(creature: Creature) -> int:
    return creature.power


def _token(state: State, seat: int, _: Creature | None, card: int, number: int) -> None:
    """Tokens come to the board."""
    for _again in range(number):
        enter(state, seat, card)


def _draw(state: State, seat: int, _: Creature | None, number: int) -> None:
    """Draw cards."""
    tell(state, seat, f"draws {number}")
    draw(state, seat, number)


def _discard(state: State, seat: int, _: Creature | None, number: int) -> None:
    """The other player discards cards at random."""
    other = state.sides[1 - seat]
    for _again in range(min(number, len(other.hand))):
        state.chance = (state.chance * 1103515245 + 12345) & 0x7FFFFFFF
        card = other.hand.pop((state.chance >> 8) % len(other.hand))
        other.graveyard.append(card)
        tell(state, 1 - seat, f"discards {CARDS[card].name}")


def _gain(state: State, seat: int, _: Creature | None, amount: int) -> None:
    """Gain life."""
    state.sides[seat].life += amount
    tell(state, seat, f"gains {amount} life")


def _lose(state: State, seat: int, _: Creature | None, amount: int) -> None:
    """Lose life."""
    state.sides[seat].life -= amount
    tell(state, seat, f"loses {amount} life")


def _drain(state: State, seat: int, _: Creature | None, amount: int) -> None:
    """The other player's life becomes one's own."""
    _damage_face(state, seat, None, amount)
    _gain(state, seat, None, amount)


def _land(state: State, seat: int, _: Creature | None, number: int) -> None:
    """The topmost lands of one's library come to the board, tapped; the rest stays in its order."""
    side = state.sides[seat]
    for _again in range(number):
        for place in range(len(side.library) - 1, -1, -1):
            if CARDS[side.library[place]].kind == TERRAIN:
                card = side.library.pop(place)
                side.lands[card] += 1
                tell(state, seat, f"finds {CARDS[card].name}")
                break


def _recall(state: State, seat: int, _: Creature | None, number: int) -> None:
    """One's costliest creature cards go from the graveyard back to the hand."""
    side = state.sides[seat]
    for _again in range(number):
        card = _costliest_creature(side.graveyard)
        if card is not None:
            side.graveyard.remove(card)
            insort(side.hand, card)
            tell(state, seat, f"takes {CARDS[card].name} back to the hand")


def _revive(state: State, seat: int, _: Creature | None) -> None:
    """One's costliest creature card goes from the graveyard to the board, if there is room."""
    side = state.sides[seat]
    card = _costliest_creature(side.graveyard)
    if card is not None and len(side.creatures) < BOARD_LIMIT:
        side.graveyard.remove(card)
        enter(state, seat, card)
        tell(state, seat, f"brings {CARDS[card].name} back to the board")


def _costliest_creature(cards: list[int]) -> int | None:
    """Find the costliest; card numbers go up with the cost."""
    return max((card for card in cards if CARDS[card].kind == CREATURE), default=None)


def _counter(state: State, _seat: int, _: Creature | None) -> None:
    """The spell below this one on the stack goes to its owner's graveyard."""
    spell = state.stack.pop()
    state.sides[spell.seat].graveyard.append(spell.card)
    tell(state, spell.seat, f"{CARDS[spell.card].name} is countered")


def _disenchant(state: State, seat: int, _: Creature | None) -> None:
    """The other side's newest charm goes to the graveyard."""
    other = state.sides[1 - seat]
    if other.charms:
        card = other.charms.pop()
        other.graveyard.append(card)
        gather_grants(state, 1 - seat)
        tell(state, 1 - seat, f"{CARDS[card].name} is destroyed")


_WORDS: dict[str, Performer] = {
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


def prepare(effects: tuple[Effect, ...], words: Mapping[str, Function]) -> tuple[tuple[Function, Numbers], ...]:
    """Replace the words of a card by functions, and names of tokens and keywords by numbers, once."""
    prepared = []
    for word, *rest in effects:
        number = CARD_NUMBERS.__getitem__ if word == "token" else keyword_bits
        numbers = tuple(number(part) if isinstance(part, str) else part for part in rest)
        prepared.append((words[str(word)], numbers))
    return tuple(prepared)


EFFECTS = tuple(prepare(card.effects, _WORDS) for card in CARDS)
_DEATHS = tuple(prepare(card.death, _WORDS) for card in CARDS)
UPKEEPS = tuple(prepare(card.upkeep, _WORDS) for card in CARDS)
