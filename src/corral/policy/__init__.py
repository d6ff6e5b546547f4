"""Networks, distributions and masks: from observation tensors to action probabilities and values. Torch lives here."""
