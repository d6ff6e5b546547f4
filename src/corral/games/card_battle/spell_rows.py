"""Rows for lands and spells: what a card costs, whom it hits, and what would be gained by it on this table."""

from __future__ import annotations

from functools import lru_cache

from corral.games.card_battle.action_rows import body, pass_row, row
from corral.games.card_battle.cards import (
    CARDS,
    CHARM,
    COST,
    CREATURE,
    DEATHTOUCH,
    INSTANT,
    KIND,
    LIFELINK,
    MARK,
    PIPS,
    SPELL,
    TARGET,
)
from corral.games.card_battle.foresight import PLANS, creature_worth, fight
from corral.games.card_battle.pieces import CAST, FACE, FIGHTING, LAND, Creature, Side
from corral.games.card_battle.rules import Duel

__all__ = ["spell_rows"]


def spell_rows(duel: Duel) -> list[bytes]:
    """Rows while spells may be cast: in the main phase, before the damage, and in answer to a spell."""
    seat = duel.to_act
    me, foe = duel.sides[seat], duel.sides[1 - seat]
    mana = sum(me.untapped)
    raid = incoming = 0
    if duel.phase == FIGHTING:
        unblocked = sum(c.power for c in duel.sides[duel.active].creatures if c.attacking and not c.blocked)
        raid, incoming = (unblocked, 0) if duel.active == seat else (0, unblocked)
    rows = []
    for kind, subject, target in duel.legal():
        if kind == CAST:
            if target > 0 and TARGET[subject] != SPELL:
                creature = duel.find(target)
                assert creature is not None
                rows.append(_aimed_row(duel, subject, creature, mana, raid, incoming))
                continue
            plan = PLANS[subject]
            face, swing, kills, power, toughness = plan.face, plan.body, 0, 0, 0
            if target == FACE:
                face += plan.damage
            elif target > 0:
                countered = duel.stack[-1].card
                swing, kills = 3 * COST[countered], 10
                power, toughness = CARDS[countered].power, CARDS[countered].toughness
            elif plan.looks:
                swing += _look(me, foe, subject)
            left = foe.life - raid
            on = 1 if target > 0 else target
            rows.append(
                _cast_row(subject, mana, on, power, toughness, False, kills, False, swing, face, foe.life, left)
            )
        elif kind == LAND:
            rows.append(_land_row(_lacking(me, subject)))
        else:
            lethal = 1 if 0 < foe.life <= raid else -1 if 0 < me.life <= incoming else 0
            rows.append(pass_row(raid, max(foe.life, 1), lethal, incoming, max(me.life, 1)))
    return rows


def _lacking(me: Side, colour: int) -> int:
    """Count the cards in hand for which there are too few lands of a colour."""
    lands, lacking = me.lands[colour], 0
    for card in me.hand:
        for wanted, number in PIPS[card]:
            if wanted == colour and number > lands:
                lacking += 1
    return lacking


@lru_cache(1 << 6)
def _land_row(lacking: int) -> bytes:
    return row(land=1.0, use=lacking / 3)


def _look(me: Side, foe: Side, card: int) -> int:
    """What a spell without a target is worth on this table, beyond what comes with it."""
    plan = PLANS[card]
    swing = 0
    if plan.sweep:
        swing += sum(creature_worth(c) for c in foe.creatures if c.toughness - c.damage <= plan.sweep)
        swing -= sum(creature_worth(c) for c in me.creatures if c.toughness - c.damage <= plan.own_sweep)
    if plan.team_boost != (0, 0, 0):
        power, toughness, _ = plan.team_boost
        able = [c for c in me.creatures if plan.lasts or not (c.tapped or c.sick)]
        swing += (2 * power + toughness) * len(able)
    if plan.other == "edict" and foe.creatures:
        swing += creature_worth(min(foe.creatures, key=lambda c: c.power + c.toughness))
    elif plan.other in ("revive", "recall"):
        best = max((other for other in me.graveyard if KIND[other] == CREATURE), default=None)
        if best is not None:
            swing += PLANS[best].body if plan.other == "revive" else PLANS[best].body // 2
    elif plan.other == "disenchant" and foe.charms:
        swing += 6
    elif plan.other == "tap_all":
        swing += 2 * sum(not c.tapped for c in foe.creatures)
    return swing


