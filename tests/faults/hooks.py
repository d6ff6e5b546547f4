"""A hook with a state that decides the result of a run. Not beside the games: workers import those, and no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import corral


class Follow(corral.Hook):
    """Draws a number in each iteration and lets the learning rate follow from all that it has drawn."""

    def __init__(self) -> None:
        self.drawn: list[int] = []

    def after_iteration(self, iteration: corral.Iteration) -> None:
        """Draw, and set the rate."""
        self.drawn.append(int(iteration.generator(self.name).integers(1000)))
        iteration.set("learning_rate", 1e-3 / (1 + sum(self.drawn) % 7))
        iteration.log("follow/sum", sum(self.drawn))

    def state_dict(self) -> dict[str, Any]:
        """Return all that was drawn."""
        return {"drawn": self.drawn}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        self.drawn = list(state["drawn"])
