"""Card battle: a duel of two players with lands, creatures and spells, played by ``engine`` seen through ``env``."""
