"""Rows for attacks and blocks: who could die, what gets through, and what is left open at home."""

from __future__ import annotations

from functools import lru_cache

from corral.games.card_battle.action_rows import body, pass_row, row
from corral.games.card_battle.cards import BOUND, DEFENDER, LIFELINK, MENACE, TRAMPLE, VIGILANCE
from corral.games.card_battle.foresight import creature_worth, fight, worth
from corral.games.card_battle.options import can_attack, can_block
from corral.games.card_battle.pieces import PASS, Creature
from corral.games.card_battle.rules import Duel

__all__ = ["block_rows", "raid_rows"]


def raid_rows(duel: Duel) -> list[bytes]:
    """Rows while attackers are chosen."""
    seat = duel.to_act
    me, foe = duel.sides[seat], duel.sides[1 - seat]
    guards = [c for c in foe.creatures if not (c.tapped or c.keywords & BOUND)]
    options = duel.legal()
    chosen = [c for c in me.creatures if c.attacking]
    able = [c for c in me.creatures if can_attack(c)]
    all_in = int(0 < foe.life <= _through(chosen + able, guards))
    at_home = sum(not (c.tapped or c.keywords & BOUND) for c in me.creatures)
    returns = sorted(c.power for c in foe.creatures if c.power > 0 and not c.keywords & (DEFENDER | BOUND))
    stays, leaves = (sum(returns[: max(len(returns) - n, 0)]) for n in (at_home, at_home - 1))
    raid = sum(c.power for c in chosen)
    enough = int(0 < foe.life <= _through(chosen, guards)) if chosen else 0
    rows = [pass_row(raid, max(foe.life, 1), enough, stays, max(me.life, 1))]
    for action in options[1:]:
        attacker = duel.find(action.subject)
        assert attacker is not None
        power, left, keywords = attacker.power, attacker.toughness - attacker.damage, attacker.keywords
        free, dies, kills, loss = _expect_block(attacker, power, left, keywords, guards)
        counter = stays if keywords & VIGILANCE else leaves
        rows.append(
            _attack_row(power, left, keywords, free, dies, kills, loss, foe.life, all_in, counter, max(me.life, 1))
        )
    return rows


def _through(attackers: list[Creature], guards: list[Creature]) -> int:
    """Damage that gets through if each guard stops the strongest attacker that is left to stop."""
    safe, stoppable = 0, []
    for attacker in attackers:
        if _is_free(attacker, guards):
            safe += max(attacker.power, 0)
        else:
            stoppable.append(max(attacker.power, 0))
    if len(stoppable) <= len(guards):
        return safe
    stoppable.sort()
    return safe + sum(stoppable[: len(stoppable) - len(guards)])


def _is_free(attacker: Creature, guards: list[Creature]) -> bool:
    """Whether nobody can block it."""
    needed = 2 if attacker.keywords & MENACE else 1
    for guard in guards:
        if can_block(attacker, guard):
            needed -= 1
            if not needed:
                return False
    return True


def _expect_block(
    attacker: Creature, power: int, left: int, keywords: int, guards: list[Creature]
) -> tuple[bool, bool, bool, int]:
    """Look for the block that hurts most: whether there is none at all, who dies, and what is lost by it."""
    if _is_free(attacker, guards):
        return True, False, False, 0
    mine = worth(power, left, keywords)
    dies, kills, worst = False, True, -1000
    for guard in guards:
        if not can_block(attacker, guard):
            continue
        guard_left = guard.toughness - guard.damage
        end = fight(power, left, keywords, guard.power, guard_left, guard.keywords)
        loss = (mine if end.first_dies else 0) - (creature_worth(guard) if end.second_dies else 0)
        if loss > worst:
            worst, kills = loss, end.second_dies
        dies = dies or end.first_dies
    return False, dies, kills, worst


@lru_cache(1 << 14)
def _attack_row(
    power: int,
    toughness: int,
    keywords: int,
    free: bool,
    dies: bool,
    kills: bool,
    loss: int,
    foe_life: int,
    all_in: int,
    counter: int,
    my_life: int,
) -> bytes:
    return row(
        attack=1.0,
        **body(power, toughness, keywords),
        life=power / 5 if keywords & LIFELINK else 0.0,
        kills=kills,
        dies=dies,
        free=free,
        swing=-loss / 15,
        face=max(power, 0) / max(foe_life, 1),
        lethal=all_in,
        exposed=counter / my_life,
    )


def block_rows(duel: Duel) -> list[bytes]:
    """Rows while blockers are chosen."""
    seat = duel.to_act
    me, foe = duel.sides[seat], duel.sides[1 - seat]
    incoming = sum(c.power for c in foe.creatures if c.attacking and not c.blocked and c.power > 0)
    deadly = 0 < me.life <= incoming
    life = max(me.life, 1)
    rows = []
    for kind, subject, target in duel.legal():
        if kind == PASS:
            rows.append(pass_row(0, 1, -1 if deadly else 0, incoming, life))
            continue
        blocker, attacker = duel.find(subject), duel.find(target)
        assert blocker is not None and attacker is not None
        left, need = blocker.toughness - blocker.damage, attacker.toughness - attacker.damage
        stats = (attacker.power, need, attacker.keywords)
        end = fight(blocker.power, left, blocker.keywords, *stats)
        before = False
        stopped = min(max(attacker.power, 0), left) if attacker.keywords & TRAMPLE else max(attacker.power, 0)
        if attacker.blocked:
            stopped = 0
            helpers = [c for c in me.creatures if c.blocking == target]
            together = sum(max(c.power, 0) for c in helpers)
            before = together >= need
            end = end._replace(second_dies=end.second_dies or together + max(blocker.power, 0) >= need)
        kills = end.second_dies and not before
        swing = (creature_worth(attacker) if kills else 0) - (creature_worth(blocker) if end.first_dies else 0)
        saves = deadly and incoming - stopped < me.life
        rows.append(
            _block_row(
                blocker.power, left, blocker.keywords, attacker.power, need, kills, end.first_dies, saves, swing,
                stopped, life,
            )
        )  # fmt: skip
    return rows


@lru_cache(1 << 14)
def _block_row(
    power: int,
    toughness: int,
    keywords: int,
    target_power: int,
    target_toughness: int,
    kills: bool,
    dies: bool,
    saves: bool,
    swing: int,
    stopped: int,
    my_life: int,
) -> bytes:
    return row(
        block=1.0,
        **body(power, toughness, keywords),
        target_power=target_power / 6,
        target_toughness=target_toughness / 6,
        target_busy=1.0,
        kills=kills,
        dies=dies,
        saves=saves,
        swing=swing / 15,
        face=stopped / my_life,
    )
