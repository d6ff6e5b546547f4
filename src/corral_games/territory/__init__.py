"""Territory: players who expand over a map and attack each other. ``rules`` has its numbers, ``state`` plays it."""
