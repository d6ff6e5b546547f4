"""Territory, a game in which players expand over a map and attack each other. ``env`` is the Gymnasium env."""
