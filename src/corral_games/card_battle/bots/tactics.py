"""The value of attacks and blocks, estimated without playing the combat, in points (see ``board_value``).

The defender is assumed to block greedily: one block after the other, each time the one that gains the most points. The
attacker tries sets of attackers against such blocks, and subtracts the damage that the opponent's next attack could do
while the attackers are tapped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from corral_games.card_battle.bots.board_value import creature_value, life_value
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
from corral_games.card_battle.engine.combat import remaining_toughness
from corral_games.card_battle.engine.options import can_attack, can_block
from corral_games.card_battle.engine.pieces import PASS, Creature
from corral_games.card_battle.engine.rules import Duel

__all__ = ["plan_attack", "score_attacks", "score_blocks"]

_COUNTERATTACK_WEIGHT = 0.6
"""The weight of the damage that the opponent's next attack might do."""
_LIFELINK_POINTS = 0.3
"""Points for each life that a blocker with lifelink gains."""
_UNPLANNED_BLOCK = -1.0
"""The score of a block that is not in the plan."""


_Candidate = tuple[float, int, int, int]
"""A possible block by one creature: the defender's points from the creatures that die, the damage to the player that it
prevents, and the indices of attacker and blocker in their lists. A plain tuple, because the search makes and reads
millions of them."""


class _PlannedBlock(NamedTuple):
    """A block that the defender is assumed to choose."""

    points: float
    """The defender's points, including those for the prevented damage."""
    attacker: int
    """The index of the attacker in its list."""
    blocker: int
    """The index of the blocker in its list."""


def score_attacks(duel: Duel) -> list[float]:
    """Return the points of each legal action while attackers are chosen; 0 for declaring no more."""
    scores = {0: 0.0}
    for attacker, points in plan_attack(duel):
        scores[attacker.uid] = points
    return [scores[action.subject] for action in duel.legal()]


def plan_attack(duel: Duel) -> list[tuple[Creature, float]]:
    """Return the creatures that can still be declared as attackers, each with the points that it adds to the attack.

    A local search: it begins with all of them or with none, whichever has the higher value, then adds or removes each
    creature in turn and keeps every improvement.
    """
    seat = duel.to_act
    me, foe = duel.sides[seat], duel.sides[1 - seat]
    attackers = [creature for creature in me.creatures if creature.attacking]
    n_declared = len(attackers)
    attackers += [creature for creature in me.creatures if can_attack(creature)]
    blockers = [creature for creature in foe.creatures if not (creature.tapped or creature.keywords & BOUND)]
    candidates = [_list_candidates(i, attacker, blockers) for i, attacker in enumerate(attackers)]
    counterattack = _Counterattack(duel, seat)

    def value(chosen: list[int]) -> float:
        defender_points, _ = _plan_blocks(chosen, attackers, blockers, candidates, foe.life)
        return -defender_points - counterattack.cost([attackers[i] for i in chosen[n_declared:]])

    chosen = list(range(len(attackers)))
    best, without = value(chosen), value(chosen[:n_declared])
    if len(chosen) == n_declared + 1:
        return [(attackers[n_declared], best - without)]
    undeclared = range(len(attackers) - 1, n_declared - 1, -1)
    if without > best:
        chosen, best, undeclared = chosen[:n_declared], without, range(n_declared, len(attackers))
    margins = []
    for i in undeclared:
        is_chosen = i in chosen
        changed = [other for other in chosen if other != i] if is_chosen else [*chosen, i]
        points = value(changed)
        margins.append((attackers[i], best - points if is_chosen else points - best))
        if points > best:
            chosen, best = changed, points
    return margins


