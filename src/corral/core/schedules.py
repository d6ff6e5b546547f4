"""Intervals in steps, such as ``eval_freq`` and ``checkpoint_freq``."""

from __future__ import annotations

__all__ = ["is_due"]


def is_due(every: int, before: int, now: int) -> bool:
    """Return whether a multiple of ``every`` lies in (before, now]; ``every`` 0 means never."""
    return every > 0 and now // every > before // every
