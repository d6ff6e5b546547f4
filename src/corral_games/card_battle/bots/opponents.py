"""The opponents that a user can name or pass, as objects that choose actions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from corral.core.errors import UsageError
from corral.core.sums import parse_mix
from corral.envs.opponent_protocol import Player
from corral_games.card_battle.bots.bots import BOT_NAMES, Bot, make_bot

__all__ = ["Opponent", "OpponentMix", "bot_opponent"]


@dataclass(frozen=True, slots=True)
class Opponent:
    """The opponent of an episode: either a bot of the game, or a ``Player``."""

    name: str
    bot: Bot | None = None
    player: Player | None = None

    @property
    def is_recurrent(self) -> bool:
        """Whether a player's actions depend on earlier observations of the duel."""
        return bool(getattr(self.player, "is_recurrent", False))

    def for_new_game(self) -> Opponent:
        """Return this opponent with an empty recurrent state."""
        make_player = getattr(self.player, "for_new_game", None)
        return self if make_player is None else replace(self, player=make_player())


class OpponentMix:
    """One opponent, or several with their shares of the episodes. Raises ``UsageError`` for anything else."""

    def __init__(self, opponent: Any) -> None:
        self._shares: list[tuple[Opponent, float]] = []
        if isinstance(opponent, str):
            for name, share in parse_mix(opponent, BOT_NAMES).items():
                self._shares.append((bot_opponent(name), share))
        else:
            self._shares.append((_player_opponent(opponent), 1.0))

    def draw(self, number: float) -> Opponent:
        """Return the opponent for a new duel whose share contains ``number``, which is from 0 to 1."""
        for opponent, share in self._shares:
            number -= share
            if number < 0:
                return opponent.for_new_game()
        return self._shares[-1][0].for_new_game()


def bot_opponent(name: str) -> Opponent:
    """Return the bot with this name, one of ``BOT_NAMES``, as an opponent."""
    return Opponent(name, bot=make_bot(name))


def _player_opponent(opponent: Any) -> Opponent:
    """Return a function or an object with ``predict`` as an opponent."""
    name = str(getattr(opponent, "name", None) or getattr(opponent, "__name__", None) or type(opponent).__name__)
    if callable(getattr(opponent, "predict", None)):
        return Opponent(name, player=_PredictPlayer(opponent.predict))
    if callable(opponent):
        return Opponent(name, player=opponent)
    raise UsageError(
        f"opponent {opponent!r:.80} should be one of {', '.join(BOT_NAMES)}, mixed:a=1,b=3, a function of "
        "(observation, mask, generator), or an object with predict(observation, action_masks=..., deterministic=...)"
    )


class _PredictPlayer:
    """A player from a ``predict`` method like Stable-Baselines3's.

    It plays the deterministic action, because the samples of ``predict`` do not depend on the env's seed.
    """

    def __init__(self, predict: Callable[..., Any]) -> None:
        self._predict = predict
        self._state_argument: dict[str, Any] = {}  # the recurrent state of the last call, for the next one

    @property
    def is_recurrent(self) -> bool:
        return bool(self._state_argument)

    def for_new_game(self) -> _PredictPlayer:
        return _PredictPlayer(self._predict)

    def __call__(self, observation: Any, mask: npt.NDArray[np.bool_] | None, _: np.random.Generator) -> Any:
        action, *rest = self._predict(observation, action_masks=mask, deterministic=True, **self._state_argument)
        if rest and rest[0] is not None:
            self._state_argument = {"state": rest[0]}
        return action
