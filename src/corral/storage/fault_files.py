"""What an env raised, as a file from which `corral doctor --replay` makes it raise again."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from corral.config.schema import TrainConfig
from corral.core.entry_points import PYTHON
from corral.core.errors import EnvFault, UsageError
from corral.core.files import read_json, replace_file
from corral.core.stdio import command
from corral.envs.opponent_protocol import OPPONENT, opponent_number
from corral.storage.run_dir import RunDirectory

__all__ = ["FAULTS", "MOST_FAULTS", "keep_fault", "read_fault"]

FAULTS = "faults"
"""The folder in a run directory."""
MOST_BYTES = 256 << 20
"""Size of a file that is read."""
MOST_FAULTS = 5
"""That did not end the run; one that does is always written."""


def keep_fault(
    directory: RunDirectory, config: TrainConfig, fault: EnvFault, own: Sequence[Mapping[str, Any]] = ()
) -> str | None:
    """Write a fault down; how to see it again, or None if it cannot be. ``own``: `Run.opponent_reset_options`."""
    if fault.reproduction is None:
        return None
    number = opponent_number(options := fault.reproduction.get("options"))
    if number >= len(own):
        return None  # a policy that is nowhere else
    if number >= 0 and options is not None:
        options = {name: value for name, value in options.items() if name != OPPONENT} | dict(own[number])
    folder = directory.path / FAULTS
    location = fault.location
    path = folder / f"env-{location.env}-seed-{location.seed}-step-{location.step}.json"
    told = {"env": config.env, "env_kwargs": config.env_kwargs, "raised": fault.summary, "location": str(location)}
    try:
        folder.mkdir(exist_ok=True)
        replace_file(path, f"{json.dumps({**told, **fault.reproduction, 'options': options})}\n".encode())
    except (OSError, TypeError):  # a full disk; options that are no plain data
        return None
    display_path = str(Path(directory.display_path) / FAULTS / path.name)
    if config.env.startswith(PYTHON):
        return f"corral.replay_fault({display_path!r}, env=...)"
    return f"{command()} doctor {shlex.quote(config.env)} --replay {shlex.quote(display_path)}"


def read_fault(path: str) -> dict[str, Any]:
    """What ``keep_fault`` wrote."""
    try:
        told = read_json(Path(path).resolve(), MOST_BYTES)
        actions, seed = told["actions"], told["seed"]
        if not isinstance(actions, dict) or not all(isinstance(rows, list) for rows in actions.values()):
            raise ValueError("its actions are not lists")
        if seed is not None and not isinstance(seed, int):
            raise ValueError("its seed is not a number")
    except OSError as error:
        raise UsageError(f"--replay {path}: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"--replay {path} is not a fault that a run wrote down: {error}") from None
    return dict(told)
