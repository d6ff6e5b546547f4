"""The pieces of a duel: actions, spells on the stack, creatures, and the side of one player. Plain data.

Cards are ints, indices into ``cards.CARDS``. Creatures and sides are changed in place, so a clone copies them; each
can be written as a row of ints and read again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from corral_games.card_battle.engine.cards import CARDS

__all__ = [
    "ATTACK",
    "BLOCK",
    "BLOCKING",
    "CAST",
    "FACE",
    "FIGHTING",
    "LAND",
    "MAIN",
    "NO_BOOST",
    "PASS",
    "PHASE_NAMES",
    "RAIDING",
    "Action",
    "Creature",
    "Side",
    "Spell",
]

PASS, LAND, CAST, ATTACK, BLOCK = range(5)
"""Kinds of actions. ``PASS`` also says "done" (with attackers, with blockers) and "no answer"."""

MAIN, RAIDING, BLOCKING, FIGHTING = range(4)
"""Phases of a turn: lands and spells; attackers are chosen; blockers are chosen; instants before the damage."""
PHASE_NAMES = ("main", "attack", "block", "fight")

FACE = -1
"""The target that is the other player, seen from the one who casts; 0 is none at all, above are creatures."""

NO_BOOST = (0, 0, 0)


class Action(NamedTuple):
    """One choice of one player.

    ===========  ==========================  ====================================================
    ``kind``     ``subject``                 ``target``
    ===========  ==========================  ====================================================
    ``PASS``     0                           0
    ``LAND``     the card, from the hand     0
    ``CAST``     the card, from the hand     0, ``FACE``, a creature's uid, or a spell's uid
    ``ATTACK``   the attacking creature      0
    ``BLOCK``    the blocking creature       the attacker that it blocks
    ===========  ==========================  ====================================================
    """

    kind: int
    subject: int = 0
    target: int = 0


class Spell(NamedTuple):
    """A card on the stack, on its way to the board or the graveyard."""

    uid: int
    card: int
    seat: int
    target: int


class Creature:
    """A creature on the board. ``power``, ``toughness`` and ``keywords`` are what holds now, all effects included."""

    __slots__ = (
        "attacking",
        "blocked",
        "blocking",
        "boost",
        "card",
        "counters",
        "damage",
        "keywords",
        "marks",
        "power",
        "seat",
        "sick",
        "tapped",
        "toughness",
        "uid",
    )

    uid: int
    """Unique in the duel, never used again; the lowest bit is ``seat``."""
    card: int
    seat: int
    """Whose it is: 0 or 1."""
    power: int
    """May be negative; deals no damage then."""
    toughness: int
    """Damage is not taken off here: it dies as soon as ``damage >= toughness``."""
    keywords: int
    """Bits of ``cards.KEYWORDS``."""
    damage: int
    """Taken this turn."""
    tapped: bool
    sick: bool
    """Came this turn: it may block, and attack only with haste."""
    attacking: bool
    blocking: int
    """The uid of the attacker that it blocks, or 0."""
    blocked: int
    """How many blockers were put in its way in this combat, also those that are gone by now."""
    counters: int
    """+1/+1 for good; may be negative."""
    boost: tuple[int, int, int]
    """Power, toughness and keywords that it has until the end of the turn."""
    marks: tuple[int, ...]
    """Cards (``MARK``) that lie on it, oldest first. Who played one follows from what it may be put on."""

    def __init__(self, uid: int, card: int) -> None:
        data = CARDS[card]
        self.uid = uid
        self.card = card
        self.seat = uid & 1
        self.power = data.power
        self.toughness = data.toughness
        self.keywords = data.keywords
        self.damage = 0
        self.tapped = False
        self.sick = True
        self.attacking = False
        self.blocking = 0
        self.blocked = 0
        self.counters = 0
        self.boost = NO_BOOST
        self.marks: tuple[int, ...] = ()

    def clone(self) -> Creature:
        """Make an independent copy."""
        new = Creature.__new__(Creature)
        new.uid = self.uid
        new.card = self.card
        new.seat = self.seat
        new.power = self.power
        new.toughness = self.toughness
        new.keywords = self.keywords
        new.damage = self.damage
        new.tapped = self.tapped
        new.sick = self.sick
        new.attacking = self.attacking
        new.blocking = self.blocking
        new.blocked = self.blocked
        new.counters = self.counters
        new.boost = self.boost
        new.marks = self.marks
        return new

    def same(self, other: Creature) -> bool:
        """Whether nobody could tell the two apart: choices between them are one choice. Never so in a block."""
        return (
            self.card == other.card
            and self.seat == other.seat
            and self.damage == other.damage
            and self.tapped == other.tapped
            and self.sick == other.sick
            and self.attacking == other.attacking
            and not (self.blocking or other.blocking or self.blocked or other.blocked)
            and self.counters == other.counters
            and self.boost == other.boost
            and self.marks == other.marks
        )

    def row(self) -> list[int]:
        """Write it as ints."""
        return [
            self.uid,
            self.card,
            self.power,
            self.toughness,
            self.keywords,
            self.damage,
            self.tapped,
            self.sick,
            self.attacking,
            self.blocking,
            self.blocked,
            self.counters,
            *self.boost,
            len(self.marks),
            *self.marks,
        ]

    @staticmethod
    def read(numbers: Iterator[int]) -> Creature:
        """Read what ``row`` wrote."""
        new = Creature(next(numbers), next(numbers))
        new.power, new.toughness, new.keywords = next(numbers), next(numbers), next(numbers)
        new.damage = next(numbers)
        new.tapped, new.sick, new.attacking = bool(next(numbers)), bool(next(numbers)), bool(next(numbers))
        new.blocking, new.blocked, new.counters = next(numbers), next(numbers), next(numbers)
        new.boost = (next(numbers), next(numbers), next(numbers))
        new.marks = tuple([next(numbers) for _ in range(next(numbers))])
        return new


class Side:
    """All that belongs to one player. The other player sees all but ``hand``; nobody sees the order of ``library``."""

    __slots__ = (
        "charms",
        "creatures",
        "exile",
        "grants",
        "graveyard",
        "hand",
        "land_played",
        "lands",
        "library",
        "life",
        "untapped",
    )

    life: int
    hand: list[int]
    """Cards, sorted: lands first, then by cost (card numbers are in that order)."""
    library: list[int]
    """Cards, the next to be drawn last."""
    graveyard: list[int]
    """Cards, the newest last."""
    exile: list[int]
    """Cards out of the game."""
    creatures: list[Creature]
    """The board, oldest first."""
    charms: list[int]
    """Lasting effects on the board (cards of kind ``CHARM``), oldest first."""
    lands: list[int]
    """How many lands of each of the five colours are on the board."""
    untapped: list[int]
    """How many of these are untapped: the mana that can still be spent."""
    land_played: bool
    """Whether this turn's land has been played."""
    grants: tuple[int, int, int]
    """What the charms together give to each of the creatures: power, toughness, keywords."""

    def __init__(self) -> None:
        self.life = 20
        self.hand: list[int] = []
        self.library: list[int] = []
        self.graveyard: list[int] = []
        self.exile: list[int] = []
        self.creatures: list[Creature] = []
        self.charms: list[int] = []
        self.lands = [0, 0, 0, 0, 0]
        self.untapped = [0, 0, 0, 0, 0]
        self.land_played = False
        self.grants = NO_BOOST

    def clone(self) -> Side:
        """Make an independent copy."""
        new = Side.__new__(Side)
        new.life = self.life
        new.hand = self.hand[:]
        new.library = self.library[:]
        new.graveyard = self.graveyard[:]
        new.exile = self.exile[:]
        new.creatures = [creature.clone() for creature in self.creatures]
        new.charms = self.charms[:]
        new.lands = self.lands[:]
        new.untapped = self.untapped[:]
        new.land_played = self.land_played
        new.grants = self.grants
        return new

    def row(self) -> list[int]:
        """Write it as ints."""
        row = [self.life, self.land_played, *self.lands, *self.untapped, *self.grants]
        for cards in (self.hand, self.library, self.graveyard, self.exile, self.charms):
            row.append(len(cards))
            row += cards
        row.append(len(self.creatures))
        for creature in self.creatures:
            row += creature.row()
        return row

    @staticmethod
    def read(numbers: Iterator[int]) -> Side:
        """Read what ``row`` wrote."""

        def several() -> list[int]:
            return [next(numbers) for _ in range(next(numbers))]

        new = Side()
        new.life, new.land_played = next(numbers), bool(next(numbers))
        new.lands = [next(numbers) for _ in range(5)]
        new.untapped = [next(numbers) for _ in range(5)]
        new.grants = (next(numbers), next(numbers), next(numbers))
        new.hand, new.library, new.graveyard, new.exile, new.charms = [several() for _ in range(5)]
        new.creatures = [Creature.read(numbers) for _ in range(next(numbers))]
        return new
