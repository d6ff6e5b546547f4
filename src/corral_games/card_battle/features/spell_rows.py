"""Rows of features for lands and spells: the card, its cost and target, and what it would do on this board."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from corral_games.card_battle.bots.lookahead import EFFECT_SUMMARIES, EffectSummary, fight, fight_creatures
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
from corral_games.card_battle.features.action_rows import EIGHTHS_PER_UNIT, body_columns, encode_row, pass_row

__all__ = ["spell_rows"]


class _TargetForecast(NamedTuple):
    """What a spell targets, and what would follow for the target."""

    is_face: bool = False
    """Whether the target is the opponent."""
    is_mine: bool = False
    """Whether the target is a creature of the player to act."""
    power: int = 0
    toughness: int = 0
    """The target's toughness, without damage taken."""
    busy: bool = False
    """Whether the target is in combat, or the target of the spell on top of the stack."""
    kills: int = 0
    """10 if a creature dies or is removed permanently, less if it may return, 0 if neither."""
    saves: bool = False
    """Whether the spell saves the player or the target from dying."""


_NO_TARGET, _FACE_TARGET = _TargetForecast(), _TargetForecast(is_face=True)


def spell_rows(duel: Duel, swings: list[int]) -> list[bytes]:
    """Return the rows of the legal actions while spells can be cast; ``swings`` are their quantized scores.

    That is in the main phase, before combat damage, and in response to a spell.
    """
    seat = duel.to_act
    me, foe = duel.sides[seat], duel.sides[1 - seat]
    my_life, foe_life = max(me.life, 1), max(foe.life, 1)
    mana = sum(me.untapped)
    outgoing = incoming = 0
    if duel.phase == FIGHTING:
        attackers = duel.sides[duel.active].creatures
        unblocked = sum([c.power for c in attackers if c.attacking and not c.blocked and c.power > 0])
        outgoing, incoming = (unblocked, 0) if duel.active == seat else (0, unblocked)
    rows = []
    for (kind, card, target), swing in zip(duel.legal(), swings, strict=True):
        if kind == CAST:
            forecast, face = _forecast_target(duel, card, target, incoming)
            rows.append(_cast_row(card, mana, forecast, swing, face, foe_life, foe_life - outgoing))
        elif kind == LAND:
            rows.append(_land_row(_cards_lacking_colour(me, card), swing))
        else:
            lethal = 1 if outgoing >= foe_life else -1 if incoming >= my_life else 0
            rows.append(pass_row(outgoing, foe_life, lethal, incoming, my_life))
    return rows


def _forecast_target(duel: Duel, card: int, target: int, incoming: int) -> tuple[_TargetForecast, int]:
    """Return the forecast for the target of a spell, and the damage that the spell adds to the opponent's."""
    summary = EFFECT_SUMMARIES[card]
    if target == FACE:
        return _FACE_TARGET, summary.face + summary.damage
    if target <= 0:
        return _NO_TARGET, summary.face
    if TARGET[card] == SPELL:
        countered = CARDS[duel.stack[-1].card]
        forecast = _TargetForecast(power=countered.power, toughness=countered.toughness, kills=summary.removal)
        return forecast, summary.face
    creature = duel.find(target)
    assert creature is not None
    if creature.seat != duel.to_act:
        return _forecast_harm(duel.sides[duel.to_act], summary, creature, incoming), summary.face
    face = summary.face
    if duel.phase == FIGHTING and creature.attacking and not creature.blocked:
        face += summary.boost[0]
    return _forecast_help(duel, summary, creature), face


def _cards_lacking_colour(me: Side, colour: int) -> int:
    """Count the cards in hand that require more lands of a colour than are on the board."""
    n_lands, n_lacking = me.lands[colour], 0
    for card in me.hand:
        for required, number in PIPS[card]:
            if required == colour and number > n_lands:
                n_lacking += 1
    return n_lacking


@lru_cache(1 << 10)
def _land_row(n_lacking: int, swing: int) -> bytes:
    return encode_row(land=1.0, use=n_lacking / 3, swing=swing / EIGHTHS_PER_UNIT)


