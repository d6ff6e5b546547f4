"""What one side of a duel sees, as 36 numbers between -1 and 2, each with a name in ``FEATURES``.

Only what the rules show to that side is read: its own hand, the size of the other one, and all that lies open.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from corral_games.card_battle.engine.cards import (
    BOUND,
    COST,
    CREATURE,
    DEFENDER,
    FLYING,
    HASTE,
    KIND,
    MENACE,
    PIPS,
    REACH,
    TERRAIN,
)
from corral_games.card_battle.engine.pieces import BLOCKING, FIGHTING, MAIN, RAIDING, Creature
from corral_games.card_battle.engine.state import State

__all__ = ["FEATURES", "HIGH", "LOW", "lead", "observe"]

LOW, HIGH = -1.0, 2.0
"""Bounds of every feature."""

FEATURES = {
    "my_life": "life, 1 = 20",
    "foe_life": "the other player's life, 1 = 20",
    "lead": "who leads in life and on the board, -1 to 1",
    "my_library": "cards in the library, 1 = 60",
    "foe_hand": "cards in the other player's hand, 1 = 7",
    "my_lands": "lands, 1 = 8",
    "foe_lands": "the other side's lands, 1 = 8",
    "my_mana": "untapped lands, 1 = 8",
    "foe_mana": "the other side's untapped lands, 1 = 8",
    "land_drop": "1 while a land may still be played this turn",
    "my_turn": "1 in one's own turn",
    "main": "1 while lands and spells are played",
    "raiding": "1 while attackers are chosen",
    "blocking": "1 while blockers are chosen",
    "fighting": "1 after blocks, before the damage",
    "turn": "turns of both players so far, 1 = 20",
    "threat": "cost of the other side's spell that waits to resolve, 1 = 6, and 0.2 more; 0 if there is none",
    "my_creatures": "creatures, 1 = 6",
    "foe_creatures": "the other side's creatures, 1 = 6",
    "my_power": "power on the board, 1 = 15",
    "foe_power": "the other side's power, 1 = 15",
    "my_toughness": "toughness on the board less damage, 1 = 15",
    "foe_toughness": "the other side's toughness less damage, 1 = 15",
    "my_evasion": "power that the other side's untapped creatures cannot block, 1 = 10",
    "foe_evasion": "the other side's power that one's own untapped creatures cannot block, 1 = 10",
    "my_ready": "power that could attack now, or does, 1 = 15",
    "my_guards": "creatures that could block, 1 = 6",
    "foe_guards": "the other side's creatures that could block, 1 = 6",
    "raid": "power of attackers that nobody blocks: one's own above 0, the other side's below, 1 = 10",
    "blocked": "power of attackers that are blocked: one's own above 0, the other side's below, 1 = 10",
    "lethal": "1 if the unblocked attackers will win the game, -1 if they will lose it",
    "my_charms": "lasting effects on the board less those of the other side, 1 = 3",
    "hand_lands": "lands in hand, 1 = 4",
    "hand_creatures": "creatures in hand, 1 = 4",
    "hand_spells": "other cards in hand, 1 = 4",
    "castable": "cards in hand that the untapped lands can pay for, 1 = 4",
}
"""The observation, in order: name and meaning. What is counted stops at 2 times its 1."""

_PHASES = {
    MAIN: (1.0, 0.0, 0.0, 0.0),
    RAIDING: (0.0, 1.0, 0.0, 0.0),
    BLOCKING: (0.0, 0.0, 1.0, 0.0),
    FIGHTING: (0.0, 0.0, 0.0, 1.0),
}
_AIR = FLYING | REACH


def _shares(unit: int, most: int) -> tuple[float, ...]:
    """0, 1, … ``most`` counted in units, stopping at ``HIGH``."""
    return tuple(min(number / unit, HIGH) for number in range(most + 1))


_BY_4, _BY_6, _BY_7, _BY_8, _BY_60 = _shares(4, 64), _shares(6, 64), _shares(7, 64), _shares(8, 64), _shares(60, 64)


class _Force:
    """What the creatures of one side amount to."""

    __slots__ = ("air_guards", "blocked", "flying", "guards", "menace", "power", "raid", "ready", "toughness")

    def __init__(self, creatures: list[Creature]) -> None:
        power = toughness = flying = menace = guards = air_guards = ready = raid = blocked = 0
        for creature in creatures:
            strength, keywords = creature.power, creature.keywords
            if strength < 0:
                strength = 0
            toughness += creature.toughness - creature.damage
            power += strength
            if creature.attacking:
                ready += strength
                if creature.blocked:
                    blocked += strength
                else:
                    raid += strength
            elif not creature.tapped:
                if keywords & BOUND:
                    continue
                guards += 1
                if keywords & _AIR:
                    air_guards += 1
                if not keywords & DEFENDER and (not creature.sick or keywords & HASTE):
                    ready += strength
            if keywords & FLYING:
                flying += strength
            elif keywords & MENACE:
                menace += strength
        self.power, self.toughness, self.flying, self.menace = power, toughness, flying, menace
        self.guards, self.air_guards, self.ready, self.raid, self.blocked = guards, air_guards, ready, raid, blocked

    def evasion(self, other: _Force) -> int:
        """Power that the other side has nobody to block with."""
        if not other.guards:
            return self.power
        return (0 if other.air_guards else self.flying) + (self.menace if other.guards < 2 else 0)


def observe(state: State, seat: int) -> npt.NDArray[np.float32]:
    """What ``seat`` sees: a new array of 36 numbers, in the order of ``FEATURES``."""
    me, foe = state.sides[seat], state.sides[1 - seat]
    mine, theirs = _Force(me.creatures), _Force(foe.creatures)
    mana, untapped = sum(me.untapped), me.untapped
    lands = creatures = castable = 0
    for card in me.hand:
        kind = KIND[card]
        if kind == TERRAIN:
            lands += 1
            continue
        if kind == CREATURE:
            creatures += 1
        if COST[card] <= mana:
            for colour, number in PIPS[card]:
                if untapped[colour] < number:
                    break
            else:
                castable += 1
    threat = 0.0
    if state.stack and state.stack[-1].seat != seat:
        threat = 0.2 + COST[state.stack[-1].card] / 6
    lethal = 1.0 if 0 < foe.life <= mine.raid else -1.0 if 0 < me.life <= theirs.raid else 0.0
    my_turn = state.active == seat
    phase = _PHASES[state.phase]
    return np.array(
        (
            _clipped(me.life / 20),
            _clipped(foe.life / 20),
            _lead(me.life - foe.life, mine.power + mine.toughness - theirs.power - theirs.toughness),
            _BY_60[len(me.library)],
            _BY_7[len(foe.hand)],
            _BY_8[sum(me.lands)],
            _BY_8[sum(foe.lands)],
            _BY_8[mana],
            _BY_8[sum(foe.untapped)],
            1.0 if my_turn and not me.land_played else 0.0,
            1.0 if my_turn else 0.0,
            phase[0],
            phase[1],
            phase[2],
            phase[3],
            _clipped(state.turn / 20),
            _clipped(threat),
            _BY_6[len(me.creatures)],
            _BY_6[len(foe.creatures)],
            _clipped(mine.power / 15),
            _clipped(theirs.power / 15),
            _clipped(mine.toughness / 15),
            _clipped(theirs.toughness / 15),
            _clipped(mine.evasion(theirs) / 10),
            _clipped(theirs.evasion(mine) / 10),
            _clipped(mine.ready / 15),
            _BY_6[mine.guards],
            _BY_6[theirs.guards],
            _clipped((mine.raid - theirs.raid) / 10),
            _clipped((mine.blocked - theirs.blocked) / 10),
            lethal,
            _clipped((len(me.charms) - len(foe.charms)) / 3),
            _BY_4[lands],
            _BY_4[creatures],
            _BY_4[len(me.hand) - lands - creatures],
            _BY_4[castable],
        ),
        np.float32,
    )


def lead(state: State, seat: int) -> float:
    """Who leads, from what lies open: near 1 if ``seat`` does, near -1 if the other side does."""
    totals = [0, 0]
    for owner, side in enumerate(state.sides):
        for creature in side.creatures:
            totals[owner] += max(creature.power, 0) + creature.toughness - creature.damage
    me, foe = state.sides[seat], state.sides[1 - seat]
    return _lead(me.life - foe.life, totals[seat] - totals[1 - seat])


def _lead(life: int, board: int) -> float:
    """Squash differences in life and in power + toughness: 10 life, or 20 on the board, count 0.5."""
    balance = life / 10 + board / 20
    return balance / (1 + abs(balance))


def _clipped(value: float) -> float:
    return HIGH if value > HIGH else LOW if value < LOW else value
