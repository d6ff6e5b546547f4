"""Changes of the board that effects, combat and the rules share: creatures enter, change and leave, cards are drawn."""

from __future__ import annotations

from bisect import insort

from corral_games.card_battle.engine.cards import CARDS, DEATHTOUCH, FRIEND, GRANTS, LIFELINK
from corral_games.card_battle.engine.pieces import NO_BOOST, Creature
from corral_games.card_battle.engine.state import State

__all__ = [
    "BOARD_LIMIT",
    "attach",
    "damage_creature",
    "draw",
    "enter",
    "leave",
    "recompute_stats",
    "update_grants",
    "write_log",
]

BOARD_LIMIT = 12
"""The most creatures that a side can have. At the limit it cannot cast creatures, and no more tokens are created."""

_IS_TOKEN = tuple(card.token for card in CARDS)
_POWER = tuple(card.power for card in CARDS)
_TOUGHNESS = tuple(card.toughness for card in CARDS)
_KEYWORDS = tuple(card.keywords for card in CARDS)


def enter(state: State, seat: int, card: int) -> None:
    """Put a creature on the board of ``seat``; if that is full, in the graveyard; a token is not created then."""
    side = state.sides[seat]
    if len(side.creatures) >= BOARD_LIMIT:
        if not _IS_TOKEN[card]:
            side.graveyard.append(card)
        return
    creature = Creature(state.new_uid(seat), card)
    if side.grants != NO_BOOST:
        recompute_stats(state, creature)
    side.creatures.append(creature)


def recompute_stats(state: State, creature: Creature) -> None:
    """Recompute power, toughness and keywords from the card, its counters, boost and marks, and its side's charms."""
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


def update_grants(state: State, seat: int) -> None:
    """Recompute what the charms of ``seat`` grant in total, and update its creatures if that has changed."""
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
            recompute_stats(state, creature)


def attach(state: State, creature: Creature, mark: int) -> None:
    """Put a mark on a creature."""
    creature.marks += (mark,)
    recompute_stats(state, creature)


def damage_creature(state: State, source: Creature, victim: Creature, amount: int) -> None:
    """Deal damage from one creature to another, with the source's deathtouch and lifelink."""
    victim.damage += amount
    if source.keywords & (DEATHTOUCH | LIFELINK):
        if source.keywords & DEATHTOUCH and victim.damage < victim.toughness:
            victim.damage = victim.toughness
        if source.keywords & LIFELINK:
            state.sides[source.seat].life += amount


def leave(state: State, creature: Creature, zone: list[int]) -> None:
    """Move a creature from the board to a zone, and its marks to the graveyards of the players that cast them."""
    state.sides[creature.seat].creatures.remove(creature)
    for mark in creature.marks:
        owner = creature.seat if CARDS[mark].target == FRIEND else 1 - creature.seat
        state.sides[owner].graveyard.append(mark)
    if not _IS_TOKEN[creature.card]:
        zone.append(creature.card)


def draw(state: State, seat: int, number: int) -> None:
    """Draw ``number`` cards. A player that has to draw from an empty library loses."""
    side = state.sides[seat]
    for _ in range(number):
        if not side.library:
            if state.winner is None:
                state.winner = 1 - seat
                write_log(state, seat, "has no card left to draw")
            return
        insort(side.hand, side.library.pop())


def write_log(state: State, seat: int, text: str) -> None:
    """Append a line about ``seat`` to the log, if the duel keeps one."""
    if state.log is not None:
        state.log.append(f"{seat}: {text}")
