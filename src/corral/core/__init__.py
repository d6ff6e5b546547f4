"""Types, errors, metrics, seeding and spaces: what every other layer speaks in. No torch, no processes."""
