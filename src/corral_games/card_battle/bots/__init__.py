"""Players of the card game, from random to tree search."""
