"""``docs/cards.md`` shows every card as its data says; after a change, write ``page()`` to it."""

from collections import Counter
from pathlib import Path

from corral_games.card_battle.engine.cards import CARDS, COLOURS
from corral_games.card_battle.engine.decks import DECK_NAMES, DECKS
from corral_games.card_battle.engine.wording import card_text

PAGE = Path(__file__).parents[2] / "docs" / "cards.md"


def page():
    lines = ["# Cards of the card battle", "", "A cost such as `2EE` is two mana of any colour and two of ember.", ""]
    for colours in ([colour] for colour in range(len(COLOURS))):
        lines += [f"## {COLOURS[colours[0]].capitalize()}", ""]
        lines += [f"- {card_text(card)}" for card in cards_of(colours)] + [""]
    lines += ["## Two colours", ""]
    lines += [f"- {card_text(card)}" for card in CARDS[5:] if len(card.pips) > 1] + ["", "## Decks", ""]
    for name in DECK_NAMES:
        counts = Counter(DECKS[name])
        lines.append(f"- **{name}**: " + ", ".join(f"{n} {CARDS[card].name}" for card, n in sorted(counts.items())))
    return "\n".join(lines) + "\n"


def cards_of(colours):
    return [card for card in CARDS[5:] if [colour for colour, _ in card.pips] == colours and not card.token]


def test_the_page_of_cards_is_up_to_date():
    assert PAGE.read_text(encoding="utf-8") == page()
