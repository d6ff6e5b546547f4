"""The ten decks as data, 60 cards each: five decks of one colour and five of two."""

from __future__ import annotations

from corral_games.card_battle.engine.cards import CARD_NUMBERS

__all__ = ["DECKS", "DECK_NAMES", "RANDOM_DECK"]

RANDOM_DECK = "random"
"""In place of a deck's name: one of the ten decks, chosen by the seed."""

_DECK_LISTS = {
    "sun": """
        24 Meadow, 4 Lantern Squire, 4 Chapel Sentry, 3 Gilded Lark, 3 Field Mender, 4 Banner Rider, 3 Muster Captain,
        1 Temple Sweeper, 3 Cloud Lancer, 2 Noonday Colossus, 2 Shield of Noon, 2 Weighed and Found Light,
        2 Rouse the Village, 1 Morning Halo, 2 Marching Hymn
    """,
    "tide": """
        24 Lagoon, 3 Foam Sprite, 2 Coral Bulwark, 4 Brine Skipper, 3 Shoal Scholar, 4 Mist Ray, 3 Undertow Trickster,
        4 Squall Gull, 2 Breaker Serpent, 2 Seafloor Titan, 1 Back to the Shallows, 2 Nullwave, 1 Stillwater,
        1 Glint of Insight, 3 Frozen Sleep, 1 Great Ebb
    """,
    "gloom": """
        24 Fen, 3 Crypt Vermin, 4 Ash Acolyte, 3 Night Moth, 4 Bog Stalker, 2 Pocket Thief, 2 Grave Broker,
        3 Crimson Matron, 3 Pit Ogre, 2 Gravewing Tyrant, 2 Choke the Candle, 3 Quiet Blade, 2 Leech Rite,
        1 Ask the Dead, 1 Bitter Toll, 1 Hollow Return
    """,
    "ember": """
        24 Crag, 3 Cinder Whelp, 4 Forge Runt, 3 Ridge Raider, 4 Spark Juggler, 2 Kiln Imps, 4 Slag Boar,
        3 Furnace Hound, 2 Slagheap Giant, 2 Kilnwing Drake, 2 Firespit, 3 Ember Bolt, 1 Flare of Temper,
        1 Blazing Ruin, 1 Molten Edge, 1 Drumfire
    """,
    "wild": """
        24 Thicket, 3 Thorn Pup, 4 Briar Wolf, 2 Vine Adder, 3 Grove Seer, 3 Canopy Weaver, 1 Rust Beetle,
        4 Tusked Grazer, 2 Elder Stag, 3 Rampart Bear, 2 Old Mammoth, 2 Surge of Sap, 1 Deep Roots, 2 Lesson of Fangs,
        2 Litter of Wolves, 1 The Ground Shakes, 1 Oak Skin
    """,
    "sun-tide": """
        12 Meadow, 12 Lagoon, 3 Lantern Squire, 3 Gilded Lark, 3 Chapel Sentry, 3 Banner Rider, 3 Mist Ray,
        2 Shoal Scholar, 4 Windborne Oracle, 3 Squall Gull, 3 Cloud Lancer, 2 Undertow Trickster,
        2 Golden Manacles, 2 Weighed and Found Light, 1 Back to the Shallows, 1 Moonlit Archive, 1 Morning Halo
    """,
    "tide-gloom": """
        12 Lagoon, 12 Fen, 3 Crypt Vermin, 2 Ash Acolyte, 2 Brine Skipper, 4 Drowned Spy, 3 Mist Ray, 2 Bog Stalker,
        2 Crimson Matron, 3 Squall Gull, 2 Undertow Trickster, 2 Pit Ogre, 2 Gravewing Tyrant, 3 Quiet Blade,
        2 Choke the Candle, 1 Withering Brand, 1 Nullwave, 1 Library of Shells, 1 Rotting Fog
    """,
    "gloom-ember": """
        12 Fen, 12 Crag, 3 Ash Acolyte, 3 Forge Runt, 3 Ridge Raider, 4 Cinder Wraith, 3 Bog Stalker, 2 Spark Juggler,
        3 Slag Boar, 2 Crimson Matron, 2 Pit Ogre, 1 Kilnwing Drake, 2 Quiet Blade, 3 Ember Bolt, 1 Firespit,
        1 Leech Rite, 1 Bitter Toll, 1 Leeching Altar, 1 Smouldering Pit
    """,
    "ember-wild": """
        12 Crag, 12 Thicket, 3 Briar Wolf, 3 Forge Runt, 4 Ravine Brute, 2 Spark Juggler, 2 Canopy Weaver, 2 Grove Seer,
        3 Slag Boar, 3 Tusked Grazer, 2 Rampart Bear, 1 Old Mammoth, 1 Kilnwing Drake, 3 Ember Bolt, 2 Lesson of Fangs,
        1 Surge of Sap, 1 Rain of Sparks, 1 Follow the Stream, 1 Mountain's Reckoning, 1 Slagheap Giant
    """,
    "wild-sun": """
        12 Thicket, 12 Meadow, 3 Lantern Squire, 3 Briar Wolf, 3 Chapel Sentry, 4 Hearth Guardian, 3 Banner Rider,
        2 Canopy Weaver, 3 Tusked Grazer, 2 Cloud Lancer, 2 Rampart Bear, 1 Noonday Colossus, 2 Golden Manacles,
        2 Weighed and Found Light, 1 Shield of Noon, 1 Season of Plenty, 1 Heart of the Wood, 2 Litter of Wolves,
        1 Clean Slate
    """,
}


def _parse_deck(text: str) -> tuple[int, ...]:
    """Convert a list such as "24 Meadow, 4 Lantern Squire" to sorted card numbers."""
    cards: list[int] = []
    for entry in text.split(","):
        count, name = entry.split(maxsplit=1)
        cards += [CARD_NUMBERS[name.strip()]] * int(count)
    return tuple(sorted(cards))


DECKS = {name: _parse_deck(text) for name, text in _DECK_LISTS.items()}
"""The sorted card numbers of each deck."""

DECK_NAMES = tuple(DECKS)
"""The names of the ten decks, those of one colour first."""
