"""Attacks and blocks: an estimate of what a combat would come to, without playing it.

The defender is thought to block where that gains the most points (see ``board_value``), one block after the other; the
attacker to try sets of attackers against such blocks, and to mind what could strike back at those who stay home.
"""

from __future__ import annotations

from collections.abc import Sequence

from corral_games.card_battle.bots.board_value import judge_life, worth
from corral_games.card_battle.engine.cards import (
    BOUND,
    DEATHTOUCH,
    DEFENDER,
    FIRST_STRIKE,
    LIFELINK,
    MENACE,
    TRAMPLE,
    VIGILANCE,
)
from corral_games.card_battle.engine.combat import endurance
from corral_games.card_battle.engine.options import can_attack, can_block
from corral_games.card_battle.engine.pieces import PASS, Creature
from corral_games.card_battle.engine.rules import Duel

__all__ = ["plan_attack", "score_attacks", "score_blocks"]

_FEAR = 0.6
"""How much of the damage that might come back next turn is believed."""
_LIFELINK = 0.3
"""Points for each life that a blocker brings."""
_UNWANTED = -1.0
"""The score of a block that is not planned."""

_Pair = tuple[float, int, int, int]
"""A block by one: points from who dies, damage kept away, and the places of attacker and blocker in their lists."""
_Planned = tuple[float, int, int]
"""A block that the defender would choose: points from it, and the places of attacker and blocker."""


def score_attacks(duel: Duel) -> list[float]:
    """Score each legal action while attackers are chosen, in points; to be done is 0."""
    scores = {0: 0.0}
    for attacker, points in plan_attack(duel):
        scores[attacker.uid] = points
    return [scores[action.subject] for action in duel.legal()]


def plan_attack(duel: Duel) -> list[tuple[Creature, float]]:
    """Weigh all creatures that may still attack: what each adds to the best attack that was found, in points.

    Tried are all of them and none, and then, from the better of the two, to change one's mind about each.
    """
    seat = duel.to_act
    mine, other = duel.sides[seat], duel.sides[1 - seat]
    attackers = [creature for creature in mine.creatures if creature.attacking]
    sure = len(attackers)
    attackers += [creature for creature in mine.creatures if can_attack(creature)]
    blockers = [creature for creature in other.creatures if not (creature.tapped or creature.keywords & BOUND)]
    pairs = [_list_pairs(place, attacker, blockers) for place, attacker in enumerate(attackers)]
    back = _StrikeBack(duel, seat)

    def value(chosen: list[int]) -> float:
        lost, _ = _answer(chosen, attackers, blockers, pairs, other.life)
        return -lost - back.cost([attackers[place] for place in chosen[sure:]])

    chosen = list(range(len(attackers)))
    best, none = value(chosen), value(chosen[:sure])
    if len(chosen) == sure + 1:
        return [(attackers[sure], best - none)]
    places = range(len(attackers) - 1, sure - 1, -1)
    if none > best:
        chosen, best, places = chosen[:sure], none, range(sure, len(attackers))
    margins = []
    for place in places:
        inside = place in chosen
        changed = [one for one in chosen if one != place] if inside else [*chosen, place]
        points = value(changed)
        margins.append((attackers[place], best - points if inside else points - best))
        if points > best:
            chosen, best = changed, points
    return margins


class _StrikeBack:
    """What the other side's next attack may cost, by which of one's creatures are tapped then."""

    def __init__(self, duel: Duel, seat: int) -> None:
        mine, other = duel.sides[seat], duel.sides[1 - seat]
        self.life = mine.life
        self.homes = sum(not (creature.tapped or creature.keywords & BOUND) for creature in mine.creatures)
        powers = [foe.power for foe in other.creatures if foe.power > 0 and not foe.keywords & (DEFENDER | BOUND)]
        powers.sort(reverse=True)
        self.powers = powers
        self.calm = judge_life(self.life - sum(powers[self.homes :]))

    def cost(self, leaving: list[Creature]) -> float:
        """Judge the damage that is not stopped if these attack: each one at home stops one."""
        gone = 0
        for creature in leaving:
            if not creature.keywords & VIGILANCE:
                gone += 1
        if not gone:
            return 0.0
        damage = sum(self.powers[max(self.homes - gone, 0) :])
        return _FEAR * (self.calm - judge_life(self.life - damage))


def score_blocks(duel: Duel) -> list[float]:
    """Score each legal action while blockers are chosen, in points; to be done is 0."""
    options = duel.legal()
    mine, other = duel.sides[duel.to_act], duel.sides[duel.active]
    attackers = [creature for creature in other.creatures if creature.attacking]
    groups = {attacker.uid: [one for one in mine.creatures if one.blocking == attacker.uid] for attacker in attackers}
    blockers = [one for one in mine.creatures if not (one.tapped or one.blocking or one.keywords & BOUND)]
    scores: dict[tuple[int, int], float] = {}
    for attacker in attackers:
        group = groups[attacker.uid]
        if group:
            before = _gang(attacker, group)
            for blocker in blockers:
                scores[blocker.uid, attacker.uid] = _gang(attacker, [*group, blocker]) - before
    if options[0].kind == PASS:
        free = [attacker for attacker in attackers if not groups[attacker.uid]]
        pairs = [_list_pairs(place, attacker, blockers) for place, attacker in enumerate(free)]
        _, plan = _answer(range(len(free)), free, blockers, pairs, mine.life)
        for points, place, other_place in plan:
            scores[blockers[other_place].uid, free[place].uid] = points
    return [
        0.0 if action.kind == PASS else scores.get((action.subject, action.target), _UNWANTED) for action in options
    ]


