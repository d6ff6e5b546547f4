"""``corral doctor``: finds what is wrong with an env before training starts, and replays env faults."""
