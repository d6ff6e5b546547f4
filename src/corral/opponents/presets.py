"""Which of an env's opponents plays which part in a recipe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from corral.core.errors import UsageError

__all__ = ["ReferenceOpponents", "reference_opponents_of_names"]


@dataclass(frozen=True, slots=True)
class ReferenceOpponents:
    """The opponents that recipes are written in terms of."""

    weakest: str
    """``random``, or the first that the env names."""
    strongest_scripted: str
    """``greedy``, or the last that the env names."""

    def selfplay(self, current_weight: float, random_weight: float) -> str:
        """The mix of self-play: past selves and the teacher share what the policy itself and the weakest leave.

        By default 30% past selves, 30% the teacher, 20% the policy itself, 20% the weakest.
        """
        rest = 1.0 - current_weight - random_weight
        if min(current_weight, random_weight) < 0 or rest < -1e-9:
            raise UsageError(
                f"current_weight {current_weight:g} and random_weight {random_weight:g}: shares of the episodes, "
                "so neither below 0, and together at most 1"
            )
        half = max(rest, 0.0) / 2
        shares = [
            ("checkpoint", half),
            (self.strongest_scripted, half),
            ("current", current_weight),
            (self.weakest, random_weight),
        ]
        return "mixed:" + ",".join(f"{name}={share:g}" for name, share in shares)

    @property
    def evaluated_against(self) -> tuple[str, ...]:
        """Whom a result is measured against."""
        return tuple(dict.fromkeys((self.weakest, self.strongest_scripted)))


def reference_opponents_of_names(names: Sequence[str]) -> ReferenceOpponents:
    """The same, of the names that an env gives."""
    return ReferenceOpponents("random" if "random" in names else names[0], "greedy" if "greedy" in names else names[-1])
