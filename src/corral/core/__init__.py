"""Types, config, errors, metrics and seeding: what every other layer speaks in. No torch, no processes."""