class _Counterattack:
    """The damage of the opponent's next attack, depending on which creatures of ``seat`` are tapped by attacking."""

    def __init__(self, duel: Duel, seat: int) -> None:
        me, foe = duel.sides[seat], duel.sides[1 - seat]
        self.life = me.life
        self.n_blockers = sum(not (creature.tapped or creature.keywords & BOUND) for creature in me.creatures)
        powers = [c.power for c in foe.creatures if c.power > 0 and not c.keywords & (DEFENDER | BOUND)]
        powers.sort(reverse=True)
        self.powers = powers
        self.value_without_attack = life_value(self.life - sum(powers[self.n_blockers :]))

    def cost(self, attackers: list[Creature]) -> float:
        """Return the points lost if these creatures attack; each creature that stays untapped blocks one attacker."""
        n_tapped = 0
        for creature in attackers:
            if not creature.keywords & VIGILANCE:
                n_tapped += 1
        if not n_tapped:
            return 0.0
        damage = sum(self.powers[max(self.n_blockers - n_tapped, 0) :])
        return _COUNTERATTACK_WEIGHT * (self.value_without_attack - life_value(self.life - damage))


def score_blocks(duel: Duel) -> list[float]:
    """Return the points of each legal action while blockers are chosen; 0 for declaring no more."""
    options = duel.legal()
    me, foe = duel.sides[duel.to_act], duel.sides[duel.active]
    attackers = [creature for creature in foe.creatures if creature.attacking]
    groups = {
        attacker.uid: [creature for creature in me.creatures if creature.blocking == attacker.uid]
        for attacker in attackers
    }
    blockers = [
        creature for creature in me.creatures if not (creature.tapped or creature.blocking or creature.keywords & BOUND)
    ]
    scores: dict[tuple[int, int], float] = {}  # by the uids of blocker and attacker
    for attacker in attackers:
        group = groups[attacker.uid]
        if group:
            before = _group_block_value(attacker, group)
            for blocker in blockers:
                scores[blocker.uid, attacker.uid] = _group_block_value(attacker, [*group, blocker]) - before
    if options[0].kind == PASS:
        unblocked = [attacker for attacker in attackers if not groups[attacker.uid]]
        candidates = [_list_candidates(i, attacker, blockers) for i, attacker in enumerate(unblocked)]
        _, plan = _plan_blocks(range(len(unblocked)), unblocked, blockers, candidates, me.life)
        for block in plan:
            scores[blockers[block.blocker].uid, unblocked[block.attacker].uid] = block.points
    return [
        0.0 if action.kind == PASS else scores.get((action.subject, action.target), _UNPLANNED_BLOCK)
        for action in options
    ]


def _list_candidates(attacker_index: int, attacker: Creature, blockers: list[Creature]) -> list[_Candidate]:
    """Return the possible blocks of an attacker by a single creature."""
    if attacker.keywords & MENACE:
        return []
    candidates = []
    for i, blocker in enumerate(blockers):
        if can_block(attacker, blocker):
            gain, prevented = _single_block_value(attacker, blocker)
            candidates.append((gain, prevented, attacker_index, i))
    return candidates


def _single_block_value(attacker: Creature, blocker: Creature) -> tuple[float, int]:
    """Return the defender's points from the creatures that die in a block by one, and the damage that it prevents."""
    power, blocker_power = attacker.power, blocker.power
    keywords, blocker_keywords = attacker.keywords, blocker.keywords
    blocker_toughness = blocker.toughness - blocker.damage
    blocker_dies = power > 0 and (power >= blocker_toughness or keywords & DEATHTOUCH != 0)
    attacker_dies = blocker_power > 0 and (
        blocker_power >= attacker.toughness - attacker.damage or blocker_keywords & DEATHTOUCH != 0
    )
    if blocker_dies and attacker_dies and (keywords ^ blocker_keywords) & FIRST_STRIKE:
        blocker_dies, attacker_dies = keywords & FIRST_STRIKE != 0, blocker_keywords & FIRST_STRIKE != 0
    gain = 0.0
    if blocker_dies:
        gain -= creature_value(blocker_power, blocker.toughness, blocker_keywords)
    if attacker_dies:
        gain += creature_value(power, attacker.toughness, keywords)
    if blocker_keywords & LIFELINK and blocker_power > 0:
        gain += _LIFELINK_POINTS * blocker_power
    if power <= 0:
        return gain, 0
    if keywords & TRAMPLE:
        return gain, min(power, 1 if keywords & DEATHTOUCH else blocker_toughness)
    return gain, power


