"""Sums of floats that are the same on every version of Python."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable

__all__ = ["add_up"]


def add_up(numbers: Iterable[float]) -> float:
    """Add floats from left to right. From Python 3.12 on, ``sum`` corrects its rounding and gives other last bits."""
    return functools.reduce(operator.add, numbers, 0.0)