def _aimed_row(duel: Duel, card: int, target: Creature, mana: int, raid: int, incoming: int) -> bytes:
    """A spell (or a creature that comes with an effect) aimed at a creature."""
    seat = duel.to_act
    me, foe = duel.sides[seat], duel.sides[1 - seat]
    plan = PLANS[card]
    power, left, keywords = target.power, target.toughness - target.damage, target.keywords
    more_power, more_toughness, more_keywords = plan.boost
    swing, face, kills, saves = plan.body, plan.face, plan.removal, False
    busy = target.attacking or target.blocking != 0
    if target.seat != seat:
        damage = plan.damage - more_toughness
        if plan.other == "bite" and me.creatures:
            hunter = max(me.creatures, key=lambda c: c.power)
            damage = left if hunter.keywords & DEATHTOUCH and hunter.power > 0 else max(hunter.power, 0)
        if left <= damage:
            kills = 10
        swing += creature_worth(target) * kills // 10 if kills else -2 * more_power
        if target.attacking and kills and not target.blocked:
            saves = incoming >= me.life > incoming - power
    else:
        if plan.lasts:
            swing += 2 * more_power + more_toughness + 2 * (more_keywords & ~keywords).bit_count()
        if duel.stack and duel.stack[-1].target == target.uid:
            busy, threat = True, PLANS[duel.stack[-1].card]
            coming = threat.damage - threat.boost[1]
            saves = left <= coming < left + more_toughness
        if duel.phase == FIGHTING and target.attacking and not target.blocked:
            face += more_power
        enemy = _enemy(target, foe) if duel.phase == FIGHTING else None
        if enemy is not None:
            enemy_stats = (enemy.power, enemy.toughness - enemy.damage, enemy.keywords)
            before = fight(power, left, keywords, *enemy_stats)
            after = fight(power + more_power, left + more_toughness, keywords | more_keywords, *enemy_stats)
            saves = saves or (before.first_dies and not after.first_dies)
            if after.second_dies and not before.second_dies:
                kills = 10
                swing += creature_worth(enemy)
        if saves:
            swing += creature_worth(target)
    on = 2 if target.seat == seat else 1
    return _cast_row(card, mana, on, power, left, busy, kills, saves, swing, face, foe.life, foe.life - raid)


def _enemy(creature: Creature, foe: Side) -> Creature | None:
    """The strongest of those that a creature in combat fights."""
    found = None
    for other in foe.creatures:
        meets = other.blocking == creature.uid or creature.blocking == other.uid
        if meets and (found is None or other.power > found.power):
            found = other
    return found


@lru_cache(1 << 14)
def _cast_row(
    card: int,
    mana: int,
    on: int,
    target_power: int,
    target_toughness: int,
    busy: bool,
    kills: int,
    saves: bool,
    swing: int,
    face: int,
    foe_life: int,
    left: int,
) -> bytes:
    """Tell a spell. ``on``: 1 something of the other side, 2 one's own, ``FACE``, or 0; ``left``: life to take."""
    data, plan = CARDS[card], PLANS[card]
    is_creature = data.kind == CREATURE
    power, toughness, keywords = (data.power, data.toughness, data.keywords) if is_creature else plan.boost
    if not is_creature and plan.team_boost != (0, 0, 0):
        power, toughness, keywords = plan.team_boost
    return row(
        cast=1.0,
        creature=is_creature,
        instant=data.kind == INSTANT,
        lasting=data.kind in (CHARM, MARK),
        cost=data.cost / 6,
        use=data.cost / max(mana, 1),
        **body(power, toughness, keywords),
        damage=max(plan.damage, plan.sweep, plan.face) / 6,
        cards=plan.cards / 2,
        life=(plan.life + (power if keywords & LIFELINK else 0)) / 5,
        on_mine=on == 2,
        on_face=on == FACE,
        target_power=target_power / 6,
        target_toughness=target_toughness / 6,
        target_busy=busy,
        kills=kills / 10,
        saves=saves,
        swing=swing / 15,
        face=face / max(foe_life, 1),
        lethal=0 < left <= face,
    )
