"""Code that a run directory names: its env, policy and hooks. It is imported only if the user names it again."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from corral.config.schema import TrainConfig
from corral.core.entry_points import PYTHON
from corral.core.errors import CodeNotConfirmed, UsageError
from corral.core.stdio import command
from corral.envs.registry import is_code

__all__ = ["code_flags", "needs_python", "require_same_code", "resume_command", "without_directory"]


def require_same_code(
    recorded: TrainConfig, env: str | None, policy: str | None, hooks: Sequence[str] | None = None
) -> None:
    """Refuse to import what a run directory names, unless the user names the same.

    Built-in envs and plain ids load by themselves; a name that would make Python import something does not. Only what
    goes on with a run gives ``hooks``: all that the run had are needed, and there may be more.
    """
    given, known = {"env": env, "policy": policy}, {"env": recorded.env, "policy": recorded.policy}
    for name, said in given.items():
        if said is not None and without_directory(said) != without_directory(known[name] or ""):
            raise UsageError(f"{name} {said!r} is not what the run was made with: {known[name] or 'the built-in one'}")
    missing = [(name, spec) for name, spec in _code_named(recorded) if given[name] is None]
    left = Counter(map(without_directory, recorded.hooks)) - Counter(map(without_directory, hooks or ()))
    for spec in recorded.hooks if hooks is not None else ():
        if left[without_directory(spec)] > 0:
            left[without_directory(spec)] -= 1
            missing.append(("hook", spec))
    if any(spec.startswith(PYTHON) for _, spec in missing):
        raise UsageError(
            f"the run used {', '.join(spec for _, spec in missing)}, which only Python can give: "
            f"corral.resume(run, {_arguments(missing)}); corral.load(run) needs no env"
            + (f" (of hooks there were {', '.join(hooks)})" if hooks else "")
        )
    if missing:
        raise CodeNotConfirmed(_flags(missing))


def code_flags(config: TrainConfig, hooks: bool = False) -> str:
    """The flags that a command on this run needs, because its env or policy is code; with its ``hooks``, to resume."""
    return _flags(_code_named(config, hooks))


def needs_python(config: TrainConfig, hooks: bool = False) -> bool:
    """Whether the env, the policy or one of the ``hooks`` of a run is an object that only Python can give."""
    return any(spec.startswith(PYTHON) for _, spec in _code_named(config, hooks))


def resume_command(run: str, config: TrainConfig, timesteps: int | None = None) -> str:
    """What to type to go on with a run: a command, or a call where its code is an object that only Python can give."""
    if needs_python(config, hooks=True):
        steps = [] if timesteps is None else [f"timesteps={timesteps}"]
        return f"corral.resume({run!r}, {', '.join([_arguments(_code_named(config, hooks=True)), *steps])})"
    more = "" if timesteps is None else f" --timesteps {timesteps}"
    return f"{command()} resume {shlex.quote(run)} {code_flags(config, hooks=True)}".rstrip() + more


def _code_named(config: TrainConfig, hooks: bool = False) -> list[tuple[str, str]]:
    """What of a run makes Python import something, by its flag: every policy and hook does, and some envs."""
    env = [("env", _current(config.env))] if is_code(config.env) else []
    policy = [] if config.policy is None else [("policy", config.policy)]
    return [*env, *policy, *(("hook", spec) for spec in config.hooks if hooks)]


def _flags(code: Sequence[tuple[str, str]]) -> str:
    return " ".join(f"--{name} {shlex.quote(spec)}" for name, spec in code)


def _arguments(code: Sequence[tuple[str, str]]) -> str:
    """How ``corral.resume`` is given code."""
    words = ["hooks=[...]" if name == "hook" else f"{name}=..." for name, _ in code]
    return ", ".join(dict.fromkeys(words))


def without_directory(spec: str) -> str:
    """``path/to/file.py:callable`` without the path: the same file may be reached from another directory."""
    spec = _current(spec)
    source, colon, attribute = spec.rpartition(":")
    return f"{Path(source).name}:{attribute}" if colon and source.endswith(".py") else spec


def _current(spec: str) -> str:
    """Return what a recorded name is today: earlier versions had the games in ``corral.games``."""
    return re.sub(rf"^({PYTHON})?corral\.games\.", r"\1corral_games.", spec)
