"""The rules of the card game and its cards: ``rules`` plays, ``cards`` is data."""
