"""What each legal action of a duel is: a row of 32 numbers between -1 and 2, each with a name in ``ACTION_FEATURES``.

A row says what a look at the table tells: the card, its target, and what would follow at once: who would die, how much
damage would get through. Like the observation it reads only what the side to act may see.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from corral_games.card_battle.bots.action_value import score_options
from corral_games.card_battle.engine.options import MAX_OPTIONS
from corral_games.card_battle.engine.pieces import BLOCKING, RAIDING
from corral_games.card_battle.engine.rules import Duel
from corral_games.card_battle.features.action_rows import ACTION_FEATURES, WIDTH, swing_of
from corral_games.card_battle.features.combat_rows import block_rows, raid_rows
from corral_games.card_battle.features.spell_rows import spell_rows

__all__ = ["ACTION_FEATURES", "describe_actions"]


def describe_actions(duel: Duel) -> npt.NDArray[np.float16]:
    """Rows for the legal actions of ``duel.to_act``, and zeros below: a new array, ``[200, 32]``."""
    table = bytearray(2 * MAX_OPTIONS * WIDTH)
    if duel.winner is None:
        swings = [swing_of(score) for score in score_options(duel)]
        if not duel.stack and duel.phase == RAIDING:
            rows = raid_rows(duel, swings)
        elif not duel.stack and duel.phase == BLOCKING:
            rows = block_rows(duel, swings)
        else:
            rows = spell_rows(duel, swings)
        filled = b"".join(rows)
        table[: len(filled)] = filled
    return np.frombuffer(table, np.float16).reshape(MAX_OPTIONS, WIDTH)
