"""The features of each legal action: a row of 32 numbers between -1 and 2, named in ``ACTION_FEATURES``.

A row describes the card, its target and the immediate consequences, such as which creatures would die and how much
damage would be unblocked. Like the observation it depends only on what the player to act can see.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from corral_games.card_battle.bots.action_value import score_options
from corral_games.card_battle.engine.options import MAX_OPTIONS
from corral_games.card_battle.engine.pieces import BLOCKING, RAIDING
from corral_games.card_battle.engine.rules import Duel
from corral_games.card_battle.features.action_rows import ACTION_FEATURES, WIDTH, quantize_score
from corral_games.card_battle.features.combat_rows import attack_rows, block_rows
from corral_games.card_battle.features.spell_rows import spell_rows

__all__ = ["ACTION_FEATURES", "describe_actions"]


def describe_actions(duel: Duel) -> npt.NDArray[np.float16]:
    """Return a new array with a row for each legal action of ``duel.to_act``, and zeros in all further rows."""
    table = bytearray(2 * MAX_OPTIONS * WIDTH)  # of float16, which numpy can view without a copy
    if duel.winner is None:
        swings = [quantize_score(score) for score in score_options(duel)]
        if not duel.stack and duel.phase == RAIDING:
            rows = attack_rows(duel, swings)
        elif not duel.stack and duel.phase == BLOCKING:
            rows = block_rows(duel, swings)
        else:
            rows = spell_rows(duel, swings)
        packed = b"".join(rows)
        table[: len(packed)] = packed
    return np.frombuffer(table, np.float16).reshape(MAX_OPTIONS, WIDTH)  # [200, 32]
