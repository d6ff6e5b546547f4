"""Elo ratings of opponents (A. E. Elo, 1978, The Rating of Chessplayers, Past and Present)."""

from __future__ import annotations

__all__ = ["elo_gain"]

_K_FACTOR = 16.0
"""Rating points that a player gains at most in one game."""


def elo_gain(rating: float, opponent_rating: float, outcome: float) -> float:
    """Return the points that a player gains, and its opponent loses, by a game; ``outcome`` is 1, 0.5 or 0."""
    expected_outcome: float = 1.0 / (1.0 + 10.0 ** ((opponent_rating - rating) / 400.0))
    return _K_FACTOR * (outcome - expected_outcome)
