"""How well simple players do in territory: one that plays at random, one that only waits, and a patient one.

Usage: python benchmarks/territory_players.py [--games N] [--bots N ...] [--size S]. Prints markdown: means over the
games with 95% intervals. Shares are of all land, at the end of a game; bots that are out count with nothing.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np

from corral_games.territory.bots import Patient
from corral_games.territory.env import WAIT, Territory
from corral_games.territory.observe import GLOBALS

FREE = GLOBALS.index("free share of all land") - len(GLOBALS)
PLAYERS: dict[str, Callable[..., int]] = {
    "random": lambda observation, mask, generator: int(generator.choice(np.flatnonzero(mask))),
    "waits": lambda observation, mask, generator: WAIT,
    "patient": Patient(),
}
COLUMNS = ("land", "mean bot", "rank", "won", "steps", "free land gone at step")


def play(player: Callable[..., int], env: Territory, seed: int) -> list[float]:
    observation, _ = env.reset(seed=seed)
    generator = np.random.default_rng(seed)
    steps, gone, end = 0, np.nan, False
    while not end:
        observation, _, terminated, truncated, info = env.step(player(observation, env.action_masks(), generator))
        steps, end = steps + 1, terminated or truncated
        if np.isnan(gone) and observation["global"][FREE] == 0:
            gone = steps
    return [info["land_share"], info["mean_bot_share"], info["rank"], info["won"], steps, gone]


def format_column(name: str, values: np.ndarray) -> str:
    values = values[~np.isnan(values)]
    if not len(values):
        return "never"
    mean = values.mean()
    spread = 1.96 * values.std(ddof=1) / len(values) ** 0.5 if len(values) > 1 else np.nan
    return f"{mean:.1%} ± {spread:.1%}" if name in COLUMNS[:2] or name == "won" else f"{mean:.1f} ± {spread:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--games", type=int, default=50)
    parser.add_argument("--bots", type=int, nargs="+", default=[10])
    parser.add_argument("--size", type=int, default=64)
    options = parser.parse_args()
    print(f"| bots | player | {' | '.join(COLUMNS)} | seconds |")
    print("|" + "---|" * (len(COLUMNS) + 3))
    for bots in options.bots:
        env = Territory(size=options.size, num_bots=bots)
        for name, player in PLAYERS.items():
            start = time.perf_counter()
            ends = np.array([play(player, env, seed) for seed in range(options.games)], float)
            cells = [format_column(column, ends[:, i]) for i, column in enumerate(COLUMNS)]
            print(f"| {bots} | {name} | {' | '.join(cells)} | {time.perf_counter() - start:.0f} |", flush=True)


if __name__ == "__main__":
    main()
