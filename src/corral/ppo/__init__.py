"""The algorithm: advantages, losses, and the learner that applies them. Knows no env and no process."""
