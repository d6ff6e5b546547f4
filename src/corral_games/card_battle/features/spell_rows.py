"""Rows for lands and spells: what a card costs, whom it hits, and what would be gained by it on this table."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from corral_games.card_battle.bots.lookahead import PLANS, Plan, fight
from corral_games.card_battle.engine.cards import (
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
from corral_games.card_battle.engine.pieces import CAST, FACE, FIGHTING, LAND, Creature, Side
from corral_games.card_battle.engine.rules import Duel
from corral_games.card_battle.features.action_rows import POINTS, body, pass_row, row

__all__ = ["spell_rows"]


class _Aim(NamedTuple):
    """What a spell is aimed at, and what comes of it."""

    face: bool = False
    mine: bool = False
    power: int = 0
    toughness: int = 0
    busy: bool = False
    kills: int = 0
    """10 for good, less if it may come back."""
    saves: bool = False


_AT_NOBODY, _AT_FACE = _Aim(), _Aim(face=True)


def spell_rows(duel: Duel, swings: list[int]) -> list[bytes]:
    """Rows while spells may be cast: in the main phase, before the damage, and in answer to a spell."""
    seat = duel.to_act
    me, foe = duel.sides[seat], duel.sides[1 - seat]
    my_life, foe_life = max(me.life, 1), max(foe.life, 1)
    mana = sum(me.untapped)
    raid = incoming = 0
    if duel.phase == FIGHTING:
        attackers = duel.sides[duel.active].creatures
        unblocked = sum([c.power for c in attackers if c.attacking and not c.blocked and c.power > 0])
        raid, incoming = (unblocked, 0) if duel.active == seat else (0, unblocked)
    rows = []
    for (kind, card, target), swing in zip(duel.legal(), swings, strict=True):
        if kind == CAST:
            plan = PLANS[card]
            aim, face = _AT_NOBODY, plan.face
            if target == FACE:
                aim, face = _AT_FACE, face + plan.damage
            elif target > 0 and TARGET[card] == SPELL:
                countered = CARDS[duel.stack[-1].card]
                aim = _Aim(power=countered.power, toughness=countered.toughness, kills=plan.removal)
            elif target > 0:
                creature = duel.find(target)
                assert creature is not None
                if creature.seat != seat:
                    aim = _harm(me, plan, creature, incoming)
                else:
                    aim = _help(duel, plan, creature)
                    if duel.phase == FIGHTING and creature.attacking and not creature.blocked:
                        face += plan.boost[0]
            rows.append(_cast_row(card, mana, aim, swing, face, foe_life, foe_life - raid))
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


def _harm(me: Side, plan: Plan, target: Creature, incoming: int) -> _Aim:
    """A spell aimed at a creature of the other side."""
    power, left = target.power, target.toughness - target.damage
    kills = 10 if plan.harm >= left or (plan.bites and _bitten(me, left)) else plan.removal
    stops = kills > 0 and target.attacking and not target.blocked
    saves = stops and incoming >= me.life > incoming - power
    return _Aim(False, False, power, left, target.attacking or target.blocking != 0, kills, saves)


def _help(duel: Duel, plan: Plan, target: Creature) -> _Aim:
    """A spell aimed at one of one's own creatures."""
    now = (target.power, target.toughness - target.damage, target.keywords)
    then = (now[0] + plan.boost[0], now[1] + plan.boost[1], now[2] | plan.boost[2])
    busy, kills, saves = target.attacking or target.blocking != 0, 0, False
    if duel.stack and duel.stack[-1].target == target.uid:
        busy, saves = True, now[1] <= PLANS[duel.stack[-1].card].harm < then[1]
    enemy = _enemy(target, duel.sides[1 - target.seat]) if duel.phase == FIGHTING else None
    if enemy is not None:
        its = (enemy.power, enemy.toughness - enemy.damage, enemy.keywords)
        before, after = fight(*now, *its), fight(*then, *its)
        saves = saves or (before.first_dies and not after.first_dies)
        kills = 10 if after.second_dies and not before.second_dies else 0
    return _Aim(False, True, now[0], now[1], busy, kills, saves)


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
def _cast_row(card: int, mana: int, aim: _Aim, swing: int, face: int, foe_life: int, to_take: int) -> bytes:
    data, plan = CARDS[card], PLANS[card]
    is_creature = data.kind == CREATURE
    power, toughness, keywords = (data.power, data.toughness, data.keywords) if is_creature else plan.boost
    return row(
        cast=1.0,
        creature=is_creature,
        instant=data.kind == INSTANT,
        lasting=data.kind in (CHARM, MARK),
        cost=data.cost / 6,
        use=data.cost / max(mana, 1),
        **body(power, toughness, keywords),
        damage=max(plan.damage, plan.face) / 6,
        cards=plan.cards / 2,
        life=(plan.life + (power if keywords & LIFELINK else 0)) / 5,
        on_mine=aim.mine,
        on_face=aim.face,
        target_power=aim.power / 6,
        target_toughness=aim.toughness / 6,
        target_busy=aim.busy,
        kills=aim.kills / 10,
        saves=aim.saves,
        swing=swing / POINTS,
        face=face / foe_life,
        lethal=0 < to_take <= face,
    )
