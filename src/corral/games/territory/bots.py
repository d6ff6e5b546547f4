"""Who plays: the rule of the bots, and two players of the agent's seat to compare with."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from corral.games.territory.rules import EVERYWHERE, FREE, capacity

__all__ = ["PAUSE", "PAUSES", "Patient", "bot_order"]

PAUSE, PAUSES = 40, 41
"""A bot gives an order every ``PAUSE`` ticks, or up to ``PAUSES`` - 1 more."""


def bot_order(me: Any, draw: Any, home: Any, land: Any, contacts: Any) -> tuple[Any, Any]:
    """What bot ``me`` sends: percent of its troops, and the owner it attacks. Plain arithmetic, as in ``rules``.

    ``home`` and ``land`` [P]: everybody's troops and tiles. ``contacts`` [P, 1 + P]: how long the border of each player
    is with free land, and with each player. Free land comes first. Then one of the neighbours, drawn by length of the
    border, if the bot's troops stand denser than the neighbour's.
    """
    full = 100 * home[me] // capacity(land[me])
    if contacts[me, 0] > 0:
        return (60 if full >= 10 else 0), FREE
    border = 0
    for other in range(len(land)):
        border += contacts[me, 1 + other]
    if border == 0:
        return 0, FREE
    left = draw % border
    chosen = 0
    for other in range(len(land)):
        if left >= 0:
            chosen = other
        left -= contacts[me, 1 + other]
    if full < 50 or home[me] * land[chosen] * 10 < home[chosen] * land[me] * 5:
        return 0, FREE
    return 20, chosen


class Patient:
    """Waits until its troops are half of what they can be, then sends a quarter of them everywhere.

    A ``corral.core.opponents.Player``: it sees what the agent sees.
    """

    def __init__(self, enough: float = 0.5, share: int = 3) -> None:
        self.enough, self.share = enough, share

    def __call__(
        self, observation: Any, mask: npt.NDArray[np.bool_] | None, generator: np.random.Generator | None = None
    ) -> int:
        """The action to take."""
        home = observation["global"][-15]
        action = 5 * EVERYWHERE + (self.share if home >= self.enough else 0)
        return action if mask is None or mask[action] else 5 * EVERYWHERE
