"""Built-in envs. They know nothing of training: gymnasium and numpy only."""
