"""Sums of floats that are the same on every version of Python, and mixes of opponents as shares that sum to 1."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterable, Mapping, Sequence

from corral.core.errors import UsageError

__all__ = ["add_up", "normalized_shares", "parse_mix"]


def add_up(numbers: Iterable[float]) -> float:
    """Add floats from left to right. From Python 3.12 on, ``sum`` corrects its rounding and gives other last bits."""
    return functools.reduce(operator.add, numbers, 0.0)


_MIXED = "mixed:"


def parse_mix(text: str, known: Sequence[str] | None = None) -> dict[str, float]:
    """``greedy``, or ``mixed:random=1,greedy=3``, as shares that sum to 1; each name should be ``known``."""
    if not text.startswith(_MIXED):
        shares = {text: 1.0}
    else:
        shares = {}
        for part in text.removeprefix(_MIXED).split(","):
            name, equals, weight = part.rpartition("=")
            name, weight = (name, weight) if equals else (part, "1")
            try:
                shares[name.strip()] = shares.get(name.strip(), 0.0) + float(weight)
            except ValueError:
                raise UsageError(
                    f"opponent {text!r}: {part!r} should be name=weight, as in mixed:random=1,greedy=3"
                ) from None
    for name in shares:
        if known is not None and name not in known:
            raise UsageError(f"unknown opponent {name!r}; there are: {', '.join(known)}, or mixed:a=1,b=3")
    return normalized_shares(shares)


def normalized_shares(shares: Mapping[str, float]) -> dict[str, float]:
    """Shares of opponents that sum to 1; a UsageError if they cannot."""
    total = add_up(shares.values())
    if not shares or not math.isfinite(total) or total <= 0 or min(shares.values()) < 0:
        raise UsageError(f"opponents {dict(shares)}: the weights should be positive numbers")
    return {name: share / total for name, share in shares.items() if share > 0}