def _group_block_value(attacker: Creature, group: list[Creature]) -> float:
    """Return the defender's points from the creatures that die in a block by several."""
    toughness, keywords = remaining_toughness(attacker), attacker.keywords
    damage_left = attacker.power
    dead: list[Creature] = []
    for blocker in sorted(group, key=remaining_toughness):
        lethal = 1 if keywords & DEATHTOUCH else remaining_toughness(blocker)
        if damage_left >= lethal:
            dead.append(blocker)
            damage_left -= lethal
    dealing = group
    if keywords & FIRST_STRIKE:
        dealing = [blocker for blocker in group if blocker not in dead or blocker.keywords & FIRST_STRIKE]
    elif _kill([blocker for blocker in group if blocker.keywords & FIRST_STRIKE], toughness):
        dead = []
    points = creature_value(attacker.power, attacker.toughness, keywords) if _kill(dealing, toughness) else 0.0
    for blocker in dead:
        points -= creature_value(blocker.power, blocker.toughness, blocker.keywords)
    return points


def _kill(group: list[Creature], toughness: int) -> bool:
    """Return whether the damage of a group kills a creature with this remaining toughness."""
    for creature in group:
        if creature.power > 0:
            toughness -= creature.power if not creature.keywords & DEATHTOUCH else toughness
    return toughness <= 0


def _plan_blocks(
    chosen: Sequence[int],
    attackers: list[Creature],
    blockers: list[Creature],
    candidates: list[list[_Candidate]],
    life: int,
) -> tuple[float, list[_PlannedBlock]]:
    """Plan the defender's blocks against the attackers at the indices ``chosen``; ``candidates`` are by attacker.

    Returns the points of the combat for the defender, and the blocks: first those by single creatures, then those by
    two of the creatures that are left.
    """
    damage = 0
    possible: list[_Candidate] = []
    for i in chosen:
        power = attackers[i].power
        if power > 0:
            damage += power
        possible += candidates[i]
    value = life_value(life - damage)
    points = value - life_value(life)
    plan: list[_PlannedBlock] = []
    while possible:
        highest = 0.0
        for candidate in possible:
            gain = candidate[0] + life_value(life - damage + candidate[1]) - value
            if gain > highest:
                highest, best = gain, candidate
        if not highest:
            break
        _, prevented, attacker, blocker = best
        points += highest
        damage -= prevented
        value = life_value(life - damage)
        plan.append(_PlannedBlock(highest, attacker, blocker))
        possible = [candidate for candidate in possible if candidate[2] != attacker and candidate[3] != blocker]
    if len(blockers) - len(plan) > 1 and len(chosen) > len(plan):
        blocked = {block.attacker for block in plan}
        used = {block.blocker for block in plan}
        free = [i for i in range(len(blockers)) if i not in used]
        for i in chosen:
            if i not in blocked and len(free) > 1:
                points += _plan_double_block(i, attackers[i], blockers, free, life - damage, plan)
    return points, plan


def _plan_double_block(
    attacker_index: int,
    attacker: Creature,
    blockers: list[Creature],
    free: list[int],
    life: int,
    plan: list[_PlannedBlock],
) -> float:
    """Add the best block of an attacker by two creatures to the plan, if one gains points, and return the points.

    ``free`` are the indices of blockers that are not in the plan; those that are used are removed. ``life`` is what the
    defender has after the damage that the plan does not prevent.
    """
    able = [i for i in free if can_block(attacker, blockers[i])]
    prevented = 0 if attacker.keywords & TRAMPLE else attacker.power
    life_gain = life_value(life + prevented) - life_value(life)
    highest = 0.0
    for position, first in enumerate(able):
        for second in able[position + 1 :]:
            gain = _group_block_value(attacker, [blockers[first], blockers[second]]) + life_gain
            if gain > highest:
                highest, best = gain, (first, second)
    if highest:
        for i in best:
            plan.append(_PlannedBlock(highest, attacker_index, i))
            free.remove(i)
    return highest
