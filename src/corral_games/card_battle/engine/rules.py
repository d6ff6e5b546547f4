"""The rules of a duel: the course of a turn, and playing an action up to the next decision.

A turn: untap; charms act; draw a card (not in turn 1); **main**: one land, any number of spells; **attack**: the active
player declares attackers one by one; **block**: the opponent declares blockers one by one; **fight**: instants, the
active player first, until both have passed in succession; combat damage; discard down to seven cards (the costliest,
automatically); damage and boosts end.

The stack: when a spell is cast, the opponent may respond with an instant. The response goes on top of the stack, and
the first player may respond to it, and so on. When a player passes, the spell on top resolves. A spell whose target has
left the board has no effect (a creature still enters).

Decisions with a single legal action are played automatically. Such a pass is not logged, so that the opponent does not
learn whether the player could have responded.

Mana is paid automatically: first the colours that the card requires; then, for each generic mana, the colour with the
largest surplus over what the other cards in the hand require.
"""

from __future__ import annotations

import random

from corral_games.card_battle.engine.board import attach, draw, enter, recompute_stats, update_grants, write_log
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
from corral_games.card_battle.engine.effects import (
    EFFECTS,
    UPKEEP_EFFECTS,
    apply_effects,
    check_winner,
    remove_dead_creatures,
)
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
"""Cards that each player draws before the first turn."""
HAND_LIMIT = 7
"""Cards that a player can keep in hand at the end of a turn."""


class Duel(State):
    """A duel that can be played. ``State`` has its data and the methods that copy and save it."""

    __slots__ = ()

    def legal(self) -> list[Action]:
        """Return the legal actions of ``to_act`` in canonical order; empty after the end. Do not modify the list."""
        if self.options is None:
            self.options = list_options(self)
        return self.options

    def apply(self, action: Action) -> None:
        """Play a legal action and all forced actions after it, up to the next decision or the end of the duel."""
        if action not in self.legal():
            when = "after the end" if self.winner is not None else f"in the {PHASE_NAMES[self.phase]} phase"
            raise ValueError(f"{action!r} is not legal for player {self.to_act} {when}; choose one of legal()")
        _play(self, action)
        _advance(self)


def new_duel(decks: tuple[str, str], seed: int) -> Duel:
    """Return a duel at its first decision: decks shuffled, seven cards drawn each. ``seed`` determines everything.

    Player 0 has the first turn and does not draw a card in it. There is no mulligan; instead opening hands are smoothed
    (see ``_smooth_shuffle``).
    """
    rng = random.Random(seed)
    first, second = (_choose_deck(name, rng) for name in decks)
    duel = Duel((first, second))
    for side, deck in zip(duel.sides, (first, second), strict=True):
        side.library = _smooth_shuffle(DECKS[DECK_NAMES[deck]], rng)
    duel.rng_state = rng.getrandbits(31)
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
    """Shuffle twice; return the order whose opening hand has the number of lands nearer to the deck's average."""
    orders = [list(deck), list(deck)]
    for order in orders:
        rng.shuffle(order)
    average = OPENING_HAND * sum(card < len(COLOURS) for card in deck) / len(deck)
    return min(orders, key=lambda order: abs(sum(card < len(COLOURS) for card in order[-OPENING_HAND:]) - average))


def _advance(state: State) -> None:
    """Play forced actions, up to a decision with more than one legal action or the end of the duel."""
    options = list_options(state)
    while len(options) == 1:
        _play(state, options[0])
        options = list_options(state)
    state.options = options


def _play(state: State, action: Action) -> None:
    """Play one action, without the forced actions after it."""
    kind, subject, target = action
    if kind == PASS:
        _pass(state)
        return
    if state.log is not None:
        write_log(state, state.to_act, describe(state, action))
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
    """Resolve the spell on top of the stack, or begin the next phase if there is none."""
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
    """Pay for a spell, put it on the stack, and let the opponent respond."""
    seat = state.to_act
    side = state.sides[seat]
    side.hand.remove(card)
    _pay(side, card)
    state.stack.append(Spell(state.new_uid(seat), card, seat, target))
    state.to_act = 1 - seat


def _pay(side: Side, card: int) -> None:
    """Tap lands for a card that has already left the hand."""
    untapped = side.untapped
    for colour, number in PIPS[card]:
        untapped[colour] -= number
    generic = GENERIC[card]
    if not generic:
        return
    surplus = untapped[:]
    for held_card in side.hand:
        for colour, number in PIPS[held_card]:
            surplus[colour] -= number
    for _ in range(generic):
        largest = -1000
        for colour in range(5):
            if untapped[colour] and surplus[colour] > largest:
                largest, chosen = surplus[colour], colour
        untapped[chosen] -= 1
        surplus[chosen] -= 1


def _resolve(state: State, spell: Spell) -> None:
    """Resolve a spell: move its card to its next zone and apply its effects, unless its target is gone."""
    _, card, seat, target = spell
    side = state.sides[seat]
    kind = KIND[card]
    creature = state.find(target) if target > 0 else None
    fizzles = target > 0 and creature is None and CARDS[card].target != SPELL
    if kind == CREATURE:
        enter(state, seat, card)
    elif kind == CHARM:
        side.charms.append(card)
        update_grants(state, seat)
    elif kind == MARK and not fizzles:
        assert creature is not None
        attach(state, creature, card)
    else:
        side.graveyard.append(card)
    if fizzles:
        write_log(state, seat, f"{CARDS[card].name} has lost its target")
    elif target or CARDS[card].target not in (FOE, FRIEND):  # a creature may have been cast without a target
        apply_effects(state, seat, creature, EFFECTS[card])


def _end_turn(state: State) -> None:
    """Discard down to the hand limit, end damage and boosts, and begin the opponent's turn."""
    hand = state.sides[state.active].hand
    while len(hand) > HAND_LIMIT:
        card = hand.pop()
        state.sides[state.active].graveyard.append(card)
        write_log(state, state.active, f"discards {CARDS[card].name}")
    for side in state.sides:
        for creature in side.creatures:
            creature.damage = creature.blocked = creature.blocking = 0
            creature.attacking = False
            if creature.boost is not NO_BOOST:
                creature.boost = NO_BOOST
                recompute_stats(state, creature)
    remove_dead_creatures(state)  # those that only a boost of toughness kept alive
    check_winner(state)
    if state.winner is not None:
        return
    state.turn += 1
    state.active = state.to_act = 1 - state.active
    state.phase = MAIN
    state.passed = False
    _begin_turn(state, state.active)


def _begin_turn(state: State, seat: int) -> None:
    """Untap, apply the upkeep effects of charms, and draw a card."""
    side = state.sides[seat]
    write_log(state, seat, f"turn {state.turn}")
    side.untapped = side.lands[:]
    side.land_played = False
    for creature in side.creatures:
        creature.tapped = creature.sick = False
    for charm in side.charms[:]:
        if UPKEEP_EFFECTS[charm]:
            apply_effects(state, seat, None, UPKEEP_EFFECTS[charm])
    if state.winner is None:
        draw(state, seat, 1)
