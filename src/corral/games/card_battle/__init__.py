"""Card battle: a duel of two players with lands, creatures and spells. ``rules`` plays it, ``cards`` is its data."""
