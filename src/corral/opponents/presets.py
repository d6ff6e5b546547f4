"""The opponents of an env that recipes refer to: its weakest one, and ``greedy`` or else its strongest one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from corral.core.errors import UsageError

__all__ = ["ReferenceOpponents", "reference_opponents_of_names"]


@dataclass(frozen=True, slots=True)
class ReferenceOpponents:
    """Names of the opponents that recipes refer to."""

    weakest: str
    """``random``, or the first that the env names."""
    strongest_scripted: str
    """``greedy``, or the last that the env names."""

    def selfplay(self, current_weight: float, random_weight: float) -> str:
        """Return the mix of opponents for self-play, as the setting ``opponent`` takes it.

        The weights are the shares of episodes against the current policy and against the weakest opponent. Past selves
        and the scripted opponent share the rest equally. By default that is 30% past versions, 30% the
        scripted opponent, 20% the current policy and 20% the weakest opponent.
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
        """The opponents, without repetition, that a trained policy plays against at the end of a recipe."""
        return tuple(dict.fromkeys((self.weakest, self.strongest_scripted)))


def reference_opponents_of_names(names: Sequence[str]) -> ReferenceOpponents:
    """Return the reference opponents of an env that names its opponents so, weakest first."""
    return ReferenceOpponents("random" if "random" in names else names[0], "greedy" if "greedy" in names else names[-1])
