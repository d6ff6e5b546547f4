"""Fault files: the actions after which an env raised, so that ``corral doctor --replay`` can reproduce it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from corral.config.schema import TrainConfig
from corral.core.entry_points import PYTHON_PREFIX
from corral.core.errors import EnvFault, UsageError
from corral.core.files import read_json, replace_file
from corral.core.stdio import command
from corral.envs.opponent_protocol import OPPONENT, opponent_number
from corral.storage.run_dir import RunDirectory

__all__ = ["FAULTS", "MAX_FAULT_FILES", "read_fault", "write_fault"]

FAULTS = "faults"
"""The folder of fault files in a run directory."""
MAX_BYTES = 256 << 20
"""Size of the largest fault file that is read."""
MAX_FAULT_FILES = 5
"""Number of faults of a run that are written; the fault that ends the run is always written."""


def write_fault(
    directory: RunDirectory,
    config: TrainConfig,
    fault: EnvFault,
    opponent_reset_options: Sequence[Mapping[str, Any]] = (),
) -> str | None:
    """Write a fault file and return the command that reproduces the fault; None if it cannot be reproduced.

    ``opponent_reset_options`` are the reset options of the env's scripted opponents by number
    (``Run.opponent_reset_options``).
    """
    if fault.reproduction is None:
        return None
    options = fault.reproduction.get("options")
    number = opponent_number(options)
    if number >= len(opponent_reset_options):
        return None  # the opponent is a policy that exists only in this run
    if number >= 0 and options is not None:
        options = {name: value for name, value in options.items() if name != OPPONENT} | dict(
            opponent_reset_options[number]
        )
    folder = directory.path / FAULTS
    location = fault.location
    path = folder / f"env-{location.env}-seed-{location.seed}-step-{location.step}.json"
    data = {"env": config.env, "env_kwargs": config.env_kwargs, "raised": fault.summary, "place": str(location)}
    try:
        folder.mkdir(exist_ok=True)
        replace_file(path, f"{json.dumps({**data, **fault.reproduction, 'options': options})}\n".encode())
    except (OSError, TypeError):  # the disk is full; the options are not plain data
        return None
    display_path = str(Path(directory.display_path) / FAULTS / path.name)
    if config.env.startswith(PYTHON_PREFIX):
        return f"corral.replay_fault({display_path!r}, env=...)"
    return f"{command()} doctor {shlex.quote(config.env)} --replay {shlex.quote(display_path)}"


def read_fault(path: str) -> dict[str, Any]:
    """Return the data of a fault file; raise a UsageError if it is none."""
    try:
        data = read_json(Path(path).resolve(), MAX_BYTES)
        actions, seed = data["actions"], data["seed"]
        if not isinstance(actions, dict) or not all(isinstance(leaf, list) for leaf in actions.values()):
            raise ValueError("its actions are not lists")
        if seed is not None and not isinstance(seed, int):
            raise ValueError("its seed is not a number")
    except OSError as error:
        raise UsageError(f"--replay {path}: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"--replay {path} is not a fault file of a run: {error}") from None
    return dict(data)
