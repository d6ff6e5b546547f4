"""Ratings of opponents, as in chess (Elo)."""

from __future__ import annotations

__all__ = ["rate_game"]

_STEP = 16.0


def rate_game(theirs: float, ours: float, outcome: float, fixed: bool = False) -> tuple[float, float]:
    """Their new rating, and how much ours changes, after a game that we scored ``outcome`` in."""
    expected = 1.0 / (1.0 + 10.0 ** ((theirs - ours) / 400.0))
    change = _STEP * (outcome - expected)
    return theirs if fixed else theirs - change, change
