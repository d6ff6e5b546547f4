"""Rows of features for attacks and blocks: which creatures could die, and how much damage both players would take."""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache
from typing import NamedTuple

from corral_games.card_battle.bots.board_value import creature_value
from corral_games.card_battle.bots.lookahead import fight
from corral_games.card_battle.engine.cards import BOUND, DEFENDER, FLYING, LIFELINK, MENACE, REACH, TRAMPLE, VIGILANCE
from corral_games.card_battle.engine.options import can_attack
from corral_games.card_battle.engine.pieces import PASS, Creature, Side
from corral_games.card_battle.engine.rules import Duel
from corral_games.card_battle.features.action_rows import EIGHTHS_PER_UNIT, body_columns, encode_row, pass_row

__all__ = ["attack_rows", "block_rows"]


_Body = tuple[int, int, int]
"""A creature in combat: power, toughness minus damage, keywords. A plain tuple, because each step makes many of them as
keys of caches."""


class _AttackForecast(NamedTuple):
    """What an attacker has to expect from the opponent's possible blockers."""

    attacker: _Body
    has_vigilance: bool
    damage: int
    free: bool
    """Whether no creature can block it."""
    dies: bool
    """Whether one of the blockers could kill it."""
    kills: bool
    """Whether ``worst_blocker`` would die."""
    worst_blocker: _Body
    """The blocker with which the attacker's side loses the most points."""


def attack_rows(duel: Duel, swings: list[int]) -> list[bytes]:
    """Return the rows of the legal actions while attackers are chosen; ``swings`` are their quantized scores."""
    seat = duel.to_act
    me, foe = duel.sides[seat], duel.sides[1 - seat]
    my_life, foe_life = max(me.life, 1), max(foe.life, 1)
    blockers = tuple([_body(c) for c in foe.creatures if not (c.tapped or c.keywords & BOUND)])
    forecasts: dict[int, _AttackForecast] = {}
    declared, n_untapped, declared_damage, total_damage = [], 0, 0, 0
    for creature in me.creatures:
        if creature.attacking or can_attack(creature):
            forecast = _forecast_attack(_body(creature), blockers)
            forecasts[creature.uid] = forecast
            total_damage += forecast.damage
            if creature.attacking:
                declared.append(forecast)
                declared_damage += forecast.damage
        if not (creature.tapped or creature.keywords & BOUND):
            n_untapped += 1
    all_attack_wins = total_damage >= foe_life and _unblocked_damage(forecasts.values(), len(blockers)) >= foe_life
    declared_wins = declared_damage >= foe_life and _unblocked_damage(declared, len(blockers)) >= foe_life
    # In the opponent's next turn each untapped creature blocks one attacker, the strongest first.
    powers = _counterattack_powers(foe)
    exposed_if_tapped = sum(powers[: max(len(powers) - n_untapped + 1, 0)])
    exposed_if_untapped = sum(powers[: max(len(powers) - n_untapped, 0)]) if exposed_if_tapped else 0
    rows = [pass_row(declared_damage, foe_life, int(declared_wins), exposed_if_untapped, my_life)]
    for (_, uid, _), swing in zip(duel.legal()[1:], swings[1:], strict=True):
        forecast = forecasts[uid]
        exposed = exposed_if_untapped if forecast.has_vigilance else exposed_if_tapped
        rows.append(_attack_row(forecast, swing, foe_life, all_attack_wins, exposed, my_life))
    return rows


def _body(creature: Creature) -> _Body:
    return creature.power, creature.toughness - creature.damage, creature.keywords


def _counterattack_powers(foe: Side) -> list[int]:
    """Return the powers of the creatures that could attack in the opponent's next turn, lowest first."""
    powers = [c.power for c in foe.creatures if c.power > 0 and not c.keywords & (DEFENDER | BOUND)]
    powers.sort()
    return powers


