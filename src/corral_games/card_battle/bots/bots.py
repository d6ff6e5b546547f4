"""The scripted players (bots) of card battle by name. Their choices depend only on what their seat can see."""

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
    """A stateless player."""

    def choose(self, duel: Duel, rng: random.Random) -> Action:
        """Return one of ``duel.legal()`` for ``duel.to_act``; ``rng`` is the only source of randomness."""
        ...


class RandomBot:
    """Plays a legal action at random."""

    def choose(self, duel: Duel, rng: random.Random) -> Action:
        """Return a legal action, drawn uniformly."""
        options = duel.legal()
        return options[int(rng.random() * len(options))]


class GreedyBot:
    """Plays the action with the highest value one step ahead, each attack and each block by itself."""

    def choose(self, duel: Duel, rng: random.Random) -> Action:
        """Return the action with the highest score; does not use ``rng``."""
        return greedy_option(duel)


class SearchBot:
    """Plays by Monte Carlo tree search, in each iteration of which the hidden cards are sampled."""

    def __init__(self, iterations: int) -> None:
        self.iterations = iterations

    def choose(self, duel: Duel, rng: random.Random) -> Action:
        """Return the action that the search visited most."""
        return search(duel, rng, self.iterations)


_ITERATIONS = {"mcts-fast": 50, "mcts": 200, "mcts-strong": 500}

BOT_NAMES = ("random", "greedy", *_ITERATIONS)
"""The names of all bots, weakest first."""


def make_bot(name: str) -> Bot:
    """Return the bot with this name; raise ``UsageError`` if there is none."""
    if name == "random":
        return RandomBot()
    if name == "greedy":
        return GreedyBot()
    if name in _ITERATIONS:
        return SearchBot(_ITERATIONS[name])
    raise UsageError(f"unknown bot {name!r}; there are: {', '.join(BOT_NAMES)}")
