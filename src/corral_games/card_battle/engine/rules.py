"""Playing a duel: a turn from top to bottom, and what follows from an action, up to the next real decision.

A turn: untap; charms act; draw (not in the very first turn); **main**: one land, spells; **attack**: attackers one
after the other; **block**: likewise; **fight**: instants, the attacking player first, until both pass in a row; damage;
discard down to seven (the costliest, automatically); damage and boosts end.

The stack: a spell waits until the other player does not answer it. The answer, an instant, goes on top and may itself
be answered by the first player, and so on; whoever passes lets the spell on top happen. A spell whose target is gone
does nothing (a creature still comes).

Forced moves are played at once, without a trace: who cannot answer is not asked, and nobody sees that.

Mana is paid automatically: the colours that the card asks for, and then, for the rest, each time the colour of which
the most is to spare, counting what the other cards in the hand ask for.
"""

from __future__ import annotations

import random

from corral_games.card_battle.engine.board import attach, draw, enter, gather_grants, refresh, tell
from corral_games.card_battle.engine.cards import (
    CARDS,
    CHARM,
    COLOURS,
    CREATURE,
    FOE,
    FRIEND,
    GENERIC,
    KIND,
    MARK,
    PIPS,
    SPELL,
    VIGILANCE,
)
from corral_games.card_battle.engine.combat import deal_damage
from corral_games.card_battle.engine.decks import DECK_NAMES, DECKS, RANDOM_DECK
from corral_games.card_battle.engine.effects import EFFECTS, UPKEEPS, bury, perform, settle
from corral_games.card_battle.engine.options import list_options
from corral_games.card_battle.engine.pieces import (
    ATTACK,
    BLOCKING,
    CAST,
    FIGHTING,
    LAND,
    MAIN,
    NO_BOOST,
    PASS,
    PHASE_NAMES,
    RAIDING,
    Action,
    Side,
    Spell,
)
from corral_games.card_battle.engine.state import State
from corral_games.card_battle.engine.wording import describe

__all__ = ["Duel", "describe", "new_duel"]

OPENING_HAND = 7
HAND_LIMIT = 7


class Duel(State):
    """A duel that can be played. ``clone``, ``determinized``, ``get_state`` and so on are those of ``State``."""

    __slots__ = ()

    def legal(self) -> list[Action]:
        """List what ``to_act`` may do, in canonical order; never empty while the duel goes on. Not to be changed."""
        if self.options is None:
            self.options = list_options(self)
        return self.options

    def apply(self, action: Action) -> None:
        """Play one legal action, and whatever is forced after it, up to the next decision or the end."""
        if action not in self.legal():
            where = "after the end" if self.winner is not None else f"in the {PHASE_NAMES[self.phase]} phase"
            raise ValueError(f"{action!r} is not legal for player {self.to_act} {where}; choose one of legal()")
        _play(self, action)
        _advance(self)


def new_duel(decks: tuple[str, str], seed: int) -> Duel:
    """Shuffle, draw seven cards each, and go to the first decision. Everything follows from ``seed``.

    Opening hands are smoothed: each deck is shuffled twice, and the order kept whose first seven cards have the number
    of lands that is nearer to the deck's average; there is no mulligan. Player 0 begins and does not draw in turn 1.
    """
    rng = random.Random(seed)
    first, second = (_choose_deck(name, rng) for name in decks)
    duel = Duel((first, second))
    for side, deck in zip(duel.sides, (first, second), strict=True):
        side.library = _smooth_shuffle(DECKS[DECK_NAMES[deck]], rng)
    duel.chance = rng.getrandbits(31)
    for seat in (0, 1):
        draw(duel, seat, OPENING_HAND)
    _advance(duel)
    return duel


def _choose_deck(name: str, rng: random.Random) -> int:
    if name == RANDOM_DECK:
        return rng.randrange(len(DECK_NAMES))
    if name not in DECKS:
        raise ValueError(f"unknown deck {name!r}; there are: {', '.join(DECK_NAMES)}, or {RANDOM_DECK}")
    return DECK_NAMES.index(name)


def _smooth_shuffle(deck: tuple[int, ...], rng: random.Random) -> list[int]:
    """Shuffle twice, and keep the order with the better opening hand."""
    orders = [list(deck), list(deck)]
    for order in orders:
        rng.shuffle(order)
    average = OPENING_HAND * sum(card < len(COLOURS) for card in deck) / len(deck)
    return min(orders, key=lambda order: abs(sum(card < len(COLOURS) for card in order[-OPENING_HAND:]) - average))


def _advance(state: State) -> None:
    """Play what is forced, up to a decision with more than one option, or the end."""
    options = list_options(state)
    while len(options) == 1:
        _play(state, options[0])
        options = list_options(state)
    state.options = options


