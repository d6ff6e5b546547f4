"""What happens every so many steps."""

from __future__ import annotations

__all__ = ["is_due"]


def is_due(every: int, before: int, now: int) -> bool:
    """Whether a multiple of ``every`` lies in (before, now]; never, for 0."""
    return every > 0 and now // every > before // every
