"""Code that a run directory names: its env, policy and hooks, and the cluster that runs it.

Corral imports it, and connects to the cluster, only if the user names them again.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from corral.config.schema import TrainConfig
from corral.core.entry_points import PYTHON_PREFIX
from corral.core.errors import CodeNotConfirmed, UsageError
from corral.core.stdio import command
from corral.envs.registry import is_code

__all__ = [
    "code_flags",
    "needs_python",
    "require_same_cluster",
    "require_same_code",
    "resume_command",
    "without_directory",
]


class _Code(NamedTuple):
    """Code that a config names."""

    flag: str
    """The flag of the command line that names it: ``env``, ``policy`` or ``hook``."""
    spec: str
    """Its name, such as ``file.py:callable``."""


def require_same_code(
    recorded: TrainConfig, env: str | None, policy: str | None, hooks: Sequence[str] | None = None
) -> None:
    """Raise unless the user names the same code as the config of a run directory; otherwise the code is not imported.

    Built-in envs and Gymnasium ids need not be named again, because they import no code of the user. Only commands that
    resume a run give ``hooks``: these must include all hooks of the run, and may include others.
    """
    given = {"env": env, "policy": policy}
    in_run = {"env": recorded.env, "policy": recorded.policy}
    for name, spec in given.items():
        if spec is not None and without_directory(spec) != without_directory(in_run[name] or ""):
            raise UsageError(f"{name} {spec!r} is not what the run was made with: {in_run[name] or 'the built-in one'}")
    missing = [code for code in _code_in(recorded) if given[code.flag] is None]
    if hooks is not None:
        missing += [_Code("hook", spec) for spec in _missing_hooks(recorded.hooks, hooks)]
    if any(spec.startswith(PYTHON_PREFIX) for _, spec in missing):
        raise UsageError(
            f"the run used {', '.join(spec for _, spec in missing)}, which only Python can give: "
            f"corral.resume(run, {_arguments(missing)}); corral.load(run) needs no env"
            + (f" (hooks given: {', '.join(hooks)})" if hooks else "")
        )
    if missing:
        raise CodeNotConfirmed(_flags(missing))


def require_same_cluster(config: TrainConfig, settings: Collection[str]) -> None:
    """Raise if a resumed run would use a cluster that only the run directory names; ``settings`` are those given.

    The nodes of a cluster run the code of the run and send back what this process unpickles.
    """
    missing = [code for code in _cluster_in(config) if code.flag.replace("-", "_") not in settings]
    if missing:
        raise CodeNotConfirmed(_flags(missing), "machines or directories for Ray (or choose --backend worker)")


def _missing_hooks(recorded: Sequence[str], given: Sequence[str]) -> list[str]:
    """Return the recorded hooks that were not given; a hook that was recorded twice must be given twice."""
    left = Counter(map(without_directory, recorded)) - Counter(map(without_directory, given))
    missing = []
    for spec in recorded:
        if left[without_directory(spec)] > 0:
            left[without_directory(spec)] -= 1
            missing.append(spec)
    return missing


def code_flags(config: TrainConfig, hooks: bool = False) -> str:
    """Return the flags that name the code of a run, for a command on this run; ``resume`` needs its ``hooks`` too."""
    return _flags(_code_in(config, hooks))


def needs_python(config: TrainConfig, hooks: bool = False) -> bool:
    """Return whether the env, the policy or one of the ``hooks`` is a Python object, which no flag can name."""
    return any(spec.startswith(PYTHON_PREFIX) for _, spec in _code_in(config, hooks))


def resume_command(run: str, config: TrainConfig, timesteps: int | None = None) -> str:
    """Return the command that resumes a run, or the Python call if its code is an object that only Python can give."""
    if needs_python(config, hooks=True):
        cluster = [f"{flag.replace('-', '_')}={spec!r}" for flag, spec in _cluster_in(config)]
        steps = [] if timesteps is None else [f"timesteps={timesteps}"]
        return f"corral.resume({run!r}, {', '.join([_arguments(_code_in(config, hooks=True)), *cluster, *steps])})"
    budget = "" if timesteps is None else f" --timesteps {timesteps}"
    flags = _flags([*_code_in(config, hooks=True), *_cluster_in(config)])
    return f"{command()} resume {shlex.quote(run)} {flags}".rstrip() + budget


def _code_in(config: TrainConfig, hooks: bool = False) -> list[_Code]:
    """Return the code that a config names: the env if it is code, the policy, and with ``hooks`` also the hooks."""
    env = [_Code("env", _current_spec(config.env))] if is_code(config.env) else []
    policy = [] if config.policy is None else [_Code("policy", config.policy)]
    return [*env, *policy, *(_Code("hook", spec) for spec in config.hooks if hooks)]


def _cluster_in(config: TrainConfig) -> list[_Code]:
    """Return the settings of a config that say which machines run its code, and with which files."""
    if config.backend != "ray":
        return []
    address = [] if config.ray_address == "local" else [_Code("ray-address", config.ray_address)]
    working_dir = [] if config.ray_working_dir is None else [_Code("ray-working-dir", config.ray_working_dir)]
    return [*address, *working_dir]


def _flags(code: Sequence[_Code]) -> str:
    """Return code as flags of the command line."""
    return " ".join(f"--{flag} {shlex.quote(spec)}" for flag, spec in code)


def _arguments(code: Sequence[_Code]) -> str:
    """Return code as arguments of ``corral.resume``, with placeholders for the objects."""
    arguments = ["hooks=[...]" if flag == "hook" else f"{flag}=..." for flag, _ in code]
    return ", ".join(dict.fromkeys(arguments))


def without_directory(spec: str) -> str:
    """Return ``path/to/file.py:callable`` without the path, because the user may name it from another directory."""
    spec = _current_spec(spec)
    source, colon, attribute = spec.rpartition(":")
    return f"{Path(source).name}:{attribute}" if colon and source.endswith(".py") else spec


def _current_spec(spec: str) -> str:
    """Return the current name of recorded code: earlier versions had the games in ``corral.games``."""
    return re.sub(rf"^({PYTHON_PREFIX})?corral\.games\.", r"\1corral_games.", spec)
