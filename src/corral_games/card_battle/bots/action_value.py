"""What each legal action is worth, in points: what the searching players look at first, and what policies may see.

Only what the player to act may see counts. Each decision is scored by itself, against doing nothing, which is 0.
"""

from __future__ import annotations

from corral_games.card_battle.bots.board_value import CARD, DEFEAT, judge_side
from corral_games.card_battle.bots.effect_value import RESERVE, appraise
from corral_games.card_battle.bots.tactics import plan_attack, score_attacks, score_blocks
from corral_games.card_battle.engine.cards import PIPS, SPELL, TARGET
from corral_games.card_battle.engine.combat import deal_damage
from corral_games.card_battle.engine.effects import EFFECTS, perform
from corral_games.card_battle.engine.pieces import ATTACK, BLOCKING, CAST, FIGHTING, LAND, MAIN, RAIDING, Action
from corral_games.card_battle.engine.rules import Duel

__all__ = ["best_option", "play_best", "score_options"]

_LAND_FIRST = 30.0
"""A land is played before anything else."""


def score_options(duel: Duel) -> list[float]:
    """Score the legal actions, in their order."""
    if not duel.stack:
        if duel.phase == RAIDING:
            return score_attacks(duel)
        if duel.phase == BLOCKING:
            return score_blocks(duel)
        if duel.phase == FIGHTING:
            return _score_fight(duel)
    return [_score_card(duel, action) for action in duel.legal()]


def best_option(duel: Duel) -> Action:
    """Find the legal action with the highest score; of equals, the first."""
    scores = score_options(duel)
    return duel.legal()[scores.index(max(scores))]


def play_best(duel: Duel) -> None:
    """Play the best option; while attackers are chosen, all that the plan has."""
    options = duel.legal()
    if duel.stack or duel.phase != RAIDING:
        only_land = options[1].kind == LAND and (len(options) < 3 or options[2].kind != LAND)
        first = duel.phase == MAIN and not duel.stack and only_land
        duel.apply(options[1] if first else best_option(duel))
        return
    turn = duel.turn
    chosen = sorted([attacker.uid for attacker, points in plan_attack(duel) if points > 0])
    for uid in chosen:
        action = Action(ATTACK, uid)
        if action in duel.legal():
            duel.apply(action)
            if duel.phase != RAIDING or duel.turn != turn:
                return
    duel.apply(options[0])


def _score_card(duel: Duel, action: Action) -> float:
    """Score a land or a spell by what it brings, over what it is worth to keep it."""
    kind, card, target = action
    if kind == CAST:
        creature = duel.find(target) if target > 0 and TARGET[card] != SPELL else None
        return appraise(duel, duel.to_act, card, creature) - RESERVE[card]
    return _score_land(duel, card) if kind == LAND else 0.0


def _score_land(duel: Duel, land: int) -> float:
    """Prefer the colour that the hand waits for."""
    side = duel.sides[duel.to_act]
    there = side.lands[land]
    points = _LAND_FIRST - 0.5 * there
    for card in side.hand:
        for colour, number in PIPS[card]:
            if colour == land:
                points += 1.0 if number > there else 0.1
    return points


def _score_fight(duel: Duel) -> list[float]:
    """Score instants in combat by dealing the damage of the combat with and without them, on a copy.

    Cards that are drawn on the copy are only counted, never looked at.
    """
    seat = duel.to_act
    scores = []
    for kind, card, target in duel.legal():
        after = duel.clone()
        cost = 0.0
        if kind == CAST:
            after.sides[seat].hand.remove(card)
            perform(after, seat, after.find(target) if target > 0 else None, EFFECTS[card])
            cost = max(RESERVE[card] - CARD, 0.0)
        if after.winner is None:
            deal_damage(after)
        if after.winner is None:
            scores.append(judge_side(after.sides[seat]) - judge_side(after.sides[1 - seat]) - cost)
        else:
            scores.append(0.0 if after.winner == 2 else -DEFEAT if after.winner == seat else DEFEAT)
    return [score - scores[0] for score in scores]
