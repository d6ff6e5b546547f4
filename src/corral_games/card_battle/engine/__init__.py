"""The rules and the cards of the card game: ``rules`` plays a duel, ``cards`` and ``decks`` are data."""