def _play(state: State, action: Action) -> None:
    """Carry out one action."""
    kind, subject, target = action
    if kind == PASS:
        _pass(state)
        return
    if state.log is not None:
        tell(state, state.to_act, describe(state, action))
    if kind == CAST:
        _cast(state, subject, target)
    elif kind == LAND:
        side = state.sides[state.to_act]
        side.hand.remove(subject)
        side.lands[subject] += 1
        side.untapped[subject] += 1
        side.land_played = True
    elif kind == ATTACK:
        attacker = state.find(subject)
        assert attacker is not None
        attacker.attacking = True
        attacker.tapped = not attacker.keywords & VIGILANCE
    else:
        blocker, attacker = state.find(subject), state.find(target)
        assert blocker is not None
        assert attacker is not None
        blocker.blocking = target
        attacker.blocked += 1


def _pass(state: State) -> None:
    """Let the spell on top of the stack happen, or go on to the next phase."""
    active, phase = state.active, state.phase
    if state.stack:
        _resolve(state, state.stack.pop())
        state.passed = False
        state.to_act = 1 - state.stack[-1].seat if state.stack else active
    elif phase == MAIN:
        state.phase = RAIDING
    elif phase == RAIDING:
        for creature in state.sides[active].creatures:
            if creature.attacking:
                state.phase = BLOCKING
                state.to_act = 1 - active
                return
        _end_turn(state)
    elif phase == BLOCKING:
        state.phase = FIGHTING
        state.to_act = active
    elif not state.passed:
        state.passed = True
        state.to_act = 1 - active
    else:
        deal_damage(state)
        if state.winner is None:
            _end_turn(state)


def _cast(state: State, card: int, target: int) -> None:
    """Pay for a spell, put it on the stack, and let the other player answer."""
    seat = state.to_act
    side = state.sides[seat]
    side.hand.remove(card)
    _pay(side, card)
    state.stack.append(Spell(state.new_uid(seat), card, seat, target))
    state.to_act = 1 - seat


def _pay(side: Side, card: int) -> None:
    """Tap lands for a card that has just left the hand."""
    untapped = side.untapped
    for colour, number in PIPS[card]:
        untapped[colour] -= number
    generic = GENERIC[card]
    if not generic:
        return
    spare = untapped[:]
    for other in side.hand:
        for colour, number in PIPS[other]:
            spare[colour] -= number
    for _ in range(generic):
        most = -1000
        for colour in range(5):
            if untapped[colour] and spare[colour] > most:
                most, best = spare[colour], colour
        untapped[best] -= 1
        spare[best] -= 1


def _resolve(state: State, spell: Spell) -> None:
    """Let a spell happen."""
    _, card, seat, target = spell
    side = state.sides[seat]
    kind = KIND[card]
    creature = state.find(target) if target > 0 else None
    fizzles = target > 0 and creature is None and CARDS[card].target != SPELL
    if kind == CREATURE:
        enter(state, seat, card)
    elif kind == CHARM:
        side.charms.append(card)
        gather_grants(state, seat)
    elif kind == MARK and not fizzles:
        assert creature is not None
        attach(state, creature, card)
    else:
        side.graveyard.append(card)
    if fizzles:
        tell(state, seat, f"{CARDS[card].name} has lost its target")
    elif target or CARDS[card].target not in (FOE, FRIEND):  # a creature may come without finding one
        perform(state, seat, creature, EFFECTS[card])


def _end_turn(state: State) -> None:
    """Discard down to seven, let damage and boosts end, and begin the other player's turn."""
    hand = state.sides[state.active].hand
    while len(hand) > HAND_LIMIT:
        card = hand.pop()
        state.sides[state.active].graveyard.append(card)
        tell(state, state.active, f"discards {CARDS[card].name}")
    for side in state.sides:
        for creature in side.creatures:
            creature.damage = creature.blocked = creature.blocking = 0
            creature.attacking = False
            if creature.boost is not NO_BOOST:
                creature.boost = NO_BOOST
                refresh(state, creature)
    bury(state)  # whom only a boost kept alive
    settle(state)
    if state.winner is not None:
        return
    state.turn += 1
    state.active = state.to_act = 1 - state.active
    state.phase = MAIN
    state.passed = False
    _begin_turn(state, state.active)


def _begin_turn(state: State, seat: int) -> None:
    """Untap, let charms act, and draw."""
    side = state.sides[seat]
    tell(state, seat, f"turn {state.turn}")
    side.untapped = side.lands[:]
    side.land_played = False
    for creature in side.creatures:
        creature.tapped = creature.sick = False
    for charm in side.charms[:]:
        if UPKEEPS[charm]:
            perform(state, seat, None, UPKEEPS[charm])
    if state.winner is None:
        draw(state, seat, 1)
