"""``corral train``, and ``corral resume`` for runs and sweeps."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from corral.cli.flags import merge_env_flags
from corral.config.schema import TrainConfig
from corral.config.yaml_file import load_yaml
from corral.core.errors import UsageError
from corral.core.files import is_file
from corral.core.suggestions import short_repr
from corral.training.api import resume, train

__all__ = ["read_settings", "run_resume", "run_train"]

_EVAL_GAMES = 100
"""Games against each of two opponents after a resumed run."""


def run_train(options: argparse.Namespace) -> int:
    """Train, from a config file, flags, or both."""
    from corral.cli.recipes import train_and_play

    env, settings = read_settings(options)
    train_and_play(lambda: train(env, **settings), options.eval_games, env, settings.get("policy"))
    return 0


def read_settings(options: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """Return the env and the settings of a config file and of flags, which override the file."""
    settings = load_yaml(options.config) if options.config else {}
    settings |= {
        name: value for name, value in vars(options).items() if name in TrainConfig.model_fields and name != "env"
    }
    env = options.env or settings.get("env") or getattr(options, "usual_env", None)
    if env is None:
        raise UsageError("which env? For example: corral train CartPole-v1 (`corral list` shows what there is)")
    if not isinstance(env, str):
        raise UsageError(f"env {short_repr(env)}: should be the name of an env")
    settings.pop("env", None)
    if env_kwargs := merge_env_flags(options, env, settings.get("env_kwargs", {})):
        settings["env_kwargs"] = env_kwargs
    return env, settings


def run_resume(options: argparse.Namespace) -> int:
    """Resume a run or a sweep."""
    changes = {name: value for name, value in vars(options).items() if name in TrainConfig.model_fields}
    env, policy, hooks = changes.pop("env", None), changes.pop("policy", None), changes.pop("hooks", ())
    if is_file(Path(options.run) / "sweep.yaml"):
        if options.eval_games is not None:
            changes["eval_games"] = options.eval_games
        if hooks:
            changes["hooks"] = hooks
        _resume_sweep(options.run, env, policy, changes)
        return 0
    from corral.cli.recipes import train_and_play

    games = _EVAL_GAMES if options.eval_games is None else options.eval_games
    train_and_play(lambda: resume(options.run, env=env, policy=policy, hooks=hooks, **changes), games, env, policy)
    return 0


def _resume_sweep(directory: str, env: str | None, policy: str | None, changes: Mapping[str, Any]) -> None:
    from corral.sweeps.api import resume_sweep

    if changes:
        raise UsageError(
            f"a sweep is resumed with the settings that it has: leave out {', '.join(changes)}. To change its number "
            f"of trials or jobs, give the `corral sweep` command again, with --output-dir {directory}"
        )
    resume_sweep(directory, env=env, policy=policy)
