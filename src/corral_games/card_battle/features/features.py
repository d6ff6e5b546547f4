"""The observation of one player: 36 numbers between -1 and 2, named in ``FEATURES``.

It depends only on what that player can see: their own hand, the size of the opponent's hand, and the public zones.
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
"""The bounds of every feature."""

FEATURES = {
    "my_life": "life, 1 = 20",
    "foe_life": "the opponent's life, 1 = 20",
    "lead": "lead in life and on the board, -1 to 1, above 0 if ahead",
    "my_library": "cards in the library, 1 = 60",
    "foe_hand": "cards in the opponent's hand, 1 = 7",
    "my_lands": "lands, 1 = 8",
    "foe_lands": "the opponent's lands, 1 = 8",
    "my_mana": "untapped lands, 1 = 8",
    "foe_mana": "the opponent's untapped lands, 1 = 8",
    "land_drop": "1 in this player's turn while no land has been played in it",
    "my_turn": "1 in this player's turn",
    "main": "1 in the main phase, in which lands and spells are played",
    "raiding": "1 while attackers are chosen",
    "blocking": "1 while blockers are chosen",
    "fighting": "1 after blockers are chosen, before combat damage",
    "turn": "turns of both players so far, 1 = 20",
    "threat": "0.2 plus the cost, 1 = 6, of the opponent's spell on top of the stack; 0 if there is none",
    "my_creatures": "creatures, 1 = 6",
    "foe_creatures": "the opponent's creatures, 1 = 6",
    "my_power": "power on the board, 1 = 15",
    "foe_power": "the opponent's power on the board, 1 = 15",
    "my_toughness": "toughness on the board minus damage, 1 = 15",
    "foe_toughness": "the opponent's toughness on the board minus damage, 1 = 15",
    "my_evasion": "power that the opponent's untapped creatures cannot block, 1 = 10",
    "foe_evasion": "the opponent's power that this player's untapped creatures cannot block, 1 = 10",
    "my_ready": "power that could attack now or is attacking, 1 = 15",
    "my_guards": "creatures that could block, 1 = 6",
    "foe_guards": "the opponent's creatures that could block, 1 = 6",
    "raid": "power of unblocked attackers, 1 = 10; the opponent's attackers count negative",
    "blocked": "power of blocked attackers, 1 = 10; the opponent's attackers count negative",
    "lethal": "1 if the unblocked attackers will win the game, -1 if they will lose it",
    "my_charms": "charms on the board minus those of the opponent, 1 = 3",
    "hand_lands": "lands in hand, 1 = 4",
    "hand_creatures": "creatures in hand, 1 = 4",
    "hand_spells": "other cards in hand, 1 = 4",
    "castable": "cards in hand that the untapped lands can pay for, 1 = 4",
}
"""The features of an observation, in order, with their meaning. "1 = 20" is the amount that gives 1; values are clipped
at 2."""

_PHASES = {
    MAIN: (1.0, 0.0, 0.0, 0.0),
    RAIDING: (0.0, 1.0, 0.0, 0.0),
    BLOCKING: (0.0, 0.0, 1.0, 0.0),
    FIGHTING: (0.0, 0.0, 0.0, 1.0),
}
_BLOCKS_FLYING = FLYING | REACH


def _scaled_counts(unit: int) -> tuple[float, ...]:
    """Return the counts 0 to 64 divided by ``unit`` and clipped at ``HIGH``: a table is faster than dividing."""
    return tuple(min(count / unit, HIGH) for count in range(65))


_BY_4, _BY_6, _BY_7, _BY_8, _BY_60 = (_scaled_counts(unit) for unit in (4, 6, 7, 8, 60))


class _BoardTotals:
    """Totals over the creatures of one side.

    ``guards`` counts possible blockers, ``air_guards`` those that can block flying; all other totals but ``toughness``
    are sums of power: ``ready`` of creatures that attack or could, ``raid`` of unblocked and ``blocked`` of blocked
    attackers, ``flying`` and ``menace`` of creatures with that keyword.
    """

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
                if keywords & _BLOCKS_FLYING:
                    air_guards += 1
                if not keywords & DEFENDER and (not creature.sick or keywords & HASTE):
                    ready += strength
            if keywords & FLYING:
                flying += strength
            elif keywords & MENACE:
                menace += strength
        self.power, self.toughness, self.flying, self.menace = power, toughness, flying, menace
        self.guards, self.air_guards, self.ready, self.raid, self.blocked = guards, air_guards, ready, raid, blocked

    def evasion(self, opponent: _BoardTotals) -> int:
        """Return the power that the opponent's untapped creatures cannot block."""
        if not opponent.guards:
            return self.power
        return (0 if opponent.air_guards else self.flying) + (self.menace if opponent.guards < 2 else 0)


def observe(state: State, seat: int) -> npt.NDArray[np.float32]:
    """Return what ``seat`` sees as a new array of 36 numbers, in the order of ``FEATURES``."""
    me, foe = state.sides[seat], state.sides[1 - seat]
    my_totals, foe_totals = _BoardTotals(me.creatures), _BoardTotals(foe.creatures)
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
    lethal = 1.0 if 0 < foe.life <= my_totals.raid else -1.0 if 0 < me.life <= foe_totals.raid else 0.0
    my_turn = state.active == seat
    phase = _PHASES[state.phase]
    return np.array(
        (
            _clipped(me.life / 20),
            _clipped(foe.life / 20),
            _lead(me.life - foe.life, my_totals.power + my_totals.toughness - foe_totals.power - foe_totals.toughness),
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
            _clipped(my_totals.power / 15),
            _clipped(foe_totals.power / 15),
            _clipped(my_totals.toughness / 15),
            _clipped(foe_totals.toughness / 15),
            _clipped(my_totals.evasion(foe_totals) / 10),
            _clipped(foe_totals.evasion(my_totals) / 10),
            _clipped(my_totals.ready / 15),
            _BY_6[my_totals.guards],
            _BY_6[foe_totals.guards],
            _clipped((my_totals.raid - foe_totals.raid) / 10),
            _clipped((my_totals.blocked - foe_totals.blocked) / 10),
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
    """Return how far ``seat`` leads in life and on the board, from -1 (far behind) to 1. It depends on public facts."""
    totals = [0, 0]
    for owner, side in enumerate(state.sides):
        for creature in side.creatures:
            totals[owner] += max(creature.power, 0) + creature.toughness - creature.damage
    me, foe = state.sides[seat], state.sides[1 - seat]
    return _lead(me.life - foe.life, totals[seat] - totals[1 - seat])


def _lead(life: int, board: int) -> float:
    """Map differences in life and in power + toughness to (-1, 1): 10 life, or 20 on the board, give 0.5."""
    balance = life / 10 + board / 20
    return balance / (1 + abs(balance))


def _clipped(value: float) -> float:
    return HIGH if value > HIGH else LOW if value < LOW else value
