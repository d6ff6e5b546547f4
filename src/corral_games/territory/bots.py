"""Who plays: the rule of the bots, and a player for the agent's seat to compare with."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from corral_games.territory.rules import EVERYWHERE, FREE, capacity

__all__ = ["PAUSE", "PAUSES", "Patient", "bot_order"]

PAUSE, PAUSES = 40, 41
"""A bot gives an order every ``PAUSE`` ticks, or up to ``PAUSES`` - 1 more."""
_SETTLE, _SETTLE_FROM = 60, 10
"""Percent of its troops that it sends to free land, and how full (in percent) it must be to do so."""
_FIGHT, _FIGHT_FROM = 20, 50
"""The same against a neighbour."""


def bot_order(me: Any, draw: Any, home: Any, land: Any, contacts: Any) -> tuple[Any, Any]:
    """What bot ``me`` sends: percent of its troops, and the owner it attacks. Plain arithmetic, as in ``rules``.

    ``home`` and ``land`` [P]: everybody's troops and tiles. ``contacts`` [P, 1 + P]: how long the border of each player
    is with free land, and with each player. Free land comes first, and bots are too keen on it; then one of the
    neighbours, drawn by length of the border, when the bot has troops enough.
    """
    full = 100 * home[me] // capacity(land[me])
    if contacts[me, 0] > 0:
        return (_SETTLE if full >= _SETTLE_FROM else 0), FREE
    border = 0
    for other in range(len(land)):
        border += contacts[me, 1 + other]
    if border == 0 or full < _FIGHT_FROM:
        return 0, FREE
    left = draw % border
    chosen = 0
    for other in range(len(land)):
        if left >= 0:
            chosen = other
        left -= contacts[me, 1 + other]
    return _FIGHT, chosen


_HOME, _WAIT = 1 - 16, 5 * EVERYWHERE  # in the latest of the frames; in the actions


class Patient:
    """Waits until its troops are half of what they can be, then sends some of them everywhere.

    A ``corral.envs.opponent_protocol.Player``: it sees what the agent sees.
    """

    def __init__(self, enough: float = 0.5, share: int = 3) -> None:
        self.enough, self.share = enough, share

    def __call__(
        self, observation: Any, mask: npt.NDArray[np.bool_] | None, generator: np.random.Generator | None = None
    ) -> int:
        """The action to take."""
        home = observation["global"][_HOME]
        action = _WAIT + (self.share if home >= self.enough else 0)
        return action if mask is None or mask[action] else _WAIT
