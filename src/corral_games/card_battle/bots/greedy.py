"""The choice of the greedy bot: the best action one step ahead, with each attack and each block scored by itself.

An attack is scored by the blocker that is worst for it, and without the opponent's next attack. A block is scored by
that fight and by the damage that it prevents. Only the searching bots evaluate several attackers or blockers together
(see ``tactics``).
"""

from __future__ import annotations

from corral_games.card_battle.bots.action_value import score_options
from corral_games.card_battle.bots.board_value import creature_value, life_value
from corral_games.card_battle.bots.lookahead import fight_creatures
from corral_games.card_battle.engine.cards import BOUND, MENACE, TRAMPLE
from corral_games.card_battle.engine.options import can_block
from corral_games.card_battle.engine.pieces import ATTACK, BLOCK, BLOCKING, RAIDING, Action, Creature
from corral_games.card_battle.engine.rules import Duel

__all__ = ["greedy_option"]


def greedy_option(duel: Duel) -> Action:
    """Return the legal action with the highest score; of equals the first (passing is the first of all)."""
    options = duel.legal()
    if duel.stack or duel.phase not in (RAIDING, BLOCKING):
        scores = score_options(duel)
    elif duel.phase == RAIDING:
        scores = [_score_attack(duel, action) if action.kind == ATTACK else 0.0 for action in options]
    else:
        scores = [_score_block(duel, action) if action.kind == BLOCK else 0.0 for action in options]
    return options[scores.index(max(scores))]


def _score_attack(duel: Duel, action: Action) -> float:
    """Return the points of an attack if the opponent answers with the best single blocker, or with none."""
    attacker, foe = duel.find(action.subject), duel.sides[1 - duel.to_act]
    assert attacker is not None
    unblocked = life_value(foe.life) - life_value(foe.life - attacker.power)
    blockers = [
        blocker
        for blocker in foe.creatures
        if not (blocker.tapped or blocker.keywords & BOUND) and can_block(attacker, blocker)
    ]
    if attacker.keywords & MENACE and len(blockers) < 2:
        return unblocked
    return min([unblocked, *(_score_fight(attacker, blocker) for blocker in blockers)])


def _score_block(duel: Duel, action: Action) -> float:
    """Return the points of a block: the fight, and the damage that it prevents."""
    blocker, attacker = duel.find(action.subject), duel.find(action.target)
    assert blocker is not None and attacker is not None
    points = _score_fight(blocker, attacker)
    if attacker.blocked or attacker.keywords & TRAMPLE:
        return points
    life = duel.sides[duel.to_act].life
    damage = sum(c.power for c in duel.sides[duel.active].creatures if c.attacking and not c.blocked)
    return points + life_value(life - damage + attacker.power) - life_value(life - damage)


def _score_fight(creature: Creature, foe: Creature) -> float:
    """Return the points that a fight between two creatures gains for the owner of the first."""
    result = fight_creatures(creature, foe)
    gain = creature_value(foe.power, foe.toughness, foe.keywords) if result.second_dies else 0.0
    loss = creature_value(creature.power, creature.toughness, creature.keywords) if result.first_dies else 0.0
    return gain - loss
