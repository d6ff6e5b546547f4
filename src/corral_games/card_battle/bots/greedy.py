"""The greedy player's eyes: one step ahead and no plan. Cards by what they bring, each attack and each block by itself.

An attacker expects the answer that is worst for it, from one blocker alone, and does not mind what could strike back. A
blocker looks at its own fight and at the damage that it keeps away. What several could do together is for those who
search (see ``tactics``).
"""

from __future__ import annotations

from corral_games.card_battle.bots.action_value import score_options
from corral_games.card_battle.bots.board_value import judge_life, worth
from corral_games.card_battle.bots.lookahead import fight
from corral_games.card_battle.engine.cards import BOUND, MENACE, TRAMPLE
from corral_games.card_battle.engine.options import can_block
from corral_games.card_battle.engine.pieces import ATTACK, BLOCK, BLOCKING, RAIDING, Action, Creature
from corral_games.card_battle.engine.rules import Duel

__all__ = ["greedy_option"]


def greedy_option(duel: Duel) -> Action:
    """Find what looks best, one step ahead; of equals, the first, which is to pass."""
    options = duel.legal()
    if duel.stack or duel.phase not in (RAIDING, BLOCKING):
        scores = score_options(duel)
    elif duel.phase == RAIDING:
        scores = [_score_attack(duel, action) if action.kind == ATTACK else 0.0 for action in options]
    else:
        scores = [_score_block(duel, action) if action.kind == BLOCK else 0.0 for action in options]
    return options[scores.index(max(scores))]


def _score_attack(duel: Duel, action: Action) -> float:
    """Score an attack by the worst that one blocker, or none, could make of it."""
    attacker, other = duel.find(action.subject), duel.sides[1 - duel.to_act]
    assert attacker is not None
    hit = judge_life(other.life) - judge_life(other.life - attacker.power)
    able = [
        blocker
        for blocker in other.creatures
        if not (blocker.tapped or blocker.keywords & BOUND) and can_block(attacker, blocker)
    ]
    if attacker.keywords & MENACE and len(able) < 2:
        return hit
    return min([hit, *(_score_fight(attacker, blocker) for blocker in able)])


def _score_block(duel: Duel, action: Action) -> float:
    """Score a block by who dies of it, and by the damage that no longer comes."""
    blocker, attacker = duel.find(action.subject), duel.find(action.target)
    assert blocker is not None and attacker is not None
    points = _score_fight(blocker, attacker)
    if attacker.blocked or attacker.keywords & TRAMPLE:
        return points
    life = duel.sides[duel.to_act].life
    coming = sum(foe.power for foe in duel.sides[duel.active].creatures if foe.attacking and not foe.blocked)
    return points + judge_life(life - coming + attacker.power) - judge_life(life - coming)


def _score_fight(one: Creature, other: Creature) -> float:
    """Score a fight of two for the first of them, in points."""
    ends = fight(
        one.power,
        one.toughness - one.damage,
        one.keywords,
        other.power,
        other.toughness - other.damage,
        other.keywords,
    )
    won = worth(other.power, other.toughness, other.keywords) if ends.second_dies else 0.0
    return won - (worth(one.power, one.toughness, one.keywords) if ends.first_dies else 0.0)
