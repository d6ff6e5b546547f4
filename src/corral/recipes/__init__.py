"""How to train: a module for each recipe, none knowing another."""
