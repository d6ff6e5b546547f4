"""The function of ``train_timed.py`` and ``train_parallel_timed.py``: trains for a duration and writes the metrics."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from corral.bench.timed import timed_settings, write_benchmark_metrics
from corral.cli.flags import merge_env_flags
from corral.cli.recipes import train_and_play
from corral.config.schema import TrainConfig
from corral.core.errors import UsageError
from corral.training.api import TrainResult, train
from corral.training.signals import Interrupted

__all__ = ["train_timed"]

_DURATION = 0.017
"""One minute, in hours."""


def train_timed(options: argparse.Namespace) -> int:
    """Train with a script's flags and write ``benchmark_metrics.json`` at the end of the run, also after Ctrl-C.

    With ``options.sequential`` the script trains in one process, otherwise with workers.
    """
    flags = {
        name: value for name, value in vars(options).items() if name in TrainConfig.model_fields and value is not None
    }
    settings: dict[str, Any] = {"env": options.usual_env, "duration": _DURATION}
    settings |= timed_settings(options.config, flags, options.sequential)
    env = settings.pop("env")
    settings["env_kwargs"] = merge_env_flags(options, env, settings.get("env_kwargs", {}))
    train_and_play(lambda: _train_and_write(env, settings), options.eval_games, env, settings.get("policy"))
    return 0


def _train_and_write(env: str, settings: dict[str, Any]) -> TrainResult:
    try:
        result = train(env, **settings)
    except Interrupted as interrupted:
        if interrupted.run_dir is not None:
            _write_metrics(interrupted.run_dir)
        raise
    _write_metrics(result.run_dir)
    return result


def _write_metrics(run_dir: Path) -> None:
    try:
        print(f"metrics of this run: {write_benchmark_metrics(run_dir)}")
    except (OSError, UsageError) as error:
        print(f"no benchmark_metrics.json: {error}", file=sys.stderr)
