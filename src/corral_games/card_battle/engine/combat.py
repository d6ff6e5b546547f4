"""Combat damage, which is dealt automatically: creatures with first strike first, then all others that are still alive.

An attacker assigns lethal damage (1 with deathtouch) to each of its blockers, beginning with the one that the least
damage kills. With trample, the rest goes to the defending player; without, to the last blocker. A blocked attacker
whose blockers have left the board deals damage only with trample.
"""

from __future__ import annotations

from corral_games.card_battle.engine.board import damage_creature, write_log
from corral_games.card_battle.engine.cards import DEATHTOUCH, FIRST_STRIKE, LIFELINK, TRAMPLE
from corral_games.card_battle.engine.effects import check_winner, remove_dead_creatures
from corral_games.card_battle.engine.pieces import Creature
from corral_games.card_battle.engine.state import State

__all__ = ["deal_damage", "remaining_toughness"]


def deal_damage(state: State) -> None:
    """Deal the damage of this turn's combat, in two steps if any creature in it has first strike."""
    attackers, blockers = _attackers(state), _blockers(state)
    first_attackers = [creature for creature in attackers if creature.keywords & FIRST_STRIKE]
    first_blockers = [creature for creature in blockers if creature.keywords & FIRST_STRIKE]
    if not first_attackers and not first_blockers:
        _deal_step(state, attackers, blockers, attackers, blockers)
        return
    dealt = {creature.uid for creature in first_attackers + first_blockers}
    _deal_step(state, attackers, blockers, first_attackers, first_blockers)
    if state.winner is not None:
        return
    attackers, blockers = _attackers(state), _blockers(state)
    second_attackers = [creature for creature in attackers if creature.uid not in dealt]
    second_blockers = [creature for creature in blockers if creature.uid not in dealt]
    _deal_step(state, attackers, blockers, second_attackers, second_blockers)


def _attackers(state: State) -> list[Creature]:
    return [creature for creature in state.sides[state.active].creatures if creature.attacking]


def _blockers(state: State) -> list[Creature]:
    return [creature for creature in state.sides[1 - state.active].creatures if creature.blocking]


def _deal_step(
    state: State,
    attackers: list[Creature],
    blockers: list[Creature],
    dealing_attackers: list[Creature],
    dealing_blockers: list[Creature],
) -> None:
    """Let some of the creatures in combat deal damage simultaneously, then remove the dead ones.

    All of it can be dealt in any order, because no creature's power changes before the dead are removed.
    """
    for attacker in dealing_attackers:
        if attacker.power <= 0:
            continue
        if attacker.blocked:
            _damage_blockers(state, attacker, [blocker for blocker in blockers if blocker.blocking == attacker.uid])
        else:
            _damage_player(state, attacker, attacker.power)
    for blocker in dealing_blockers:
        if blocker.power > 0:
            for attacker in attackers:
                if attacker.uid == blocker.blocking:
                    damage_creature(state, blocker, attacker, blocker.power)
                    break
    remove_dead_creatures(state)
    check_winner(state)


def _damage_blockers(state: State, attacker: Creature, blockers: list[Creature]) -> None:
    """Distribute an attacker's damage among its blockers and, with trample, the defending player."""
    damage_left = attacker.power
    if len(blockers) > 1:
        blockers.sort(key=remaining_toughness)
    last = len(blockers) - 1
    tramples = attacker.keywords & TRAMPLE
    for i, blocker in enumerate(blockers):
        lethal = 1 if attacker.keywords & DEATHTOUCH else max(remaining_toughness(blocker), 0)
        assigned = damage_left if i == last and not tramples else min(lethal, damage_left)
        if assigned:
            damage_creature(state, attacker, blocker, assigned)
            damage_left -= assigned
    if tramples and damage_left:
        _damage_player(state, attacker, damage_left)


def remaining_toughness(creature: Creature) -> int:
    """Return the damage that kills a creature: its toughness minus the damage that it has taken."""
    return creature.toughness - creature.damage


def _damage_player(state: State, attacker: Creature, amount: int) -> None:
    """Deal an attacker's damage to the defending player."""
    state.sides[1 - attacker.seat].life -= amount
    if attacker.keywords & LIFELINK:
        state.sides[attacker.seat].life += amount
    write_log(state, 1 - attacker.seat, f"takes {amount} damage")
