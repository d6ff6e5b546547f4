"""All cards of the game as data, one line each.

``effects`` implements the effects that a line names, ``combat`` and ``rules`` the keywords. A cost such as ``"2EE"`` is
two mana of any colour and two of ember. There are five colours (Sun, Tide, Gloom, Ember, Wild), each with one land. A
card has at most one target, chosen when it is cast. Harmful effects can target only the opponent and the opponent's
creatures, helpful effects only the caster's own creatures: this keeps pointless actions out of the legal actions.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

__all__ = [
    "BOUND",
    "CARDS",
    "CARD_NUMBERS",
    "CHARM",
    "COLOURS",
    "COST",
    "CREATURE",
    "DEATHTOUCH",
    "DEFENDER",
    "FINGERPRINT",
    "FIRST_STRIKE",
    "FLYING",
    "FOE",
    "FOE_OR_FACE",
    "FRIEND",
    "GENERIC",
    "GRANTS",
    "HASTE",
    "INSTANT",
    "KEYWORDS",
    "KIND",
    "KIND_NAMES",
    "LIFELINK",
    "MARK",
    "MENACE",
    "NOTHING",
    "PIPS",
    "REACH",
    "SORCERY",
    "SPELL",
    "TARGET",
    "TERRAIN",
    "TRAMPLE",
    "VIGILANCE",
    "Card",
    "Effect",
    "keyword_bits",
    "keyword_names",
]

COLOURS = ("sun", "tide", "gloom", "ember", "wild")
"""The names of the colours; a colour is an index into this tuple."""
_COLOUR_LETTERS = "STGEW"

TERRAIN, CREATURE, INSTANT, SORCERY, CHARM, MARK = range(6)
"""Kinds of cards. A terrain is a land. A charm stays on the board and affects all of its owner's creatures or acts in
each of its owner's turns; a mark stays on one creature."""
KIND_NAMES = ("land", "creature", "instant", "sorcery", "charm", "mark")
"""The names of the kinds as players see them."""

NOTHING, FOE, FRIEND, FOE_OR_FACE, SPELL = range(5)
"""What a card can target: nothing; a creature of the opponent; a creature of the caster; the opponent or one of the
opponent's creatures; the spell on top of the stack."""

FLYING, REACH, HASTE, TRAMPLE, FIRST_STRIKE, DEATHTOUCH, LIFELINK, VIGILANCE, MENACE, DEFENDER, BOUND = (
    1 << bit for bit in range(11)
)
KEYWORDS = {
    "flying": FLYING,
    "reach": REACH,
    "haste": HASTE,
    "trample": TRAMPLE,
    "first strike": FIRST_STRIKE,
    "deathtouch": DEATHTOUCH,
    "lifelink": LIFELINK,
    "vigilance": VIGILANCE,
    "menace": MENACE,
    "defender": DEFENDER,
    "bound": BOUND,
}
"""The bit of each keyword. Only marks give "bound": such a creature can neither attack nor block."""

Effect = tuple[str | int, ...]
"""The name of an effect (``effects`` implements them) and its arguments: numbers, keywords, the name of a token."""


@dataclass(frozen=True, slots=True)
class Card:
    """What is printed on a card. ``FINGERPRINT`` depends on the names and the order of the fields."""

    name: str
    kind: int
    pips: tuple[tuple[int, int], ...] = ()
    """The coloured part of the cost as pairs (colour, amount). For a land: the colour that it produces, and 1."""
    generic: int = 0
    """The part of the cost that mana of any colour can pay."""
    power: int = 0
    toughness: int = 0
    keywords: int = 0
    target: int = NOTHING
    effects: tuple[Effect, ...] = ()
    """Effects when the card resolves, in order."""
    death: tuple[Effect, ...] = ()
    """Effects when the creature dies."""
    upkeep: tuple[Effect, ...] = ()
    """Effects of a charm on the board at the beginning of each of its owner's turns."""
    grants: tuple[int, int, int] = (0, 0, 0)
    """Power, toughness and keywords that a charm adds to each of its owner's creatures, or a mark to its creature."""
    token: bool = False
    """Whether only effects create it: a token is in no deck and enters no other zone when it leaves the board."""

    @property
    def cost(self) -> int:
        """The total mana cost."""
        return 0 if self.kind == TERRAIN else self.generic + sum(amount for _, amount in self.pips)

    @property
    def cost_text(self) -> str:
        """The cost as text such as "2EE"; empty for lands."""
        coloured = "".join(_COLOUR_LETTERS[colour] * amount for colour, amount in self.pips)
        return f"{self.generic or ''}{coloured}" if self.kind != TERRAIN else ""


