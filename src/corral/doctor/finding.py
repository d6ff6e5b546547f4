"""One line of the doctor's report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Finding"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    level: Literal["pass", "warn", "fail"]
    what: str
    seen: str
    remedy: str = ""
