"""Who sits on the other side: from what a user names or gives to somebody who can choose."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from corral.core.errors import UsageError
from corral.core.opponents import Player, parse_mix
from corral.games.card_battle.bots import BOT_NAMES, Bot, make_bot

__all__ = ["Seated", "Seating"]


@dataclass(frozen=True, slots=True)
class Seated:
    """The opponent of an episode: a bot of the game, or a ``Player``."""

    name: str
    bot: Bot | None = None
    player: Player | None = None


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
        """The one whose share ``number``, from 0 to 1, falls into."""
        for seated, share in self._choices:
            number -= share
            if number < 0:
                return seated
        return self._choices[-1][0]


def seat_bot(name: str) -> Seated:
    """One of ``BOT_NAMES``."""
    return Seated(name, bot=make_bot(name))


def _seat_object(opponent: Any) -> Seated:
    name = str(getattr(opponent, "name", None) or getattr(opponent, "__name__", None) or type(opponent).__name__)
    if callable(getattr(opponent, "predict", None)):
        return Seated(name, player=_ask_predict(opponent.predict))
    if callable(opponent):
        return Seated(name, player=opponent)
    raise UsageError(
        f"opponent {opponent!r:.80} should be one of {', '.join(BOT_NAMES)}, mixed:a=1,b=3, a function of "
        "(observation, mask, generator), or an object with predict(observation, action_masks=..., deterministic=...)"
    )


def _ask_predict(predict: Callable[..., Any]) -> Player:
    """A player from a ``predict`` like Stable-Baselines3's: its best action, for its samples would not be seeded."""

    def choose(observation: Any, mask: npt.NDArray[np.bool_] | None, _: np.random.Generator) -> Any:
        return predict(observation, action_masks=mask, deterministic=True)[0]

    return choose