def keyword_names(keywords: int) -> list[str]:
    """Return the names of the keywords whose bits are set."""
    return [name for name, bit in KEYWORDS.items() if keywords & bit]


def keyword_bits(keywords: str) -> int:
    """Convert a comma-separated list such as "flying, first strike" to keyword bits."""
    return sum(KEYWORDS[name.strip()] for name in keywords.split(",") if name.strip())


def _card(name: str, kind: int, cost: str, **fields: Any) -> Card:
    """Return a card that is not a land; ``cost`` is text such as "2EE"."""
    letters = cost.lstrip("0123456789")
    pips = tuple((colour, letters.count(letter)) for colour, letter in enumerate(_COLOUR_LETTERS) if letter in letters)
    generic = int(cost[: len(cost) - len(letters)] or 0)
    return Card(name, kind, pips=pips, generic=generic, **fields)


def _land(name: str, letter: str) -> Card:
    return Card(name, TERRAIN, pips=((_COLOUR_LETTERS.index(letter), 1),))


def _creature(
    name: str,
    cost: str,
    power: int,
    toughness: int,
    keywords: str = "",
    *effects: Effect,
    target: int = NOTHING,
    death: tuple[Effect, ...] = (),
    token: bool = False,
) -> Card:
    return _card(
        name,
        CREATURE,
        cost,
        power=power,
        toughness=toughness,
        keywords=keyword_bits(keywords),
        target=target,
        effects=effects,
        death=death,
        token=token,
    )


def _instant(name: str, cost: str, target: int, *effects: Effect) -> Card:
    return _card(name, INSTANT, cost, target=target, effects=effects)


def _sorcery(name: str, cost: str, target: int, *effects: Effect) -> Card:
    return _card(name, SORCERY, cost, target=target, effects=effects)


def _charm(
    name: str, cost: str, power: int = 0, toughness: int = 0, keywords: str = "", upkeep: tuple[Effect, ...] = ()
) -> Card:
    return _card(name, CHARM, cost, upkeep=upkeep, grants=(power, toughness, keyword_bits(keywords)))


def _mark(name: str, cost: str, target: int, power: int, toughness: int, keywords: str = "") -> Card:
    return _card(name, MARK, cost, target=target, grants=(power, toughness, keyword_bits(keywords)))