def _forecast_harm(me: Side, summary: EffectSummary, target: Creature, incoming: int) -> _TargetForecast:
    """Forecast a spell that targets a creature of the opponent."""
    power, toughness = target.power, target.toughness - target.damage
    kills = 10 if summary.harm >= toughness or (summary.bites and _bite_kills(me, toughness)) else summary.removal
    stops = kills > 0 and target.attacking and not target.blocked
    return _TargetForecast(
        power=power,
        toughness=toughness,
        busy=target.attacking or target.blocking != 0,
        kills=kills,
        saves=stops and incoming >= me.life > incoming - power,
    )


def _forecast_help(duel: Duel, summary: EffectSummary, target: Creature) -> _TargetForecast:
    """Forecast a spell that targets a creature of the player to act."""
    toughness = target.toughness - target.damage
    more_power, more_toughness, more_keywords = summary.boost
    boosted_toughness = toughness + more_toughness
    busy, kills, saves = target.attacking or target.blocking != 0, 0, False
    if duel.stack and duel.stack[-1].target == target.uid:
        busy, saves = True, toughness <= EFFECT_SUMMARIES[duel.stack[-1].card].harm < boosted_toughness
    enemy = _strongest_enemy(target, duel.sides[1 - target.seat]) if duel.phase == FIGHTING else None
    if enemy is not None:
        before = fight_creatures(target, enemy)
        after = fight(
            target.power + more_power,
            boosted_toughness,
            target.keywords | more_keywords,
            enemy.power,
            enemy.toughness - enemy.damage,
            enemy.keywords,
        )
        saves = saves or (before.first_dies and not after.first_dies)
        kills = 10 if after.second_dies and not before.second_dies else 0
    return _TargetForecast(is_mine=True, power=target.power, toughness=toughness, busy=busy, kills=kills, saves=saves)


def _bite_kills(me: Side, toughness: int) -> bool:
    """Return whether the damage of the side's strongest creature kills one with this remaining toughness."""
    if not me.creatures:
        return False
    strongest = max(me.creatures, key=lambda creature: creature.power)
    return strongest.power >= toughness or (strongest.power > 0 and strongest.keywords & DEATHTOUCH != 0)


def _strongest_enemy(creature: Creature, foe: Side) -> Creature | None:
    """Return the strongest creature that a creature fights in combat, or None."""
    strongest = None
    for other in foe.creatures:
        is_enemy = other.blocking == creature.uid or creature.blocking == other.uid
        if is_enemy and (strongest is None or other.power > strongest.power):
            strongest = other
    return strongest


@lru_cache(1 << 14)
def _cast_row(
    card: int, mana: int, forecast: _TargetForecast, swing: int, face: int, foe_life: int, foe_life_left: int
) -> bytes:
    """Return the row of a spell; ``foe_life_left`` is the opponent's life after the unblocked damage of this combat."""
    data, summary = CARDS[card], EFFECT_SUMMARIES[card]
    is_creature = data.kind == CREATURE
    power, toughness, keywords = (data.power, data.toughness, data.keywords) if is_creature else summary.boost
    return encode_row(
        cast=1.0,
        creature=is_creature,
        instant=data.kind == INSTANT,
        lasting=data.kind in (CHARM, MARK),
        cost=data.cost / 6,
        use=data.cost / max(mana, 1),
        **body_columns(power, toughness, keywords),
        damage=max(summary.damage, summary.face) / 6,
        cards=summary.cards / 2,
        life=(summary.life + (power if keywords & LIFELINK else 0)) / 5,
        on_mine=forecast.is_mine,
        on_face=forecast.is_face,
        target_power=forecast.power / 6,
        target_toughness=forecast.toughness / 6,
        target_busy=forecast.busy,
        kills=forecast.kills / 10,
        saves=forecast.saves,
        swing=swing / EIGHTHS_PER_UNIT,
        face=face / foe_life,
        lethal=0 < foe_life_left <= face,
    )
