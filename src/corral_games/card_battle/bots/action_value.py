"""The value of each legal action, in points more than passing, without search.

The searching bots use it as the prior of an action, and the action features show it to policies (``swing``). It depends
only on what the player to act can see.
"""

from __future__ import annotations

from corral_games.card_battle.bots.board_value import CARD_POINTS, DEFEAT_POINTS, side_value
from corral_games.card_battle.bots.effect_value import HOLD_VALUE, card_value
from corral_games.card_battle.bots.tactics import plan_attack, score_attacks, score_blocks
from corral_games.card_battle.engine.cards import PIPS, SPELL, TARGET
from corral_games.card_battle.engine.combat import deal_damage
from corral_games.card_battle.engine.effects import EFFECTS, apply_effects
from corral_games.card_battle.engine.pieces import ATTACK, BLOCKING, CAST, FIGHTING, LAND, MAIN, RAIDING, Action
from corral_games.card_battle.engine.rules import Duel

__all__ = ["best_option", "play_best", "score_options"]

_LAND_POINTS = 30.0
"""Points of playing a land: more than a spell has that does not win at once, so that the land is played first."""


def score_options(duel: Duel) -> list[float]:
    """Return the points of each legal action, in the order of ``duel.legal()``."""
    if not duel.stack:
        if duel.phase == RAIDING:
            return score_attacks(duel)
        if duel.phase == BLOCKING:
            return score_blocks(duel)
        if duel.phase == FIGHTING:
            return _score_instants_in_combat(duel)
    return [_score_card(duel, action) for action in duel.legal()]


def best_option(duel: Duel) -> Action:
    """Return the legal action with the highest score; of equals the first."""
    scores = score_options(duel)
    return duel.legal()[scores.index(max(scores))]


def play_best(duel: Duel) -> None:
    """Play ``best_option``; while attackers are chosen, declare all of one plan, without a new plan after each."""
    options = duel.legal()
    if duel.stack or duel.phase != RAIDING:
        has_one_land = options[1].kind == LAND and (len(options) < 3 or options[2].kind != LAND)
        plays_land = duel.phase == MAIN and not duel.stack and has_one_land
        duel.apply(options[1] if plays_land else best_option(duel))
        return
    turn = duel.turn
    attackers = sorted([attacker.uid for attacker, points in plan_attack(duel) if points > 0])
    for uid in attackers:
        action = Action(ATTACK, uid)
        if action in duel.legal():
            duel.apply(action)
            if duel.phase != RAIDING or duel.turn != turn:
                return
    duel.apply(options[0])


def _score_card(duel: Duel, action: Action) -> float:
    """Return the points of a land or a spell: its value minus the value of holding the card."""
    kind, card, target = action
    if kind == CAST:
        creature = duel.find(target) if target > 0 and TARGET[card] != SPELL else None
        return card_value(duel, duel.to_act, card, creature) - HOLD_VALUE[card]
    return _score_land(duel, card) if kind == LAND else 0.0


def _score_land(duel: Duel, land: int) -> float:
    """Return the points of a land, more for a colour that cards in hand require and the lands on the board lack."""
    side = duel.sides[duel.to_act]
    n_lands = side.lands[land]
    points = _LAND_POINTS - 0.5 * n_lands
    for card in side.hand:
        for colour, number in PIPS[card]:
            if colour == land:
                points += 1.0 if number > n_lands else 0.1
    return points


def _score_instants_in_combat(duel: Duel) -> list[float]:
    """Return the points of each legal action before combat damage, by dealing the damage on a copy with and without it.

    The values depend only on the number of cards that are drawn on the copy, not on which cards they are.
    """
    seat = duel.to_act
    scores = []
    for kind, card, target in duel.legal():
        after = duel.clone()
        cost = 0.0
        if kind == CAST:
            after.sides[seat].hand.remove(card)
            apply_effects(after, seat, after.find(target) if target > 0 else None, EFFECTS[card])
            cost = max(HOLD_VALUE[card] - CARD_POINTS, 0.0)
        if after.winner is None:
            deal_damage(after)
        if after.winner is None:
            scores.append(side_value(after.sides[seat]) - side_value(after.sides[1 - seat]) - cost)
        else:
            scores.append(0.0 if after.winner == 2 else -DEFEAT_POINTS if after.winner == seat else DEFEAT_POINTS)
    return [score - scores[0] for score in scores]
