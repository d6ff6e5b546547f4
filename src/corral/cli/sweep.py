"""``corral sweep``."""

from __future__ import annotations

import argparse

from corral.cli.train import settings_of
from corral.core.errors import UsageError
from corral.sweeps.api import sweep
from corral.sweeps.request import choose_presets

__all__ = ["run_sweep"]


def run_sweep(options: argparse.Namespace) -> int:
    """Try presets, or search."""
    env, settings = settings_of(options)
    sweep(
        env,
        presets=choose_presets(options.preset, options.presets),
        search=None if options.search is None else _space(options.search),
        trials=options.trials,
        seeds=options.seeds,
        jobs=options.jobs,
        prune=options.prune,
        **settings,
    )
    return 0


def _space(words: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or not text:
            raise UsageError(f"--search {word!r}: should be name=values, as in learning_rate=log:1e-5:1e-3")
        name = name.replace("-", "_")
        if name in found:
            raise UsageError(f"--search {name} is given twice; list all its values at once")
        found[name] = text
    return found