def _list_pairs(place: int, attacker: Creature, blockers: list[Creature]) -> list[_Pair]:
    """List the blocks of one attacker by one blocker."""
    if attacker.keywords & MENACE:
        return []
    pairs = []
    for other_place, blocker in enumerate(blockers):
        if can_block(attacker, blocker):
            gain, kept = _duel(attacker, blocker)
            pairs.append((gain, kept, place, other_place))
    return pairs


def _duel(attacker: Creature, blocker: Creature) -> tuple[float, int]:
    """Estimate a block by one: the defender's points from who dies, and the damage that it keeps away."""
    power, bite = attacker.power, blocker.power
    keywords, others = attacker.keywords, blocker.keywords
    hide = blocker.toughness - blocker.damage
    kills = power > 0 and (power >= hide or keywords & DEATHTOUCH != 0)
    falls = bite > 0 and (bite >= attacker.toughness - attacker.damage or others & DEATHTOUCH != 0)
    if kills and falls and (keywords ^ others) & FIRST_STRIKE:
        kills, falls = keywords & FIRST_STRIKE != 0, others & FIRST_STRIKE != 0
    gain = 0.0
    if kills:
        gain -= worth(bite, blocker.toughness, others)
    if falls:
        gain += worth(power, attacker.toughness, keywords)
    if others & LIFELINK and bite > 0:
        gain += _LIFELINK * bite
    if power <= 0:
        return gain, 0
    if keywords & TRAMPLE:
        return gain, min(power, 1 if keywords & DEATHTOUCH else hide)
    return gain, power


def _gang(attacker: Creature, group: list[Creature]) -> float:
    """Estimate a block by several: the defender's points from who dies."""
    health, keywords, left = attacker.toughness - attacker.damage, attacker.keywords, attacker.power
    dead: list[Creature] = []
    for blocker in sorted(group, key=endurance):
        need = 1 if keywords & DEATHTOUCH else endurance(blocker)
        if left >= need:
            dead.append(blocker)
            left -= need
    if not keywords & FIRST_STRIKE and _fells([one for one in group if one.keywords & FIRST_STRIKE], health):
        dead = []
    striking = group
    if keywords & FIRST_STRIKE:
        striking = [one for one in group if one not in dead or one.keywords & FIRST_STRIKE]
    points = worth(attacker.power, attacker.toughness, keywords) if _fells(striking, health) else 0.0
    for blocker in dead:
        points -= worth(blocker.power, blocker.toughness, blocker.keywords)
    return points


def _fells(group: list[Creature], health: int) -> bool:
    """Whether these together kill something that can take so much."""
    for blocker in group:
        if blocker.power > 0:
            health -= blocker.power if not blocker.keywords & DEATHTOUCH else health
    return health <= 0


def _answer(
    chosen: Sequence[int], attackers: list[Creature], blockers: list[Creature], pairs: list[list[_Pair]], life: int
) -> tuple[float, list[_Planned]]:
    """Plan the defender's blocks against chosen attackers: what all comes to for the defender, and the blocks."""
    damage = 0
    candidates: list[_Pair] = []
    for place in chosen:
        power = attackers[place].power
        if power > 0:
            damage += power
        candidates += pairs[place]
    now = judge_life(life - damage)
    points = now - judge_life(life)
    plan: list[_Planned] = []
    while candidates:
        most = 0.0
        for pair in candidates:
            gain = pair[0] + judge_life(life - damage + pair[1]) - now
            if gain > most:
                most, best = gain, pair
        if not most:
            break
        _, kept, place, other_place = best
        points += most
        damage -= kept
        now = judge_life(life - damage)
        plan.append((most, place, other_place))
        candidates = [pair for pair in candidates if pair[2] != place and pair[3] != other_place]
    if len(blockers) - len(plan) > 1 and len(chosen) > len(plan):
        used = {planned[2] for planned in plan}
        free = [place for place in range(len(blockers)) if place not in used]
        taken = {planned[1] for planned in plan}
        for place in chosen:
            if place not in taken and len(free) > 1:
                points += _double(place, attackers[place], blockers, free, life, damage, plan)
    return points, plan


def _double(
    place: int,
    attacker: Creature,
    blockers: list[Creature],
    free: list[int],
    life: int,
    damage: int,
    plan: list[_Planned],
) -> float:
    """Add the best block of an attacker by two of those who are free, if there is a good one."""
    able = [other for other in free if can_block(attacker, blockers[other])]
    kept = 0 if attacker.keywords & TRAMPLE else attacker.power
    relief = judge_life(life - damage + kept) - judge_life(life - damage)
    most = 0.0
    for index, first in enumerate(able):
        for second in able[index + 1 :]:
            gain = _gang(attacker, [blockers[first], blockers[second]]) + relief
            if gain > most:
                most, best = gain, (first, second)
    if most:
        for other in best:
            plan.append((most, place, other))
            free.remove(other)
    return most
