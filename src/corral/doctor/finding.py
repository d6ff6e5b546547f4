"""The result of one check of the doctor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Finding"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor's report."""

    level: Literal["pass", "warn", "fail"]
    what: str
    """Name of the check."""
    result: str
    """What the check found."""
    remedy: str = ""
    """What to do about it; empty if nothing is to be done."""