_UNSORTED_CARDS = (
    _land("Meadow", "S"),
    _land("Lagoon", "T"),
    _land("Fen", "G"),
    _land("Crag", "E"),
    _land("Thicket", "W"),
    # Sun: small creatures, bonuses for all of them, removal.
    _creature("Lantern Squire", "S", 2, 1),
    _creature("Chapel Sentry", "1S", 2, 2, "first strike"),
    _creature("Gilded Lark", "1S", 1, 2, "flying, lifelink"),
    _creature("Field Mender", "1S", 2, 2, "", ("gain", 2)),
    _creature("Banner Rider", "2S", 3, 2, "vigilance"),
    _creature("Muster Captain", "2S", 2, 2, "", ("token", "Recruit", 1)),
    _creature("Temple Sweeper", "2S", 2, 3, "vigilance", ("disenchant",)),
    _creature("Cloud Lancer", "3S", 2, 4, "flying, vigilance"),
    _creature("Noonday Colossus", "4SS", 5, 5, "lifelink"),
    _instant("Shield of Noon", "S", FRIEND, ("boost", 2, 2, "first strike")),
    _sorcery("Weighed and Found Light", "2SS", FOE, ("exile",)),
    _sorcery("Rouse the Village", "3S", NOTHING, ("token", "Recruit", 3)),
    _sorcery("Clean Slate", "4SS", NOTHING, ("damage_all", 6)),
    _mark("Golden Manacles", "1S", FOE, 0, 0, "bound"),
    _mark("Morning Halo", "2S", FRIEND, 1, 2, "flying, lifelink"),
    _charm("Marching Hymn", "2SS", 1, 1),
    # Tide: flying creatures, delaying the opponent, drawing cards.
    _creature("Foam Sprite", "T", 1, 1, "flying"),
    _creature("Coral Bulwark", "1T", 1, 5, "defender"),
    _creature("Brine Skipper", "1T", 2, 3),
    _creature("Shoal Scholar", "2T", 2, 2, "", ("draw", 1)),
    _creature("Mist Ray", "2T", 2, 2, "flying"),
    _creature("Undertow Trickster", "3T", 3, 2, "", ("bounce",), target=FOE),
    _creature("Squall Gull", "3T", 3, 3, "flying"),
    _creature("Breaker Serpent", "4T", 5, 5),
    _creature("Seafloor Titan", "4TT", 6, 6),
    _instant("Back to the Shallows", "1T", FOE, ("bounce",)),
    _instant("Nullwave", "1TT", SPELL, ("counter",)),
    _instant("Stillwater", "1T", FOE, ("tap",), ("draw", 1)),
    _instant("Glint of Insight", "2T", NOTHING, ("draw", 2)),
    _sorcery("Library of Shells", "3T", NOTHING, ("draw", 3)),
    _sorcery("Great Ebb", "2TT", NOTHING, ("tap_all",), ("draw", 1)),
    _mark("Frozen Sleep", "2T", FOE, 0, 0, "bound"),
    _charm("Moonlit Archive", "3T", upkeep=(("draw", 1),)),
    # Gloom: removal, return from the graveyard, draining life.
    _creature("Crypt Vermin", "G", 1, 1, "deathtouch"),
    _creature("Ash Acolyte", "1G", 2, 2, "", death=(("drain", 1),)),
    _creature("Night Moth", "1G", 1, 2, "flying"),
    _creature("Bog Stalker", "2G", 3, 2, "menace"),
    _creature("Pocket Thief", "2G", 2, 2, "", ("discard", 1)),
    _creature("Grave Broker", "3G", 3, 2, "", ("recall", 1)),
    _creature("Crimson Matron", "3G", 3, 3, "lifelink"),
    _creature("Pit Ogre", "4G", 5, 4, "menace"),
    _creature("Gravewing Tyrant", "4GG", 5, 5, "flying"),
    _instant("Choke the Candle", "1G", FOE, ("boost", -2, -2, "")),
    _instant("Quiet Blade", "2G", FOE, ("destroy",)),
    _sorcery("Leech Rite", "2G", FOE_OR_FACE, ("damage", 2), ("gain", 2)),
    _sorcery("Ask the Dead", "1G", NOTHING, ("draw", 2), ("lose", 2)),
    _sorcery("Bitter Toll", "1G", NOTHING, ("edict",)),
    _sorcery("Rotting Fog", "2GG", NOTHING, ("damage_all", 3)),
    _sorcery("Hollow Return", "3GG", NOTHING, ("revive",)),
    _mark("Withering Brand", "1G", FOE, -2, -2),
    _charm("Leeching Altar", "2G", upkeep=(("drain", 1),)),
    # Ember: haste and direct damage.
    _creature("Cinder Whelp", "E", 1, 1, "haste, menace"),
    _creature("Forge Runt", "1E", 2, 2, "haste"),
    _creature("Ridge Raider", "1E", 3, 1, "first strike"),
    _creature("Spark Juggler", "2E", 2, 2, "", ("damage", 1), target=FOE_OR_FACE),
    _creature("Kiln Imps", "2E", 1, 1, "haste", ("token", "Imp", 2)),
    _creature("Slag Boar", "3E", 4, 3, "trample"),
    _creature("Furnace Hound", "3E", 4, 2, "haste", death=(("damage_face", 1),)),
    _creature("Slagheap Giant", "4E", 4, 4, "", ("damage_foes", 1)),
    _creature("Kilnwing Drake", "4EE", 5, 4, "flying, haste"),
    _instant("Firespit", "E", FOE_OR_FACE, ("damage", 2)),
    _instant("Ember Bolt", "1E", FOE_OR_FACE, ("damage", 3)),
    _instant("Flare of Temper", "E", FRIEND, ("boost", 3, 0, "first strike, trample")),
    _sorcery("Blazing Ruin", "3E", FOE_OR_FACE, ("damage", 5)),
    _sorcery("Rain of Sparks", "2E", NOTHING, ("damage_foes", 1), ("damage_face", 1)),
    _sorcery("Mountain's Reckoning", "3EE", NOTHING, ("damage_all", 4)),
    _mark("Molten Edge", "1E", FRIEND, 2, 0, "first strike"),
    _charm("Drumfire", "2E", 1, 0),
    _charm("Smouldering Pit", "2E", upkeep=(("damage_face", 1),)),
    # Wild: extra lands, large creatures, damage dealt by them.
    _creature("Thorn Pup", "W", 1, 2, "reach"),
    _creature("Briar Wolf", "1W", 3, 2),
    _creature("Vine Adder", "1W", 1, 1, "reach, deathtouch"),
    _creature("Grove Seer", "2W", 2, 2, "", ("land", 1)),
    _creature("Canopy Weaver", "2W", 2, 4, "reach"),
    _creature("Rust Beetle", "2W", 3, 3, "", ("disenchant",)),
    _creature("Tusked Grazer", "3W", 4, 4),
    _creature("Elder Stag", "3W", 3, 4, "vigilance", ("gain", 2)),
    _creature("Rampart Bear", "4W", 5, 5, "trample"),
    _creature("Old Mammoth", "4WW", 7, 6, "trample"),
    _instant("Surge of Sap", "W", FRIEND, ("boost", 3, 3, "")),
    _sorcery("Follow the Stream", "1W", NOTHING, ("land", 1)),
    _sorcery("Deep Roots", "1W", FRIEND, ("grow", 2)),
    _sorcery("Lesson of Fangs", "2W", FOE, ("bite",)),
    _sorcery("Litter of Wolves", "3W", NOTHING, ("token", "Wolf", 2)),
    _sorcery("The Ground Shakes", "2WW", NOTHING, ("boost_all", 2, 2, "trample")),
    _mark("Oak Skin", "1W", FRIEND, 2, 2),
    _charm("Heart of the Wood", "3W", 0, 2, "reach, trample"),
    _charm("Season of Plenty", "2WW", upkeep=(("grow_all", 1),)),
    # Two colours.
    _creature("Windborne Oracle", "2ST", 2, 3, "flying", ("draw", 1)),
    _creature("Drowned Spy", "1TG", 2, 2, "menace", ("draw", 1)),
    _creature("Cinder Wraith", "1GE", 3, 2, "haste, menace", death=(("drain", 1),)),
    _creature("Ravine Brute", "1EW", 4, 3, "trample"),
    _creature("Hearth Guardian", "1SW", 3, 4, "vigilance"),
    # Tokens.
    _creature("Recruit", "", 1, 1, token=True),
    _creature("Imp", "", 1, 1, "haste", token=True),
    _creature("Wolf", "", 2, 2, token=True),
)


def _sort_key(card: Card) -> tuple[bool, bool, int, tuple[tuple[int, int], ...], str]:
    """Return a key that sorts lands first, then other cards by cost, colour and name, then tokens."""
    return card.token, card.kind != TERRAIN, card.cost, card.pips, card.name


CARDS: tuple[Card, ...] = tuple(sorted(_UNSORTED_CARDS, key=_sort_key))
"""All cards. A card's number is its index: lands are 0 to 4, in the order of ``COLOURS``; the others follow by cost."""

CARD_NUMBERS = {card.name: number for number, card in enumerate(CARDS)}
"""The number of each card by its name."""

FINGERPRINT = zlib.crc32(repr(CARDS).encode()) & 0x7FFFFFFF
"""A checksum of all cards, stored in saved duels: a duel that was saved with other cards is refused."""

# Fields of CARDS by card number: indexing these tuples is faster than reading attributes of a Card.
KIND = tuple(card.kind for card in CARDS)
COST = tuple(card.cost for card in CARDS)
PIPS = tuple(card.pips if card.kind != TERRAIN else () for card in CARDS)
GENERIC = tuple(card.generic for card in CARDS)
GRANTS = tuple(card.grants for card in CARDS)
TARGET = tuple(card.target for card in CARDS)
