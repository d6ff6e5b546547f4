"""A hook whose state changes the weights of a run. It is not in games.py, because workers import that without torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import corral


class Follow(corral.Hook):
    """Draws a number in each iteration and sets the learning rate from all numbers that it has drawn."""

    def __init__(self) -> None:
        self.drawn: list[int] = []

    def after_iteration(self, iteration: corral.Iteration) -> None:
        """Draw a number and set the learning rate."""
        self.drawn.append(int(iteration.generator(self.name).integers(1000)))
        iteration.set("learning_rate", 1e-3 / (1 + sum(self.drawn) % 7))
        iteration.log("follow/sum", sum(self.drawn))

    def state_dict(self) -> dict[str, Any]:
        """Return the numbers that were drawn."""
        return {"drawn": self.drawn}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the numbers that were drawn."""
        self.drawn = list(state["drawn"])
