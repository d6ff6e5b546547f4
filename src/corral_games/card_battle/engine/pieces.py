"""The parts of a duel as plain data: actions, spells on the stack, creatures, and everything of one player.

Cards are ints, indices into ``cards.CARDS``. Creatures and sides are mutable, so ``clone`` copies them. Both can be
converted to a flat list of ints and back.
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
"""Kinds of actions. ``PASS`` also ends the choice of attackers or blockers, and declines to respond to a spell."""

MAIN, RAIDING, BLOCKING, FIGHTING = range(4)
"""Phases of a turn: lands and spells; choice of attackers; choice of blockers; instants before combat damage."""
PHASE_NAMES = ("main", "attack", "block", "fight")
"""The names of the phases as players see them."""

FACE = -1
"""The target of an action or a spell that is the caster's opponent. 0 is no target; positive targets are uids."""

NO_BOOST = (0, 0, 0)
"""No change of power, toughness and keywords."""


class Action(NamedTuple):
    """One decision of one player.

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
    """A card on the stack: cast, but not yet resolved. ``seat`` is the caster, ``target`` that of the ``Action``."""

    uid: int
    card: int
    seat: int
    target: int


class Creature:
    """A creature on the board. ``power``, ``toughness`` and ``keywords`` include all effects that apply now."""

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
    """A number that is unique in the duel and never reused; the lowest bit is ``seat``."""
    card: int
    seat: int
    """The player that controls it, 0 or 1."""
    power: int
    """The damage that it deals; none if negative."""
    toughness: int
    """The damage that kills it: damage is not subtracted here, it dies as soon as ``damage >= toughness``."""
    keywords: int
    """Bits of ``cards.KEYWORDS``."""
    damage: int
    """Damage taken this turn."""
    tapped: bool
    sick: bool
    """Whether it entered after the beginning of its owner's latest turn: it can block, but attack only with haste."""
    attacking: bool
    blocking: int
    """The uid of the attacker that it blocks, or 0."""
    blocked: int
    """The number of blockers declared against it in this combat, including those that have left the board since."""
    counters: int
    """The number of permanent +1/+1 counters; can be negative."""
    boost: tuple[int, int, int]
    """Additional power, toughness and keywords until the end of the turn."""
    marks: tuple[int, ...]
    """The cards of kind ``MARK`` on it, oldest first. A mark that targets ``FRIEND`` was cast by the creature's owner,
    any other by the opponent."""

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

    def is_equivalent(self, other: Creature) -> bool:
        """Return whether the two are interchangeable, so that actions with either are the same action.

        Creatures that block or are blocked are never interchangeable.
        """
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

    def to_ints(self) -> list[int]:
        """Return all attributes as ints, for ``from_ints``."""
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
    def from_ints(numbers: Iterator[int]) -> Creature:
        """Return the creature that the next ints of ``numbers`` describe."""
        new = Creature(next(numbers), next(numbers))
        new.power, new.toughness, new.keywords = next(numbers), next(numbers), next(numbers)
        new.damage = next(numbers)
        new.tapped, new.sick, new.attacking = bool(next(numbers)), bool(next(numbers)), bool(next(numbers))
        new.blocking, new.blocked, new.counters = next(numbers), next(numbers), next(numbers)
        new.boost = (next(numbers), next(numbers), next(numbers))
        new.marks = tuple([next(numbers) for _ in range(next(numbers))])
        return new


class Side:
    """Everything of one player. The opponent sees all but ``hand``; neither player sees the order of ``library``."""

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
    """Cards in hand, sorted: lands first, then by cost (the order of card numbers)."""
    library: list[int]
    """Cards that are left to draw; the next one is last."""
    graveyard: list[int]
    """Cards in the graveyard, the newest last."""
    exile: list[int]
    """Cards that were removed from the game."""
    creatures: list[Creature]
    """Creatures on the board, oldest first."""
    charms: list[int]
    """Cards of kind ``CHARM`` on the board, oldest first."""
    lands: list[int]
    """The number of lands on the board, by colour."""
    untapped: list[int]
    """The number of untapped lands on the board, by colour: the mana that is left this turn."""
    land_played: bool
    """Whether a land has been played this turn."""
    grants: tuple[int, int, int]
    """Power, toughness and keywords that the charms add to each creature in total."""

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

    def to_ints(self) -> list[int]:
        """Return all attributes as ints, for ``from_ints``."""
        numbers = [self.life, self.land_played, *self.lands, *self.untapped, *self.grants]
        for cards in (self.hand, self.library, self.graveyard, self.exile, self.charms):
            numbers.append(len(cards))
            numbers += cards
        numbers.append(len(self.creatures))
        for creature in self.creatures:
            numbers += creature.to_ints()
        return numbers

    @staticmethod
    def from_ints(numbers: Iterator[int]) -> Side:
        """Return the side that the next ints of ``numbers`` describe."""

        def read_list() -> list[int]:
            return [next(numbers) for _ in range(next(numbers))]

        new = Side()
        new.life, new.land_played = next(numbers), bool(next(numbers))
        new.lands = [next(numbers) for _ in range(5)]
        new.untapped = [next(numbers) for _ in range(5)]
        new.grants = (next(numbers), next(numbers), next(numbers))
        new.hand, new.library, new.graveyard, new.exile, new.charms = [read_list() for _ in range(5)]
        new.creatures = [Creature.from_ints(numbers) for _ in range(next(numbers))]
        return new
