"""Card battle, a duel of two players with lands, creatures and spells: ``engine`` has the rules, ``env`` the env."""
