"""How fast territory runs on one core: steps of an agent that plays at random, compiled and with numpy alone.

Usage: python benchmarks/territory_speed.py [--seconds S] [--repeats N]. Prints markdown: medians of the repeats
(smallest to largest), in processor time, so that other work on the machine counts little.
"""

from __future__ import annotations

import argparse
import importlib
import random
import statistics
import time
from types import ModuleType

import numpy as np

from corral_games.territory.env import Territory

SIZES = ((64, 10), (64, 25), (64, 50), (128, 50))
VARIANTS = {"numba": "corral_games.territory.ticks_numba", "numpy alone": "corral_games.territory.ticks_numpy"}


def steps_per_second(size: int, bots: int, ticks: ModuleType, seconds: float, seed: int) -> float:
    env = Territory(size=size, num_bots=bots)
    env._ticks = ticks
    choose = random.Random(seed)
    env.reset(seed=seed)
    steps, end, start = 0, False, time.process_time()
    while time.process_time() - start < seconds:
        if end:
            env.reset()
        _, _, terminated, truncated, _ = env.step(choose.choice(np.flatnonzero(env.action_masks()).tolist()))
        end = terminated or truncated
        steps += 1
    return steps / (time.process_time() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each repeat")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    print("| map | bots | ticks by | steps/s |")
    print("|---|---|---|---|")
    for variant, module in VARIANTS.items():
        try:
            ticks = importlib.import_module(module)
        except ImportError:
            print(f"| | | {variant} | not installed |")
            continue
        steps_per_second(32, 1, ticks, 0.1, 0)  # compiles
        for size, bots in SIZES:
            rates = [steps_per_second(size, bots, ticks, options.seconds, seed) for seed in range(options.repeats)]
            rate = f"{statistics.median(rates):,.0f} ({min(rates):,.0f} to {max(rates):,.0f})"
            print(f"| {size} × {size} | {bots} | {variant} | {rate} |", flush=True)


if __name__ == "__main__":
    main()
