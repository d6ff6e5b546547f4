"""Sums of floats with the same rounding in every version of Python, and opponent mixes as shares that sum to 1."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterable, Mapping, Sequence

from corral.core.errors import UsageError

__all__ = ["add_up", "normalized_shares", "parse_mix"]

_MIX_PREFIX = "mixed:"


def add_up(numbers: Iterable[float]) -> float:
    """Add floats from left to right. From Python 3.12 on, ``sum`` compensates rounding, which changes the last bits."""
    return functools.reduce(operator.add, numbers, 0.0)


def parse_mix(text: str, opponents: Sequence[str] | None = None) -> dict[str, float]:
    """Parse one opponent (``greedy``) or a mix (``mixed:random=1,greedy=3``) into shares by name that sum to 1.

    Raise a UsageError if the text has another form, or contains a name that is not among ``opponents``.
    """
    if not text.startswith(_MIX_PREFIX):
        shares = {text: 1.0}
    else:
        shares = {}
        for entry in text.removeprefix(_MIX_PREFIX).split(","):
            name, equals, weight = entry.rpartition("=")
            name, weight = (name, weight) if equals else (entry, "1")
            try:
                shares[name.strip()] = shares.get(name.strip(), 0.0) + float(weight)
            except ValueError:
                raise UsageError(
                    f"opponent {text!r}: {entry!r} should be name=weight, as in mixed:random=1,greedy=3"
                ) from None
    for name in shares:
        if opponents is not None and name not in opponents:
            raise UsageError(f"unknown opponent {name!r}; there are: {', '.join(opponents)}, or mixed:a=1,b=3")
    return normalized_shares(shares)


def normalized_shares(shares: Mapping[str, float]) -> dict[str, float]:
    """Scale weights to sum to 1 and leave out zeros; raise a UsageError if one is negative or all are zero."""
    total = add_up(shares.values())
    if not shares or not math.isfinite(total) or total <= 0 or min(shares.values()) < 0:
        raise UsageError(f"opponents {dict(shares)}: the weights should be positive numbers")
    return {name: share / total for name, share in shares.items() if share > 0}
