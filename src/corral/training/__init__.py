"""Training runs: the loop, checkpoints, evaluation and run directories. (``corral.train`` is the function.)"""
