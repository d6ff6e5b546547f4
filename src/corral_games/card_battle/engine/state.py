"""A duel as data: what lies where, whose decision it is, and how it is copied and saved. ``rules`` plays it.

A ``State`` has two ``Side``s (everything that belongs to one player, see ``pieces``) and a ``stack`` of ``Spell``s that
wait to resolve. All of it is changed in place, so a clone copies it, and saved as a flat row of ints.
"""

from __future__ import annotations

import random
import struct
from typing import Self

from corral_games.card_battle.engine.cards import FINGERPRINT
from corral_games.card_battle.engine.decks import DECK_NAMES
from corral_games.card_battle.engine.pieces import MAIN, Action, Creature, Side, Spell

__all__ = ["State"]


class State:
    """A duel between two decisions. Whoever changes it by hand sets ``options`` to None."""

    __slots__ = (
        "active",
        "chance",
        "decks",
        "log",
        "options",
        "passed",
        "phase",
        "sides",
        "stack",
        "to_act",
        "turn",
        "uids",
        "winner",
    )

    decks: tuple[int, int]
    """Which of ``decks.DECK_NAMES`` each player plays. Known to both."""
    sides: tuple[Side, Side]
    stack: list[Spell]
    """Spells waiting to resolve, the next one last. While there are any, ``to_act`` may answer the last one."""
    turn: int
    """Counts both players' turns, from 1."""
    active: int
    """Whose turn it is."""
    phase: int
    """``MAIN``, ``RAIDING``, ``BLOCKING`` or ``FIGHTING``."""
    passed: bool
    """In ``FIGHTING``: the active player has passed, the other may still cast."""
    to_act: int
    """Whose decision it is, 0 or 1; 0 began the game."""
    winner: int | None
    """None while it goes on, then 0, 1, or 2 for a draw."""
    uids: int
    """How many uids have been given out."""
    chance: int
    """State of the generator that cards with chance draw from; nobody sees it."""
    options: list[Action] | None
    """The legal actions, or None until somebody asks."""
    log: list[str] | None
    """What both players saw happen, line by line, each beginning with the seat as in "0: "; None: not kept."""

    def __init__(self, decks: tuple[int, int]) -> None:
        self.decks = decks
        self.sides = (Side(), Side())
        self.stack: list[Spell] = []
        self.turn = 1
        self.active = 0
        self.phase = MAIN
        self.passed = False
        self.to_act = 0
        self.winner: int | None = None
        self.uids = 0
        self.chance = 0
        self.options: list[Action] | None = None
        self.log: list[str] | None = None

    def new_uid(self, seat: int) -> int:
        """Give a number to a creature or a spell of ``seat``."""
        self.uids += 1
        return self.uids << 1 | seat

    def find(self, uid: int) -> Creature | None:
        """Look for a creature on the board; None if it is gone."""
        for creature in self.sides[uid & 1].creatures:
            if creature.uid == uid:
                return creature
        return None

    def clone(self) -> Self:
        """Make an independent copy, which keeps no log."""
        new = self.__class__.__new__(self.__class__)
        new.decks = self.decks
        new.sides = (self.sides[0].clone(), self.sides[1].clone())
        new.stack = self.stack[:]
        new.turn = self.turn
        new.active = self.active
        new.phase = self.phase
        new.passed = self.passed
        new.to_act = self.to_act
        new.winner = self.winner
        new.uids = self.uids
        new.chance = self.chance
        new.options = self.options
        new.log = None
        return new

    def determinized(self, seat: int, rng: random.Random) -> Self:
        """Make a clone in which all that ``seat`` cannot see is dealt anew: the other hand, and both libraries.

        The result depends only on ``rng`` and on what ``seat`` sees. If the other player is to act, the new hand may
        leave a single option.
        """
        new = self.clone()
        mine, other = new.sides[seat], new.sides[1 - seat]
        mine.library = _shuffled(mine.library, rng)
        unseen = _shuffled(other.library + other.hand, rng)
        kept = len(other.library)
        other.library = unseen[:kept]
        other.hand = sorted(unseen[kept:])
        new.chance = rng.getrandbits(31)
        if new.to_act != seat:
            new.options = None
        return new

    def get_state(self) -> bytes:
        """Save everything but the log, exactly."""
        row = [FINGERPRINT, *self.decks, self.turn, self.active, self.phase, self.passed, self.to_act]
        row += [-1 if self.winner is None else self.winner, self.uids, self.chance, len(self.stack)]
        for spell in self.stack:
            row += spell
        row += self.sides[0].row()
        row += self.sides[1].row()
        return struct.pack(f"<{len(row)}i", *row)

    def set_state(self, data: bytes) -> None:
        """Become the duel that was saved; the log, if any, goes on."""
        try:
            numbers = iter(struct.unpack(f"<{len(data) // 4}i", data))
            if next(numbers) != FINGERPRINT:
                raise ValueError("this duel was saved with another set of cards; use the version that saved it")
            head = [next(numbers) for _ in range(10)]
            stack = [Spell(*[next(numbers) for _ in range(4)]) for _ in range(next(numbers))]
            sides = (Side.read(numbers), Side.read(numbers))
            if next(numbers, None) is not None:
                raise IndexError
        except (struct.error, StopIteration, IndexError):
            raise ValueError(f"{len(data)} bytes are no saved duel; give what get_state() returned") from None
        first, second, self.turn, self.active, self.phase, passed, self.to_act, winner, self.uids, self.chance = head
        self.decks, self.passed, self.winner = (first, second), bool(passed), None if winner < 0 else winner
        self.stack, self.sides, self.options = stack, sides, None

    @classmethod
    def from_state(cls, data: bytes) -> Self:
        """Make the duel that was saved."""
        new = cls((0, 0))
        new.set_state(data)
        return new

    @property
    def deck_names(self) -> tuple[str, str]:
        """The names of both decks."""
        return DECK_NAMES[self.decks[0]], DECK_NAMES[self.decks[1]]


def _shuffled(cards: list[int], rng: random.Random) -> list[int]:
    """Put cards in an order that follows from ``rng`` and from which cards they are; faster than ``rng.shuffle``."""
    cards.sort()
    draw = rng.random
    for place in range(len(cards) - 1, 0, -1):
        other = int(draw() * (place + 1))
        cards[place], cards[other] = cards[other], cards[place]
    return cards
