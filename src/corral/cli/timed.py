"""The two timed scripts: train for a given time, in one process or with workers, and write what was measured."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from corral.bench.timed import timed_settings, write_benchmark_metrics
from corral.cli.flags import merge_env_flags
from corral.cli.main import guarded
from corral.cli.recipes import train_and_play
from corral.cli.verbs import Script, verbs_of
from corral.config.schema import TrainConfig
from corral.core.errors import UsageError
from corral.training.api import TrainResult, train
from corral.training.signals import Interrupted

__all__ = ["run_timed"]

_ENV = "envpool:CoinrunEasy-v0"
_DURATION = 0.017
"""A minute, in hours."""


def run_timed(about: str, config: Path, sequential: bool) -> int:
    """Train as ``sys.argv`` says, from ``config`` if it names no other; returns the exit code.

    ``benchmark_metrics.json`` is written at the end of the run, after Ctrl-C too.
    """
    script = Script(Path(sys.argv[0]).name, about, _ENV)
    parser, _ = verbs_of(script)[1]["train"]
    parser.set_defaults(config=str(config) if config.is_file() else None, eval_games=0)
    options = parser.parse_args(sys.argv[1:])
    return guarded(script.name, sys.argv[1:], lambda: _train(options, sequential))


def _train(options: argparse.Namespace, sequential: bool) -> int:
    flags = {
        name: value for name, value in vars(options).items() if name in TrainConfig.model_fields and value is not None
    }
    settings: dict[str, Any] = {"env": _ENV, "duration": _DURATION}
    settings |= timed_settings(options.config, flags, sequential)
    env = settings.pop("env")
    settings["env_kwargs"] = merge_env_flags(options, env, settings.get("env_kwargs", {}))
    train_and_play(lambda: _timed(env, settings), options.eval_games, env, settings.get("policy"))
    return 0


def _timed(env: str, settings: dict[str, Any]) -> TrainResult:
    try:
        result = train(env, **settings)
    except Interrupted as stopped:
        if stopped.run_dir is not None:
            _write(stopped.run_dir)
        raise
    _write(result.run_dir)
    return result


def _write(run_dir: Path) -> None:
    try:
        print(f"metrics of this run: {write_benchmark_metrics(run_dir)}")
    except (OSError, UsageError) as error:
        print(f"no benchmark_metrics.json: {error}", file=sys.stderr)
