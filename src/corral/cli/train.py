"""``corral train`` and ``corral resume``, which goes on with sweeps too."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from corral.cli.flags import merge_env_flags
from corral.config.schema import TrainConfig
from corral.config.yaml_file import load_yaml
from corral.core.errors import UsageError
from corral.core.files import is_file
from corral.core.suggestions import short_repr
from corral.training.api import resume, train

__all__ = ["run_resume", "run_train", "settings_of"]

_GAMES = 100
"""Against each of two opponents, after a run that was gone on with."""


def run_train(options: argparse.Namespace) -> int:
    """Train, from a config file, flags, or both."""
    from corral.cli.recipes import train_and_play

    env, values = settings_of(options)
    train_and_play(lambda: train(env, **values), options.eval_games, env, values.get("policy"))
    return 0


def settings_of(options: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """The env and the settings that flags and a config file name."""
    values = load_yaml(options.config) if options.config else {}
    values |= {
        name: value for name, value in vars(options).items() if name in TrainConfig.model_fields and name != "env"
    }
    env = options.env or values.get("env") or getattr(options, "usual_env", None)
    if env is None:
        raise UsageError("which env? For example: corral train CartPole-v1 (`corral list` shows what there is)")
    if not isinstance(env, str):
        raise UsageError(f"env {short_repr(env)}: should be the name of an env")
    values.pop("env", None)
    if kwargs := merge_env_flags(options, env, values.get("env_kwargs", {})):
        values["env_kwargs"] = kwargs
    return env, values


def run_resume(options: argparse.Namespace) -> int:
    """Go on with a run, or with a sweep."""
    values = {name: value for name, value in vars(options).items() if name in TrainConfig.model_fields}
    env, policy, hooks = values.pop("env", None), values.pop("policy", None), values.pop("hooks", ())
    if is_file(Path(options.run) / "sweep.yaml"):
        from corral.sweeps.api import resume_sweep

        if options.eval_games is not None:
            values["eval_games"] = options.eval_games
        if hooks:
            values["hooks"] = hooks
        if values:
            raise UsageError(
                f"a sweep goes on as it was asked for: leave out {', '.join(values)}. To change its number of trials "
                f"or jobs, give the `corral sweep` command again, with --output-dir {options.run}"
            )
        resume_sweep(options.run, env=env, policy=policy)
        return 0
    from corral.cli.recipes import train_and_play

    games = _GAMES if options.eval_games is None else options.eval_games
    train_and_play(lambda: resume(options.run, env=env, policy=policy, hooks=hooks, **values), games, env, policy)
    return 0
