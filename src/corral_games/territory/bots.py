"""The rule by which bots play, and a scripted player for the agent's seat to compare a policy with."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from corral_games.territory.rules import EVERYWHERE, FREE, capacity

__all__ = ["MIN_ORDER_INTERVAL", "ORDER_INTERVALS", "Patient", "bot_order"]

MIN_ORDER_INTERVAL, ORDER_INTERVALS = 40, 41
"""The ticks between two orders of a bot are MIN_ORDER_INTERVAL plus a random number from 0 to ORDER_INTERVALS - 1."""
_EXPAND_PERCENT, _EXPAND_FROM_PERCENT = 60, 10
"""Percent of a bot's troops that it sends to free land, and percent of its capacity that it needs to do so."""
_ATTACK_PERCENT, _ATTACK_FROM_PERCENT = 20, 50
"""The same for an attack on a neighbour."""


def bot_order(bot: Any, draw: Any, home: Any, land: Any, contacts: Any) -> tuple[Any, Any]:
    """Return a bot's order: the percent of its troops to send (0 for no order), and the target to attack.

    ``bot`` is the bot's number as a player, ``draw`` a random integer. ``home`` and ``land`` [P] are the troops at home
    and the tiles of each player. ``contacts`` [P, 1 + P] has the length of each player's border with free land and with
    each player.

    A bot next to free land attacks only that, with more troops than is good for it. Any other bot with enough troops
    attacks one neighbour, drawn with probabilities proportional to the lengths of the borders. Like the functions in
    ``rules``, this one is compiled by ``ticks_numba``.
    """
    full_percent = 100 * home[bot] // capacity(land[bot])
    if contacts[bot, 0] > 0:
        return (_EXPAND_PERCENT if full_percent >= _EXPAND_FROM_PERCENT else 0), FREE
    border = 0
    for player in range(len(land)):
        border += contacts[bot, 1 + player]
    if border == 0 or full_percent < _ATTACK_FROM_PERCENT:
        return 0, FREE
    remaining = draw % border
    target = 0
    for player in range(len(land)):
        if remaining >= 0:
            target = player
        remaining -= contacts[bot, 1 + player]
    return _ATTACK_PERCENT, target


# The index of ``observe.GLOBALS[1]``, the troops at home, in the last frame; and ``env.WAIT``. Importing both modules
# here would be circular.
_HOME, _WAIT = 1 - 16, 5 * EVERYWHERE


class Patient:
    """A scripted player: waits until its troops are half of the capacity, then sends some of them in all directions.

    It is a ``corral.envs.opponent_protocol.Player`` and sees the agent's observation. ``enough`` is the part of the
    capacity that it waits for, ``share`` the index of the share of its troops that it sends (``env.SHARES``).
    """

    def __init__(self, enough: float = 0.5, share: int = 3) -> None:
        self.enough, self.share = enough, share

    def __call__(
        self, observation: Any, mask: npt.NDArray[np.bool_] | None, generator: np.random.Generator | None = None
    ) -> int:
        """Return the action to take."""
        home = observation["global"][_HOME]
        action = _WAIT + (self.share if home >= self.enough else 0)
        return action if mask is None or mask[action] else _WAIT
