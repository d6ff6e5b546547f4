"""Ways to train that are more than one run: each in a module of its own, none knowing another."""
