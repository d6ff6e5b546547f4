"""The scripted players of card battle, by name, weakest first. None of them looks at what its seat cannot see."""

from __future__ import annotations

import random
from typing import Protocol

from corral.core.errors import UsageError
from corral_games.card_battle.bots.greedy import greedy_option
from corral_games.card_battle.bots.search import search
from corral_games.card_battle.engine.pieces import Action
from corral_games.card_battle.engine.rules import Duel

__all__ = ["BOT_NAMES", "Bot", "make_bot"]


class Bot(Protocol):
    """Chooses for one side. Keeps nothing between two choices."""

    def choose(self, duel: Duel, rng: random.Random) -> Action:
        """Choose one of ``duel.legal()`` for ``duel.to_act``; all chance comes from ``rng``."""
        ...


class RandomBot:
    """Any legal action is as good as another."""

    def choose(self, duel: Duel, rng: random.Random) -> Action:
        """Draw one."""
        options = duel.legal()
        return options[int(rng.random() * len(options))]


class GreedyBot:
    """Takes what looks best one step ahead: cards by what they bring, each attack and each block by itself."""

    def choose(self, duel: Duel, rng: random.Random) -> Action:
        """Take the best score; uses no chance."""
        return greedy_option(duel)


class SearchBot:
    """Plays each choice out many times, each time with the hidden cards dealt anew."""

    def __init__(self, iterations: int) -> None:
        self.iterations = iterations

    def choose(self, duel: Duel, rng: random.Random) -> Action:
        """Take what was tried most."""
        return search(duel, rng, self.iterations)


_ITERATIONS = {"mcts-fast": 50, "mcts": 200, "mcts-strong": 500}

BOT_NAMES = ("random", "greedy", *_ITERATIONS)
"""All of them, weakest first."""


def make_bot(name: str) -> Bot:
    """Make the scripted player of that name."""
    if name == "random":
        return RandomBot()
    if name == "greedy":
        return GreedyBot()
    if name in _ITERATIONS:
        return SearchBot(_ITERATIONS[name])
    raise UsageError(f"unknown bot {name!r}; there are: {', '.join(BOT_NAMES)}")
