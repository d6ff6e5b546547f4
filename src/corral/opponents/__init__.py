"""Who plays the other side: the env's own opponents, past selves, other runs; and how a run fares against them."""
