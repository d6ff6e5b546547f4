"""Training runs: the loop, its hooks, evaluation. Not called ``train``, because ``corral.train`` is a function."""
