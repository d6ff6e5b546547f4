"""The games that come with Corral, as Gymnasium envs: ``from corral_games import CardBattle, GameBoy, Territory``.

Each class is imported when it is first used, so that importing the package requires none of the games' optional
packages. To create a ``GameBoy``, run ``pip install "corral[gameboy]"``; with ``corral[territory]``, ``Territory`` is
faster.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from corral_games.card_battle.env import CardBattle as CardBattle
    from corral_games.game_boy.env import GameBoy as GameBoy
    from corral_games.territory.env import Territory as Territory

_MODULES = {
    "CardBattle": "corral_games.card_battle.env",
    "GameBoy": "corral_games.game_boy.env",
    "Territory": "corral_games.territory.env",
}
"""The module of each class."""
__all__ = ["CardBattle", "GameBoy", "Territory"]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'corral_games' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return list(__all__)
