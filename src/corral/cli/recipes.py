"""``corral selfplay``, ``curriculum``, ``hybrid`` and ``warmstart``, and the games of the final policy after a run."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from corral.cli.train import read_settings
from corral.core.entry_points import absolute_spec
from corral.core.errors import UsageError
from corral.core.files import replace_file
from corral.envs.factory import EnvFactory, resolve_env
from corral.opponents.frozen_policy import FrozenPolicy
from corral.opponents.matches import Match, play_match
from corral.opponents.presets import ReferenceOpponents, reference_opponents_of_names
from corral.recipes.curriculum import curriculum
from corral.recipes.hybrid import hybrid
from corral.recipes.selfplay import selfplay
from corral.recipes.warmstart import warmstart
from corral.storage.run_dir import RunDirectory
from corral.training.api import MATCHES_FILE, TrainResult, resolve_network
from corral.training.model import load

__all__ = ["play_matches", "run_curriculum", "run_hybrid", "run_selfplay", "run_warmstart", "train_and_play"]


def run_selfplay(options: argparse.Namespace) -> int:
    """Train by self-play."""
    return _run(selfplay, options, "current_weight", "random_weight")


def run_curriculum(options: argparse.Namespace) -> int:
    """Train with a curriculum of stages."""
    return _run(curriculum, options, "preset", "fast", "no_curriculum")


def run_hybrid(options: argparse.Namespace) -> int:
    """Train against a scripted opponent first, then by self-play."""
    return _run(hybrid, options, "warmup", "current_weight", "random_weight")


def run_warmstart(options: argparse.Namespace) -> int:
    """Train after imitating an expert."""
    return _run(warmstart, options, "preset")


def _run(recipe: Any, options: argparse.Namespace, *recipe_flags: str) -> int:
    """Call a recipe with the settings of training and the values of its flags, where they are given."""
    env, settings = read_settings(options)
    recipe_options = {name: getattr(options, name) for name in recipe_flags if getattr(options, name) is not None}
    train_and_play(lambda: recipe(env, **recipe_options, **settings), options.eval_games, env, settings.get("policy"))
    return 0


def train_and_play(train: Callable[[], TrainResult], games: int, env: str | None, policy: str | None) -> None:
    """Train, and then play ``games`` games against each of two opponents of the env, if it has any.

    ``env`` and ``policy`` are the names that the user gave. Those in the run directory may no longer be importable.
    """
    if games < 0 or games % 2:
        raise UsageError(f"--eval-games {games}: should be an even number (each deal is played from both seats), or 0")
    env, policy = (absolute_spec(spec) if isinstance(spec, str) else spec for spec in (env, policy))
    result = train()
    if games:
        _play_final_games(result, games, env, policy)


def _play_final_games(result: TrainResult, games: int, env: str | None, policy: str | None) -> None:
    """Play games of the final policy against the env's reference opponents; save the results."""
    if not result.env_opponents:
        return
    directory = RunDirectory(result.run_dir)
    config = directory.read_config()
    factory = resolve_env(env or config.env, config.env_kwargs)
    network = resolve_network(config.policy, policy)
    final_policy = load(result.run_dir, checkpoint="latest", policy=network).frozen("policy")
    reference: ReferenceOpponents = reference_opponents_of_names(result.env_opponents)
    matches = play_matches(
        factory,
        final_policy,
        reference.evaluated_against,
        games,
        seed=0,
        title="games of the final policy, most likely moves",
    )
    results = [
        {
            "opponent": match.opponent,
            "games": len(match.outcomes),
            "win_rate": match.win_rate,
            "interval": match.interval,
            "mean_length": match.mean_length,
        }
        for match in matches
    ]
    replace_file(result.run_dir / MATCHES_FILE, f"{json.dumps(results, indent=1)}\n".encode())


def play_matches(
    factory: EnvFactory, side: FrozenPolicy, opponents: Sequence[str | FrozenPolicy], games: int, seed: int, title: str
) -> list[Match]:
    """Play ``games`` games of ``side`` against each opponent, with a progress bar, and print a table of the results."""
    matches = []
    with Progress(transient=True) as bar:
        for opponent in opponents:
            name = opponent if isinstance(opponent, str) else opponent.name
            task = bar.add_task(f"against {name}", total=games)
            matches.append(
                play_match(factory, side, opponent, games, seed, lambda n, task=task: bar.advance(task, n))  # type: ignore[misc]
            )
    table = Table("opponent", "won", "95% interval", "beginning / not", "games", "length", title=title)
    for match in matches:
        low, high = match.interval
        won_as_first, won_as_second = match.win_rate_by_seat
        table.add_row(
            match.opponent,
            f"{match.win_rate:.1%}",
            f"{low:.1%} to {high:.1%}",
            f"{won_as_first:.0%} / {won_as_second:.0%}",
            str(len(match.outcomes)),
            f"{match.mean_length:.0f}",
        )
    Console(highlight=False, emoji=False).print(table)
    return matches
