"""Policies: networks, action distributions and masks, from observations to action probabilities and values (torch)."""
