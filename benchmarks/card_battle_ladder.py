"""How strong the scripted players of card battle are: pairs of them play each other, both sides of every deal.

Usage: python benchmarks/card_battle_ladder.py [--pairs A:B ...] [--games N ...] [--processes P] [--seed S].
Prints a markdown table. Each deal is played twice with the players swapped: same decks, same cards, other seats.
"""

from __future__ import annotations

import argparse
import datetime as dt
import math
import random
import statistics
import time
from dataclasses import dataclass
from multiprocessing import get_context

from corral_games.card_battle.bots.bots import make_bot
from corral_games.card_battle.engine.decks import DECK_NAMES
from corral_games.card_battle.engine.rules import new_duel

LADDER = ("greedy:random", "mcts-fast:greedy", "mcts:mcts-fast", "mcts-strong:mcts-fast")
Z = 1.96


@dataclass
class Game:
    """One game as the first of the two players saw it."""

    won: float
    turns: int
    decisions: tuple[int, int]
    seconds: tuple[float, float]


def play(names: tuple[str, str], seed: int, swapped: bool) -> Game:
    """Play one deal; ``swapped``: the first player sits in seat 1."""
    rng = random.Random(seed)
    duel = new_duel((rng.choice(DECK_NAMES), rng.choice(DECK_NAMES)), seed)
    players = (make_bot(names[0]), make_bot(names[1]))
    dice = (random.Random(seed + 1), random.Random(seed + 2))
    decisions, seconds = [0, 0], [0.0, 0.0]
    while duel.winner is None:
        player = duel.to_act ^ swapped
        start = time.process_time()
        action = players[player].choose(duel, dice[player])
        seconds[player] += time.process_time() - start
        decisions[player] += 1
        duel.apply(action)
    won = 0.5 if duel.winner == 2 else float(duel.winner == int(swapped))
    return Game(won, duel.turn, (decisions[0], decisions[1]), (seconds[0], seconds[1]))


def play_both(job: tuple[tuple[str, str], int]) -> list[Game]:
    names, seed = job
    return [play(names, seed, False), play(names, seed, True)]


def wilson(rate: float, count: int) -> tuple[float, float]:
    """Bounds of a rate that are right in 95% of cases, if the games were independent."""
    middle = (rate + Z**2 / (2 * count)) / (1 + Z**2 / count)
    reach = Z / (1 + Z**2 / count) * math.sqrt(rate * (1 - rate) / count + Z**2 / (4 * count**2))
    return middle - reach, middle + reach


def report(name: str, pairs: list[list[Game]]) -> str:
    games = [game for pair in pairs for game in pair]
    rate = statistics.fmean(game.won for game in games)
    low, high = wilson(rate, len(games))
    by_deal = (
        Z * statistics.stdev(statistics.fmean(game.won for game in pair) for pair in pairs) / math.sqrt(len(pairs))
    )
    cost = []
    for player in (0, 1):
        decisions = sum(game.decisions[player] for game in games)
        cost.append(f"{1000 * sum(game.seconds[player] for game in games) / decisions:.3g}")
    length = statistics.fmean(sum(game.decisions) for game in games)
    cells = [
        name.replace(":", " against "),
        str(len(games)),
        f"{rate:.1%}",
        f"{low:.1%} to {high:.1%}",
        f"±{by_deal:.1%}",
        " / ".join(cost),
        f"{statistics.fmean(game.turns for game in games):.1f}",
        f"{length:.0f}",
    ]
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", nargs="+", default=LADDER, metavar="A:B")
    parser.add_argument("--games", nargs="+", type=int, default=[200], help="one number, or one for each pair")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    games = options.games * len(options.pairs) if len(options.games) == 1 else options.games
    if len(games) != len(options.pairs):
        parser.error(f"--games has {len(games)} numbers for {len(options.pairs)} pairs; give one, or one for each")
    print(
        f"`card_battle_ladder.py --seed {options.seed}`, {dt.date.today()}: win rate of the first player (draws half),"
    )
    print("bounds as if games were independent (Wilson), and as deals played twice really spread; CPU time.\n")
    print("| players | games | won | 95% | 95% by deals | ms per decision | turns | decisions |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    with get_context("spawn").Pool(options.processes) as pool:
        for pair, count in zip(options.pairs, games, strict=True):
            first, _, second = pair.partition(":")
            jobs = [((first, second), 1000 * options.seed + deal) for deal in range((count + 1) // 2)]
            print(report(pair, pool.map(play_both, jobs, chunksize=1)), flush=True)


if __name__ == "__main__":
    main()
