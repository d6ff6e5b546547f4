"""How to train: one file for each recipe, independent of each other."""
