"""How well the recipes learn the card battle: win rates against the scripted players and against plain PPO.

Usage: python benchmarks/card_battle_learning.py [--timesteps N] [--seeds N] [--games N] [--output DIR].
Prints markdown tables. All runs have the game's own settings, with a learning rate that falls to a tenth; times include
learning, but not the games at the end. Intervals of matches are by deals: the two games of a deal depend on each other.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import corral
from corral.envs.factory import resolve_env
from corral.opponents.frozen_policy import FrozenPolicy
from corral.opponents.matches import Match, play_match
from corral.storage.checkpoint import list_checkpoints

ENV = "card-battle"
FACTORY = resolve_env(ENV)
RECIPES = {
    "plain PPO": corral.train,
    "self-play": corral.selfplay,
    "hybrid": corral.hybrid,
    "warm start": corral.warmstart,
    "warm start v2": lambda env, **settings: corral.warmstart(env, preset="v2", **settings),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--timesteps", type=int, default=300_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--games", type=int, default=1000)
    parser.add_argument("--output", default="build/card-battle-learning")
    options = parser.parse_args()
    root = Path(options.output)

    print("| recipe | seed | seconds | against random | against greedy | against plain PPO |")
    print("|---|---|---|---|---|---|")
    heads: dict[str, list[float]] = {}
    for seed in range(1, options.seeds + 1):
        for name, recipe in RECIPES.items():
            if seed > 1 and name.startswith("warm start"):
                continue  # its question is how it begins, not how far it gets
            run = trained(recipe, root / f"{name.replace(' ', '-')}-{seed}", seed, options.timesteps)
            side, plain = latest(run), latest(root / f"plain-PPO-{seed}")
            matches = [play_match(FACTORY, side, other, options.games, 0) for other in ("random", "greedy")]
            head = ""
            if name != "plain PPO":
                match = play_match(FACTORY, side, plain, options.games, 0)
                head = shown(match)
                heads.setdefault(name, []).extend(match.outcomes)
            print(f"| {name} | {seed} | {seconds(run):.0f} | {' | '.join(map(shown, matches))} | {head} |", flush=True)
    for name, outcomes in heads.items():
        print(f"| {name} | all | | | | {by_deals(outcomes)} |")

    print("\n| observations | seconds | against random | against greedy |\n|---|---|---|---|")
    for features in (False, True):
        name = "36 numbers and a row for each action" if features else "36 numbers"
        run = root / "plain-PPO-1"
        if not features:
            run = trained(corral.train, root / "index", 1, options.timesteps, env_kwargs={"action_features": False})
        factory = resolve_env(ENV, {"action_features": features})
        matches = [play_match(factory, latest(run), other, options.games, 0) for other in ("random", "greedy")]
        print(f"| {name} | {seconds(run):.0f} | {' | '.join(map(shown, matches))} |", flush=True)

    print("\n| warm start, steps | against greedy |\n|---|---|")
    for checkpoint in list_checkpoints(root / "warm-start-1" / "checkpoints"):
        model = corral.load(root / "warm-start-1", checkpoint=str(checkpoint))
        match = play_match(FACTORY, model.frozen("warm"), "greedy", options.games // 2, 0)
        print(f"| {model.timesteps:,} | {shown(match)} |", flush=True)


def trained(recipe, path: Path, seed: int, timesteps: int, **settings) -> Path:
    """A run; one that is there already is taken as it is."""
    if not (path / "summary.json").exists():
        often = {"eval_freq": 0, "checkpoint_freq": 25_000, "keep_checkpoints": 50, "quiet": True}
        often["learning_rate_end"] = 1e-4
        started = time.perf_counter()
        recipe(ENV, timesteps=timesteps, seed=seed, output_dir=str(path), **often, **settings)
        (path / "seconds.txt").write_text(f"{time.perf_counter() - started:.1f}")
    return path


def seconds(run: Path) -> float:
    """All that a run took, its start and an expert's games included."""
    return float((run / "seconds.txt").read_text())


def latest(run: Path) -> FrozenPolicy:
    return corral.load(run, checkpoint="latest").frozen(run.name)


def shown(match: Match) -> str:
    return by_deals(match.outcomes)


def by_deals(outcomes: Sequence[float]) -> str:
    deals = np.reshape(outcomes, (-1, 2)).mean(axis=1)
    return f"{deals.mean():.1%} ± {1.96 * deals.std(ddof=1) / len(deals) ** 0.5:.1%}"


if __name__ == "__main__":
    main()
