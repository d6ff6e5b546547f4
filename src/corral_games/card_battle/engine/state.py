"""The state of a duel as data, with copying, determinization and saving. ``rules`` plays it.

A ``State`` has two ``Side``s (everything of one player, see ``pieces``) and a ``stack`` of ``Spell``s that are not yet
resolved. All of it is mutable, so ``clone`` copies it. It is saved as a flat list of 32-bit ints.
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
    """The state of a duel at a decision. Code that changes it directly has to set ``options`` to None."""

    __slots__ = (
        "active",
        "decks",
        "log",
        "options",
        "passed",
        "phase",
        "rng_state",
        "sides",
        "stack",
        "to_act",
        "turn",
        "uids",
        "winner",
    )

    decks: tuple[int, int]
    """The deck of each player, as an index into ``decks.DECK_NAMES``. Both players know both decks."""
    sides: tuple[Side, Side]
    """Everything of player 0 and of player 1."""
    stack: list[Spell]
    """Spells that are not yet resolved, the next one last; ``to_act`` may respond to the last one."""
    turn: int
    """The number of this turn, counting both players' turns from 1."""
    active: int
    """The player whose turn it is."""
    phase: int
    """``MAIN``, ``RAIDING``, ``BLOCKING`` or ``FIGHTING``."""
    passed: bool
    """Whether, in ``FIGHTING``, the active player has passed, so that only the other player may still cast."""
    to_act: int
    """The player who decides next, 0 or 1; player 0 has the first turn."""
    winner: int | None
    """None while the duel lasts, then the player that won, or 2 for a draw."""
    uids: int
    """The number of uids that have been assigned."""
    rng_state: int
    """The state of the random number generator of effects such as discard; hidden from both players."""
    options: list[Action] | None
    """The legal actions of ``to_act``; None if they are not computed yet."""
    log: list[str] | None
    """What both players saw happen, one line each, beginning with the player as in "0: "; None to keep no log."""

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
        self.rng_state = 0
        self.options: list[Action] | None = None
        self.log: list[str] | None = None

    def new_uid(self, seat: int) -> int:
        """Return a new uid for a creature or a spell of ``seat``."""
        self.uids += 1
        return self.uids << 1 | seat

    def find(self, uid: int) -> Creature | None:
        """Return the creature with this uid, or None if it is not on the board."""
        for creature in self.sides[uid & 1].creatures:
            if creature.uid == uid:
                return creature
        return None

    def clone(self) -> Self:
        """Return an independent copy that keeps no log."""
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
        new.rng_state = self.rng_state
        new.options = self.options
        new.log = None
        return new

    def determinized(self, seat: int, rng: random.Random) -> Self:
        """Return a clone in which everything hidden from ``seat`` is sampled: the opponent's hand and both libraries.

        This is a determinization (Cowling, Powley and Whitehouse 2012, doi:10.1109/TCIAIG.2012.2200894). It depends
        only on ``rng`` and on what ``seat`` sees. If the opponent is to act, the sampled hand may leave a single legal
        action.
        """
        new = self.clone()
        me, foe = new.sides[seat], new.sides[1 - seat]
        me.library = _shuffled(me.library, rng)
        unseen = _shuffled(foe.library + foe.hand, rng)
        library_size = len(foe.library)
        foe.library = unseen[:library_size]
        foe.hand = sorted(unseen[library_size:])
        new.rng_state = rng.getrandbits(31)
        if new.to_act != seat:
            new.options = None
        return new

    def get_state(self) -> bytes:
        """Return everything but the log as bytes, for ``set_state``."""
        numbers = [FINGERPRINT, *self.decks, self.turn, self.active, self.phase, self.passed, self.to_act]
        numbers += [-1 if self.winner is None else self.winner, self.uids, self.rng_state, len(self.stack)]
        for spell in self.stack:
            numbers += spell
        numbers += self.sides[0].to_ints()
        numbers += self.sides[1].to_ints()
        return struct.pack(f"<{len(numbers)}i", *numbers)

    def set_state(self, data: bytes) -> None:
        """Restore what ``get_state`` returned; the log is left as it is."""
        try:
            numbers = iter(struct.unpack(f"<{len(data) // 4}i", data))
            if next(numbers) != FINGERPRINT:
                raise ValueError("this duel was saved with another set of cards; use the version that saved it")
            head = [next(numbers) for _ in range(10)]
            stack = [Spell(*[next(numbers) for _ in range(4)]) for _ in range(next(numbers))]
            sides = (Side.from_ints(numbers), Side.from_ints(numbers))
            if next(numbers, None) is not None:
                raise IndexError
        except (struct.error, StopIteration, IndexError):
            raise ValueError(f"{len(data)} bytes are not a saved duel; pass what get_state() returned") from None
        first, second, self.turn, self.active, self.phase, passed, self.to_act, winner, self.uids, self.rng_state = head
        self.decks, self.passed, self.winner = (first, second), bool(passed), None if winner < 0 else winner
        self.stack, self.sides, self.options = stack, sides, None

    @classmethod
    def from_state(cls, data: bytes) -> Self:
        """Return a duel with the state that ``get_state`` returned."""
        new = cls((0, 0))
        new.set_state(data)
        return new

    @property
    def deck_names(self) -> tuple[str, str]:
        """The names of both decks."""
        return DECK_NAMES[self.decks[0]], DECK_NAMES[self.decks[1]]


def _shuffled(cards: list[int], rng: random.Random) -> list[int]:
    """Shuffle cards in place and return them; the result depends on ``rng`` and the set of cards, not on their order.

    A Fisher-Yates shuffle that is faster than ``rng.shuffle``.
    """
    cards.sort()
    draw = rng.random
    for i in range(len(cards) - 1, 0, -1):
        j = int(draw() * (i + 1))
        cards[i], cards[j] = cards[j], cards[i]
    return cards
