"""Rows for lands and spells: what a card costs, whom it hits, and what would be gained by it on this table."""

from __future__ import annotations

from functools import lru_cache

from corral.games.card_battle.action_rows import POINTS, body, pass_row, row
from corral.games.card_battle.cards import (
    CARDS,
    CHARM,
    CREATURE,
    DEATHTOUCH,
    INSTANT,
    LIFELINK,
    MARK,
    PIPS,
    SPELL,
    TARGET,
)
from corral.games.card_battle.foresight import PLANS, fight
from corral.games.card_battle.pieces import CAST, FACE, FIGHTING, LAND, Creature, Side
from corral.games.card_battle.rules import Duel

__all__ = ["spell_rows"]

_NOBODY, _THEIRS, _MINE = 0, 1, 2  # what a spell is aimed at, besides FACE


def spell_rows(duel: Duel, swings: list[int]) -> list[bytes]:
    """Rows while spells may be cast: in the main phase, before the damage, and in answer to a spell."""
    seat = duel.to_act
    me, foe = duel.sides[seat], duel.sides[1 - seat]
    my_life, foe_life = max(me.life, 1), max(foe.life, 1)
    mana = sum(me.untapped)
    raid = incoming = 0
    if duel.phase == FIGHTING:
        unblocked = sum([c.power for c in duel.sides[duel.active].creatures if c.attacking and not c.blocked])
        raid, incoming = (unblocked, 0) if duel.active == seat else (0, unblocked)
    rows = []
    for (kind, card, target), swing in zip(duel.legal(), swings, strict=True):
        if kind == CAST:
            if target > 0 and TARGET[card] != SPELL:
                creature = duel.find(target)
                assert creature is not None
                rows.append(_aimed_row(duel, card, creature, swing, mana, raid, incoming))
                continue
            plan, on, power, toughness = PLANS[card], target, 0, 0
            face = plan.face + plan.damage if target == FACE else plan.face
            if target > 0:
                countered = CARDS[duel.stack[-1].card]
                on, power, toughness = _THEIRS, countered.power, countered.toughness
            rows.append(
                _cast_row(
                    card, mana, on, power, toughness, False, plan.removal, False, swing, face, foe_life, foe_life - raid
                )
            )
        elif kind == LAND:
            rows.append(_land_row(_lacking(me, card), swing))
        else:
            lethal = 1 if raid >= foe_life else -1 if incoming >= my_life else 0
            rows.append(pass_row(raid, foe_life, lethal, incoming, my_life))
    return rows


def _lacking(me: Side, colour: int) -> int:
    """Count the cards in hand for which there are too few lands of a colour."""
    lands, lacking = me.lands[colour], 0
    for card in me.hand:
        for wanted, number in PIPS[card]:
            if wanted == colour and number > lands:
                lacking += 1
    return lacking


@lru_cache(1 << 10)
def _land_row(lacking: int, swing: int) -> bytes:
    return row(land=1.0, use=lacking / 3, swing=swing / POINTS)


def _aimed_row(duel: Duel, card: int, target: Creature, swing: int, mana: int, raid: int, incoming: int) -> bytes:
    """A spell, or a creature that comes with an effect, aimed at a creature."""
    seat = duel.to_act
    me, foe = duel.sides[seat], duel.sides[1 - seat]
    plan = PLANS[card]
    power, left, keywords = target.power, target.toughness - target.damage, target.keywords
    more_power, more_toughness, more_keywords = plan.boost if CARDS[card].kind != CREATURE else (0, 0, 0)
    face, kills, saves = plan.face, plan.removal, False
    busy = target.attacking or target.blocking != 0
    if target.seat != seat:
        if left <= plan.damage - more_toughness or (plan.bites and _bitten(me, left)):
            kills = 10
        if kills and target.attacking and not target.blocked:
            saves = incoming >= me.life > incoming - power
    else:
        if duel.stack and duel.stack[-1].target == target.uid:
            threat = PLANS[duel.stack[-1].card]
            busy, saves = True, left <= threat.damage - threat.boost[1] < left + more_toughness
        if duel.phase == FIGHTING:
            if target.attacking and not target.blocked:
                face += more_power
            enemy = _enemy(target, foe)
            if enemy is not None:
                its = (enemy.power, enemy.toughness - enemy.damage, enemy.keywords)
                before = fight(power, left, keywords, *its)
                after = fight(power + more_power, left + more_toughness, keywords | more_keywords, *its)
                saves = saves or (before.first_dies and not after.first_dies)
                if after.second_dies and not before.second_dies:
                    kills = 10
    on = _MINE if target.seat == seat else _THEIRS
    life = max(foe.life, 1)
    return _cast_row(card, mana, on, power, left, busy, kills, saves, swing, face, life, life - raid)


def _bitten(me: Side, left: int) -> bool:
    """Whether the strongest of one's creatures would kill with its bite."""
    if not me.creatures:
        return False
    hunter = max(me.creatures, key=lambda creature: creature.power)
    return hunter.power >= left or (hunter.power > 0 and hunter.keywords & DEATHTOUCH != 0)


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
    to_take: int,
) -> bytes:
    data, plan = CARDS[card], PLANS[card]
    power, _, keywords = plan.boost
    return row(
        cast=1.0,
        creature=data.kind == CREATURE,
        instant=data.kind == INSTANT,
        lasting=data.kind in (CHARM, MARK),
        cost=data.cost / 6,
        use=data.cost / max(mana, 1),
        **body(*plan.boost),
        damage=max(plan.damage, plan.face) / 6,
        cards=plan.cards / 2,
        life=(plan.life + (power if keywords & LIFELINK else 0)) / 5,
        on_mine=on == _MINE,
        on_face=on == FACE,
        target_power=target_power / 6,
        target_toughness=target_toughness / 6,
        target_busy=busy,
        kills=kills / 10,
        saves=saves,
        swing=swing / POINTS,
        face=face / foe_life,
        lethal=0 < to_take <= face,
    )
