"""Training runs: the loop, checkpoints, evaluation, run directories. Not ``corral.train``, which is the function."""
