"""Who sits on the other side: from what a user names or gives to somebody who can choose."""

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

__all__ = ["Seated", "Seating"]


@dataclass(frozen=True, slots=True)
class Seated:
    """The opponent of an episode: a bot of the game, or a ``Player``."""

    name: str
    bot: Bot | None = None
    player: Player | None = None

    @property
    def is_recurrent(self) -> bool:
        """Whether a player plays by what it saw earlier in the duel."""
        return bool(getattr(self.player, "is_recurrent", False))

    def for_new_game(self) -> Seated:
        """The same for another duel, of which it remembers nothing yet."""
        forget = getattr(self.player, "for_new_game", None)
        return self if forget is None else replace(self, player=forget())


class Seating:
    """A choice of opponents: one of them, or several with their shares. Raises a UsageError if it makes no sense."""

    def __init__(self, opponent: Any) -> None:
        self._choices: list[tuple[Seated, float]] = []
        if isinstance(opponent, str):
            for name, share in parse_mix(opponent, BOT_NAMES).items():
                self._choices.append((seat_bot(name), share))
        else:
            self._choices.append((_seat_object(opponent), 1.0))

    def draw(self, number: float) -> Seated:
        """The one whose share ``number``, from 0 to 1, falls into, for another duel."""
        for seated, share in self._choices:
            number -= share
            if number < 0:
                return seated.for_new_game()
        return self._choices[-1][0].for_new_game()


def seat_bot(name: str) -> Seated:
    """One of ``BOT_NAMES``."""
    return Seated(name, bot=make_bot(name))


def _seat_object(opponent: Any) -> Seated:
    name = str(getattr(opponent, "name", None) or getattr(opponent, "__name__", None) or type(opponent).__name__)
    if callable(getattr(opponent, "predict", None)):
        return Seated(name, player=_Predictor(opponent.predict))
    if callable(opponent):
        return Seated(name, player=opponent)
    raise UsageError(
        f"opponent {opponent!r:.80} should be one of {', '.join(BOT_NAMES)}, mixed:a=1,b=3, a function of "
        "(observation, mask, generator), or an object with predict(observation, action_masks=..., deterministic=...)"
    )


class _Predictor:
    """A player from a ``predict`` like Stable-Baselines3's: its best action, for its samples would not be seeded."""

    def __init__(self, predict: Callable[..., Any]) -> None:
        self._predict = predict
        self._memory: dict[str, Any] = {}  # what it wants to be given back with the next observation

    @property
    def is_recurrent(self) -> bool:
        return bool(self._memory)

    def for_new_game(self) -> _Predictor:
        return _Predictor(self._predict)

    def __call__(self, observation: Any, mask: npt.NDArray[np.bool_] | None, _: np.random.Generator) -> Any:
        action, *rest = self._predict(observation, action_masks=mask, deterministic=True, **self._memory)
        if rest and rest[0] is not None:
            self._memory = {"state": rest[0]}
        return action
