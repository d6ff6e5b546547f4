"""How things move on the board: creatures come, change and go, cards are drawn. Used by all that changes a duel."""

from __future__ import annotations

from bisect import insort

from corral_games.card_battle.engine.cards import CARDS, DEATHTOUCH, FRIEND, GRANTS, LIFELINK
from corral_games.card_battle.engine.pieces import NO_BOOST, Creature
from corral_games.card_battle.engine.state import State

__all__ = ["BOARD_LIMIT", "attach", "draw", "enter", "gather_grants", "leave", "refresh", "strike", "tell"]

BOARD_LIMIT = 12
"""No side has more creatures than this: a creature spell is not castable then, and tokens beyond it are not made."""

_IS_TOKEN = tuple(card.token for card in CARDS)
_POWER = tuple(card.power for card in CARDS)
_TOUGHNESS = tuple(card.toughness for card in CARDS)
_KEYWORDS = tuple(card.keywords for card in CARDS)


def enter(state: State, seat: int, card: int) -> None:
    """Put a creature on the board, if there is room."""
    side = state.sides[seat]
    if len(side.creatures) >= BOARD_LIMIT:
        if not _IS_TOKEN[card]:
            side.graveyard.append(card)
        return
    creature = Creature(state.new_uid(seat), card)
    if side.grants != NO_BOOST:
        refresh(state, creature)
    side.creatures.append(creature)


def refresh(state: State, creature: Creature) -> None:
    """Work out power, toughness and keywords from the card and all that lies on it."""
    card, counters = creature.card, creature.counters
    power, toughness, keywords = creature.boost
    more_power, more_toughness, more_keywords = state.sides[creature.seat].grants
    power += _POWER[card] + counters + more_power
    toughness += _TOUGHNESS[card] + counters + more_toughness
    keywords |= _KEYWORDS[card] | more_keywords
    for mark in creature.marks:
        more_power, more_toughness, more_keywords = GRANTS[mark]
        power += more_power
        toughness += more_toughness
        keywords |= more_keywords
    creature.power = power
    creature.toughness = toughness
    creature.keywords = keywords


def gather_grants(state: State, seat: int) -> None:
    """Work out what the charms of one side give together, and give it to its creatures."""
    side = state.sides[seat]
    power = toughness = keywords = 0
    for charm in side.charms:
        more_power, more_toughness, more_keywords = GRANTS[charm]
        power += more_power
        toughness += more_toughness
        keywords |= more_keywords
    if side.grants != (power, toughness, keywords):
        side.grants = (power, toughness, keywords)
        for creature in side.creatures:
            refresh(state, creature)


def attach(state: State, creature: Creature, mark: int) -> None:
    """Put a mark on a creature."""
    creature.marks += (mark,)
    refresh(state, creature)


def strike(state: State, source: Creature, victim: Creature, amount: int) -> None:
    """Let a creature deal damage to another."""
    victim.damage += amount
    if source.keywords & (DEATHTOUCH | LIFELINK):
        if source.keywords & DEATHTOUCH and victim.damage < victim.toughness:
            victim.damage = victim.toughness
        if source.keywords & LIFELINK:
            state.sides[source.seat].life += amount


def leave(state: State, creature: Creature, zone: list[int]) -> None:
    """Move a creature from the board to a zone, and its marks to the graveyards of those who played them."""
    state.sides[creature.seat].creatures.remove(creature)
    for mark in creature.marks:
        owner = creature.seat if CARDS[mark].target == FRIEND else 1 - creature.seat
        state.sides[owner].graveyard.append(mark)
    if not _IS_TOKEN[creature.card]:
        zone.append(creature.card)


def draw(state: State, seat: int, number: int) -> None:
    """Draw cards. Who has to draw and cannot has lost."""
    side = state.sides[seat]
    for _ in range(number):
        if not side.library:
            if state.winner is None:
                state.winner = 1 - seat
                tell(state, seat, "has no card left to draw")
            return
        insort(side.hand, side.library.pop())


def tell(state: State, seat: int, text: str) -> None:
    """Write a line to the log, if one is kept."""
    if state.log is not None:
        state.log.append(f"{seat}: {text}")