@lru_cache(1 << 12)
def _forecast_attack(attacker: _Body, blockers: tuple[_Body, ...]) -> _AttackForecast:
    """Forecast an attack on a player with these possible blockers."""
    power, toughness, keywords = attacker
    able = [blocker for blocker in blockers if not keywords & FLYING or blocker[2] & (FLYING | REACH)]
    is_free = len(able) < (2 if keywords & MENACE else 1)
    highest_loss, dies, kills, worst_blocker = -1000.0, False, False, (0, 0, 0)
    if not is_free:
        value = creature_value(power, toughness, keywords)
        for blocker in able:
            blocker_power, blocker_toughness, blocker_keywords = blocker
            result = fight(power, toughness, keywords, blocker_power, blocker_toughness, blocker_keywords)
            loss = value if result.first_dies else 0.0
            if result.second_dies:
                loss -= creature_value(blocker_power, blocker_toughness, blocker_keywords)
            dies = dies or result.first_dies
            if loss > highest_loss:
                highest_loss, kills, worst_blocker = loss, result.second_dies, blocker
    return _AttackForecast(
        attacker,
        has_vigilance=keywords & VIGILANCE != 0,
        damage=max(power, 0),
        free=is_free,
        dies=dies,
        kills=kills,
        worst_blocker=worst_blocker,
    )


def _unblocked_damage(forecasts: Collection[_AttackForecast], n_blockers: int) -> int:
    """Return the damage to the player if each blocker blocks one attacker, the strongest that can be blocked first."""
    blockable = sorted([forecast.damage for forecast in forecasts if not forecast.free])
    free = sum([forecast.damage for forecast in forecasts if forecast.free])
    return free + sum(blockable[: max(len(blockable) - n_blockers, 0)])


@lru_cache(1 << 14)
def _attack_row(
    forecast: _AttackForecast, swing: int, foe_life: int, all_attack_wins: bool, exposed: int, my_life: int
) -> bytes:
    power, toughness, keywords = forecast.attacker
    blocker_power, blocker_toughness, _ = forecast.worst_blocker
    return encode_row(
        attack=1.0,
        **body_columns(power, toughness, keywords),
        life=forecast.damage / 5 if keywords & LIFELINK else 0.0,
        target_power=blocker_power / 6,
        target_toughness=blocker_toughness / 6,
        kills=forecast.kills,
        dies=forecast.dies,
        free=forecast.free,
        swing=swing / EIGHTHS_PER_UNIT,
        face=forecast.damage / foe_life,
        lethal=all_attack_wins,
        exposed=exposed / my_life,
    )


def block_rows(duel: Duel, swings: list[int]) -> list[bytes]:
    """Return the rows of the legal actions while blockers are chosen; ``swings`` are their quantized scores."""
    me, foe = duel.sides[duel.to_act], duel.sides[1 - duel.to_act]
    incoming = sum([c.power for c in foe.creatures if c.attacking and not c.blocked and c.power > 0])
    my_life = max(me.life, 1)
    rows = []
    for (kind, subject, target), swing in zip(duel.legal(), swings, strict=True):
        if kind == PASS:
            rows.append(pass_row(0, 1, -1 if incoming >= my_life else 0, incoming, my_life))
            continue
        blocker, attacker = duel.find(subject), duel.find(target)
        assert blocker is not None
        assert attacker is not None
        others_power = None
        if attacker.blocked:
            others_power = sum([max(c.power, 0) for c in me.creatures if c.blocking == target])
        rows.append(_block_row(_body(blocker), _body(attacker), others_power, swing, incoming, my_life))
    return rows


@lru_cache(1 << 14)
def _block_row(
    blocker: _Body, attacker: _Body, others_power: int | None, swing: int, incoming: int, my_life: int
) -> bytes:
    """Return the row of a block.

    ``others_power`` is the power of the creatures that block the attacker already, None if there are none. ``incoming``
    is the damage of all attackers that are not blocked yet.
    """
    power, toughness, keywords = blocker
    attacker_power, attacker_toughness, attacker_keywords = attacker
    dies, kills = fight(power, toughness, keywords, attacker_power, attacker_toughness, attacker_keywords)
    prevented = max(attacker_power, 0)
    if others_power is not None:
        prevented = 0
        kills = others_power < attacker_toughness and (kills or others_power + max(power, 0) >= attacker_toughness)
    elif attacker_keywords & TRAMPLE:
        prevented = min(prevented, toughness)
    return encode_row(
        block=1.0,
        **body_columns(power, toughness, keywords),
        target_power=attacker_power / 6,
        target_toughness=attacker_toughness / 6,
        target_busy=1.0,
        kills=kills,
        dies=dies,
        saves=incoming >= my_life > incoming - prevented,
        swing=swing / EIGHTHS_PER_UNIT,
        face=prevented / my_life,
        exposed=(incoming - prevented) / my_life,
    )
