"""How fast card battle runs on one core: steps of an agent that plays at random, and decisions of the searching bots.

Usage: python benchmarks/card_battle_speed.py [--seconds S] [--repeats N]. Prints markdown: medians of the repeats
(smallest to largest), in processor time, so that other work on the machine counts little.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time

import numpy as np

from corral_games.card_battle.bots.bots import make_bot
from corral_games.card_battle.engine.rules import new_duel
from corral_games.card_battle.env import CardBattle

OPPONENTS = ("random", "greedy")
SEARCHING = ("mcts-fast", "mcts", "mcts-strong")


def steps_per_second(opponent: str, action_features: bool, seconds: float, seed: int) -> float:
    env = CardBattle(opponent, action_features=action_features)
    choose = random.Random(seed)
    env.reset(seed=seed)
    steps, end, start = 0, False, time.process_time()
    while time.process_time() - start < seconds:
        if end:
            env.reset()
        legal = int(np.count_nonzero(env.action_masks()))
        _, _, terminated, truncated, _ = env.step(int(choose.random() * legal))
        end = terminated or truncated
        steps += 1
    return steps / (time.process_time() - start)


def ms_per_decision(bot: str, seconds: float, seed: int) -> float:
    """Of a bot that sits on one side, against the greedy one."""
    searching, greedy, rng = make_bot(bot), make_bot("greedy"), random.Random(seed)
    spent, decisions, game = 0.0, 0, seed
    while spent < seconds:
        duel = new_duel(("random", "random"), game)
        seat = game % 2
        while duel.winner is None and spent < seconds:
            if duel.to_act != seat:
                duel.apply(greedy.choose(duel, rng))
                continue
            start = time.process_time()
            action = searching.choose(duel, rng)
            spent += time.process_time() - start
            decisions += 1
            duel.apply(action)
        game += 1
    return 1000 * spent / decisions


def format_median(numbers: list[float], shape: str) -> str:
    low, middle, high = min(numbers), statistics.median(numbers), max(numbers)
    return f"{middle:{shape}} ({low:{shape}} to {high:{shape}})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=1.0, help="processor time of each measurement")
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    print("| opponent | action features | agent steps/s |\n|---|---|---|")
    for opponent in OPPONENTS:
        for action_features in (False, True):
            rates = [steps_per_second(opponent, action_features, args.seconds, i) for i in range(args.repeats)]
            print(f"| {opponent} | {'yes' if action_features else 'no'} | {format_median(rates, ',.0f')} |", flush=True)
    print("\n| bot | ms a decision |\n|---|---|")
    for bot in SEARCHING:
        rates = [ms_per_decision(bot, args.seconds, i) for i in range(args.repeats)]
        print(f"| {bot} | {format_median(rates, '.1f')} |", flush=True)


if __name__ == "__main__":
    main()
