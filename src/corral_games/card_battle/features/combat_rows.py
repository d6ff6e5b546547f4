"""Rows for attacks and blocks: who could die, what gets through, and what is left open at home."""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache
from typing import NamedTuple

from corral_games.card_battle.bots.board_value import worth
from corral_games.card_battle.bots.lookahead import fight
from corral_games.card_battle.engine.cards import BOUND, DEFENDER, FLYING, LIFELINK, MENACE, REACH, TRAMPLE, VIGILANCE
from corral_games.card_battle.engine.options import can_attack
from corral_games.card_battle.engine.pieces import PASS
from corral_games.card_battle.engine.rules import Duel
from corral_games.card_battle.features.action_rows import POINTS, body, pass_row, row

__all__ = ["block_rows", "raid_rows"]


Body = tuple[int, int, int]
"""A creature in combat: power, toughness less damage, keywords."""


def raid_rows(duel: Duel, swings: list[int]) -> list[bytes]:
    """Rows while attackers are chosen."""
    seat = duel.to_act
    me, foe = duel.sides[seat], duel.sides[1 - seat]
    my_life, foe_life = max(me.life, 1), max(foe.life, 1)
    guards = tuple(
        [(c.power, c.toughness - c.damage, c.keywords) for c in foe.creatures if not (c.tapped or c.keywords & BOUND)]
    )
    outlooks: dict[int, _Outlook] = {}
    chosen, at_home, raid, strength = [], 0, 0, 0
    for creature in me.creatures:
        if creature.attacking or can_attack(creature):
            it = _look_out((creature.power, creature.toughness - creature.damage, creature.keywords), guards)
            outlooks[creature.uid] = it
            strength += it.damage
            if creature.attacking:
                chosen.append(it)
                raid += it.damage
        if not (creature.tapped or creature.keywords & BOUND):
            at_home += 1
    all_in = strength >= foe_life and _through(outlooks.values(), len(guards)) >= foe_life
    enough = raid >= foe_life and _through(chosen, len(guards)) >= foe_life
    returns = [c.power for c in foe.creatures if c.power > 0 and not c.keywords & (DEFENDER | BOUND)]
    returns.sort()
    leaves = sum(returns[: max(len(returns) - at_home + 1, 0)])
    stays = sum(returns[: max(len(returns) - at_home, 0)]) if leaves else 0
    rows = [pass_row(raid, foe_life, int(enough), stays, my_life)]
    for (_, uid, _), swing in zip(duel.legal()[1:], swings[1:], strict=True):
        it = outlooks[uid]
        counter = stays if it.body[2] & VIGILANCE else leaves
        rows.append(_attack_row(it, swing, foe_life, all_in, counter, my_life))
    return rows


class _Outlook(NamedTuple):
    """What an attacker has to expect of the guards."""

    body: Body
    damage: int
    free: bool
    """Whether nobody can block it."""
    dies: bool
    """Whether there is a guard that could kill it."""
    kills: bool
    """Whether it would take that guard with it, or kill any that blocks."""
    guard: Body
    """The one to be feared most."""


@lru_cache(1 << 12)
def _look_out(attacker: Body, guards: tuple[Body, ...]) -> _Outlook:
    able = [guard for guard in guards if not attacker[2] & FLYING or guard[2] & (FLYING | REACH)]
    damage = max(attacker[0], 0)
    if len(able) < (2 if attacker[2] & MENACE else 1):
        return _Outlook(attacker, damage, True, False, False, (0, 0, 0))
    mine, worst, dies, kills, feared = worth(*attacker), -1000.0, False, False, able[0]
    for guard in able:
        end = fight(*attacker, *guard)
        loss = (mine if end.first_dies else 0.0) - (worth(*guard) if end.second_dies else 0.0)
        dies = dies or end.first_dies
        if loss > worst:
            worst, kills, feared = loss, end.second_dies, guard
    return _Outlook(attacker, damage, False, dies, kills, feared)


def _through(outlooks: Collection[_Outlook], guards: int) -> int:
    """Damage that gets through if each guard stops the strongest attacker that is left to stop."""
    stoppable = sorted([it.damage for it in outlooks if not it.free])
    return sum([it.damage for it in outlooks if it.free]) + sum(stoppable[: max(len(stoppable) - guards, 0)])


@lru_cache(1 << 14)
def _attack_row(it: _Outlook, swing: int, foe_life: int, all_in: bool, counter: int, my_life: int) -> bytes:
    return row(
        attack=1.0,
        **body(*it.body),
        life=it.damage / 5 if it.body[2] & LIFELINK else 0.0,
        target_power=it.guard[0] / 6,
        target_toughness=it.guard[1] / 6,
        kills=it.kills,
        dies=it.dies,
        free=it.free,
        swing=swing / POINTS,
        face=it.damage / foe_life,
        lethal=all_in,
        exposed=counter / my_life,
    )


def block_rows(duel: Duel, swings: list[int]) -> list[bytes]:
    """Rows while blockers are chosen."""
    seat = duel.to_act
    me, foe = duel.sides[seat], duel.sides[1 - seat]
    incoming = sum([c.power for c in foe.creatures if c.attacking and not c.blocked and c.power > 0])
    my_life = max(me.life, 1)
    deadly = incoming >= my_life
    rows = []
    for (kind, subject, target), swing in zip(duel.legal(), swings, strict=True):
        if kind == PASS:
            rows.append(pass_row(0, 1, -1 if deadly else 0, incoming, my_life))
            continue
        blocker, attacker = duel.find(subject), duel.find(target)
        assert blocker is not None
        assert attacker is not None
        mine = (blocker.power, blocker.toughness - blocker.damage, blocker.keywords)
        its = (attacker.power, attacker.toughness - attacker.damage, attacker.keywords)
        dies, kills = fight(*mine, *its)
        stopped = max(its[0], 0)
        if attacker.blocked:
            stopped = 0
            helpers = sum([max(c.power, 0) for c in me.creatures if c.blocking == target])
            kills = helpers < its[1] and (kills or helpers + max(mine[0], 0) >= its[1])
        elif its[2] & TRAMPLE:
            stopped = min(stopped, mine[1])
        saves = deadly and incoming - stopped < my_life
        rows.append(_block_row(mine, its, dies, kills, saves, swing, stopped, incoming, my_life))
    return rows


@lru_cache(1 << 14)
def _block_row(
    mine: Body, its: Body, dies: bool, kills: bool, saves: bool, swing: int, stopped: int, incoming: int, my_life: int
) -> bytes:
    return row(
        block=1.0,
        **body(*mine),
        target_power=its[0] / 6,
        target_toughness=its[1] / 6,
        target_busy=1.0,
        kills=kills,
        dies=dies,
        saves=saves,
        swing=swing / POINTS,
        face=stopped / my_life,
        exposed=(incoming - stopped) / my_life,
    )
