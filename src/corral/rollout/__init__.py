"""Collection of rollouts: the collector, the actors that choose actions, and the sources that run collectors."""
