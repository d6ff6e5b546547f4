"""``corral sweep``: train with several presets, or search for good settings."""

from __future__ import annotations

import argparse

from corral.cli.train import read_settings
from corral.core.errors import UsageError
from corral.sweeps.api import sweep
from corral.sweeps.request import choose_presets

__all__ = ["run_sweep"]


def run_sweep(options: argparse.Namespace) -> int:
    """Train with several presets, or search for good settings."""
    env, settings = read_settings(options)
    sweep(
        env,
        presets=choose_presets(options.preset, options.presets),
        search=None if options.search is None else _parse_search_space(options.search),
        trials=options.trials,
        seeds=options.seeds,
        jobs=options.jobs,
        prune=options.prune,
        **settings,
    )
    return 0


def _parse_search_space(arguments: list[str]) -> dict[str, str]:
    """Return the values of each ``name=values`` by name."""
    space: dict[str, str] = {}
    for argument in arguments:
        name, equals, values = argument.partition("=")
        if not equals or not values:
            raise UsageError(f"--search {argument!r}: should be name=values, as in learning_rate=log:1e-5:1e-3")
        name = name.replace("-", "_")
        if name in space:
            raise UsageError(f"--search {name} is given twice; list all its values at once")
        space[name] = values
    return space
