"""Combat damage, dealt automatically: first strikers, then everybody else who is still there.

An attacker deals its damage to its blockers, the one that takes the least to kill first, each as much as kills it
(deathtouch: 1); what is left goes through to the player with trample. A blocked attacker whose blockers are gone deals
damage only with trample.
"""

from __future__ import annotations

from corral_games.card_battle.engine.board import strike, tell
from corral_games.card_battle.engine.cards import DEATHTOUCH, FIRST_STRIKE, LIFELINK, TRAMPLE
from corral_games.card_battle.engine.effects import bury, settle
from corral_games.card_battle.engine.pieces import Creature
from corral_games.card_battle.engine.state import State

__all__ = ["deal_damage", "endurance"]


def deal_damage(state: State) -> None:
    """Deal the damage of this turn's combat."""
    attackers = [creature for creature in state.sides[state.active].creatures if creature.attacking]
    blockers = [creature for creature in state.sides[1 - state.active].creatures if creature.blocking]
    fast = False
    for creature in attackers:
        fast = fast or creature.keywords & FIRST_STRIKE != 0
    for creature in blockers:
        fast = fast or creature.keywords & FIRST_STRIKE != 0
    if not fast:
        _exchange(state, attackers, blockers, attackers, blockers)
        return
    quick_attackers = [creature for creature in attackers if creature.keywords & FIRST_STRIKE]
    quick_blockers = [creature for creature in blockers if creature.keywords & FIRST_STRIKE]
    struck = {creature.uid for creature in quick_attackers + quick_blockers}
    _exchange(state, attackers, blockers, quick_attackers, quick_blockers)
    if state.winner is not None:
        return
    attackers = [creature for creature in state.sides[state.active].creatures if creature.attacking]
    blockers = [creature for creature in state.sides[1 - state.active].creatures if creature.blocking]
    slow_attackers = [creature for creature in attackers if creature.uid not in struck]
    slow_blockers = [creature for creature in blockers if creature.uid not in struck]
    _exchange(state, attackers, blockers, slow_attackers, slow_blockers)


def _exchange(
    state: State,
    attackers: list[Creature],
    blockers: list[Creature],
    striking_attackers: list[Creature],
    striking_blockers: list[Creature],
) -> None:
    """Let some of those in combat strike, all at once: power does not change before the dead are taken off."""
    for attacker in striking_attackers:
        if attacker.power <= 0:
            continue
        if attacker.blocked:
            _strike_blockers(state, attacker, [other for other in blockers if other.blocking == attacker.uid])
        else:
            _strike_player(state, attacker, attacker.power)
    for blocker in striking_blockers:
        if blocker.power > 0:
            for attacker in attackers:
                if attacker.uid == blocker.blocking:
                    strike(state, blocker, attacker, blocker.power)
                    break
    bury(state)
    settle(state)


def _strike_blockers(state: State, attacker: Creature, blockers: list[Creature]) -> None:
    """Share an attacker's damage out among its blockers."""
    left = attacker.power
    if len(blockers) > 1:
        blockers.sort(key=endurance)
    last = len(blockers) - 1
    tramples = attacker.keywords & TRAMPLE
    for place, blocker in enumerate(blockers):
        need = 1 if attacker.keywords & DEATHTOUCH else max(endurance(blocker), 0)
        share = left if place == last and not tramples else min(need, left)
        if share:
            strike(state, attacker, blocker, share)
            left -= share
    if tramples and left:
        _strike_player(state, attacker, left)


def endurance(creature: Creature) -> int:
    """How much damage kills it."""
    return creature.toughness - creature.damage


def _strike_player(state: State, attacker: Creature, amount: int) -> None:
    """Damage to the defending player."""
    state.sides[1 - attacker.seat].life -= amount
    if attacker.keywords & LIFELINK:
        state.sides[attacker.seat].life += amount
    tell(state, 1 - attacker.seat, f"takes {amount} damage")
