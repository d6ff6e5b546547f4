"""Training recipes, one per module; no recipe depends on another."""
