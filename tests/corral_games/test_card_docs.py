"""``docs/cards.md`` lists every card and deck as in the data. After a change of cards, write ``page()`` to it."""

from collections import Counter
from pathlib import Path

from corral_games.card_battle.engine.cards import CARDS, COLOURS
from corral_games.card_battle.engine.decks import DECK_NAMES, DECKS
from corral_games.card_battle.engine.wording import card_text

PAGE = Path(__file__).parents[2] / "docs" / "cards.md"


INTRODUCTION = """\
# Cards of card battle

This page lists every card and every deck of [card battle](card-battle.md), except for the five lands.

The parentheses after a name contain the cost, the kind of card and, for a creature, power/toughness. In a cost, a
number is mana of any colour and a letter is one mana of that colour: S for sun, T for tide, G for gloom, E for ember,
W for wild. For example, `2EE` is two mana of any colour and two of ember. [Rules](card-battle.md#rules) explains the
kinds of cards and the keywords.

*When it comes* is when a creature enters the board. The *graveyard* is the pile of a player's used and destroyed cards.
A card that is *exiled* leaves the game. A spell that is *countered* has no effect. `1 × Recruit (1/1)` is one new
creature of this name with power 1 and toughness 1. *For good* means until the creature leaves the board. A creature
that *deals its power* does as much damage as it has power.
"""


def page():
    """Return the text of ``docs/cards.md``."""
    lines = [INTRODUCTION]
    for colour, name in enumerate(COLOURS):
        cards = [card for card in CARDS[5:] if [c for c, _ in card.pips] == [colour] and not card.token]
        lines += [f"## {name.capitalize()}", "", *(f"- {card_text(card)}" for card in cards), ""]
    cards = [card for card in CARDS[5:] if len(card.pips) > 1]
    lines += ["## Two colours", "", *(f"- {card_text(card)}" for card in cards), "", "## Decks", ""]
    for name in DECK_NAMES:
        counts = Counter(DECKS[name])
        lines.append(f"- **{name}**: " + ", ".join(f"{n} {CARDS[card].name}" for card, n in sorted(counts.items())))
    return "\n".join(lines) + "\n"


def test_the_page_of_cards_equals_the_card_data():
    assert PAGE.read_text(encoding="utf-8") == page()
