"""Flags made from the typed config: the flag, the YAML key and the attribute are one word.

Flags carry no types of their own. What was typed goes, as text, through the same validation as a YAML file, so there
is one set of rules and one kind of message.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Container, Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args, get_origin

from corral.config.backends import BACKENDS
from corral.config.schema import TrainConfig, parse_env_kwargs
from corral.core.errors import UsageError, cut_words
from corral.core.suggestions import did_you_mean
from corral.envs.registry import BUILT_IN, OWN_FLAGS, PATHS, SWITCHES, own_flags

__all__ = ["Parser", "add_config_flags", "add_directory_flags", "add_own_flags", "own_kwargs"]

_FLAGS = {"timesteps": ("--timesteps", "--total-timesteps"), "hooks": ("--hook",)}
"""Flags of settings that have another than their own name, or more than one."""
_TITLES = {
    "budget": "budget (whichever is reached first; a small one gets shorter rollouts where --n-steps is not given)",
    "environment": "environment",
    "parallel": "parallelism (never changes the result, except for --n-envs and --overlap)",
    "opponents": "opponents (for envs with another side)",
    "expert": "warm start (imitate an expert first; `corral warmstart` has settings for what follows)",
    "recovery": "workers that die, hang or grow (replaced without a trace in the result)",
    "ppo": "PPO (names and defaults of Stable-Baselines3)",
    "policy": "policy",
    "learner": "learner (part of the result, so kept on resume)",
    "run": "run",
}


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line, with the nearest flag that exists."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **kwargs)
        self._negative_number_matcher = re.compile(r"^-(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?$")  # argparse's own lacks 1e-3

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and exit with code 2."""
        unknown = re.match(r"unrecognized arguments: (\S+)", message)
        if unknown:
            flag = unknown[1].split("=")[0]
            known = [option for action in self._actions for option in action.option_strings if option != "--help"]
            message = f"unknown flag {flag}{did_you_mean(flag, known)}" if flag.startswith("-") else message
        self.exit(2, f"{self.prog}: {cut_words(message)}. `{self.prog} --help` explains.\n")

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """Like argparse's, except that an unknown flag is matched against this verb's own flags."""
        found, unknown = self.parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {unknown[0]}")
        return found


def add_config_flags(
    parser: argparse.ArgumentParser, shown: Container[str] | None = None, hidden: Container[str] = ()
) -> None:
    """Add a flag for every field of the config; ``shown`` and ``hidden`` say which of them help mentions.

    Only what was typed ends up in the namespace.
    """
    groups: dict[str, Any] = {}
    for name, field in TrainConfig.model_fields.items():
        if name in ("env", "stages") or any(action.dest == name for action in parser._actions):
            continue
        extra = field.json_schema_extra
        group = extra["group"] if isinstance(extra, dict) else "run"
        title = _TITLES[str(group)]
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        flags = _FLAGS.get(name, (f"--{name.replace('_', '-')}",))
        text = (field.description or "").replace("%", "%%")
        silent = name in hidden or (shown is not None and name not in shown)
        text = argparse.SUPPRESS if silent else text + _default(field.default)
        options: dict[str, Any] = {"dest": name, "default": argparse.SUPPRESS, "help": text}
        if bool in (field.annotation, *get_args(field.annotation)):
            options["action"] = argparse.BooleanOptionalAction
        elif name in ("net_arch", "env_kwargs"):
            options |= {"nargs": "+", "metavar": "SIZE" if name == "net_arch" else "KEY=VALUE"}
            options |= {"action": "extend"} if name == "env_kwargs" else {}
        elif name == "hooks":
            options |= {"action": "append", "metavar": "NAME"}
        else:
            options["metavar"] = "|".join(("auto", *BACKENDS)) if name == "backend" else _metavar(field.annotation)
        groups[title].add_argument(*flags, **options)


class _OneDirectory(argparse.Action):
    """Takes a directory under any of its flags, but only one."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        before = getattr(namespace, self.dest, values)
        if before != values:
            parser.error(f"a run has one directory, but {before} and {values} were given")
        setattr(namespace, self.dest, values)


def add_directory_flags(parser: argparse.ArgumentParser) -> None:
    """Add ``--output-dir`` with the names that training scripts give it."""
    names = "--output-dir", "--save-path", "--checkpoint-dir", "--log-path"
    text = "the run directory, which holds checkpoints and logs [runs/<env>-<date>-<time>]"
    parser.add_argument(
        *names, dest="output_dir", metavar="DIR", action=_OneDirectory, default=argparse.SUPPRESS, help=text
    )


def add_own_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that built-in envs have of their own: short for ``--env-kwargs``."""
    for env, flags in OWN_FLAGS.items():
        group = parser.add_argument_group(env)
        for name, text in flags.items():
            how: Any = {"action": argparse.BooleanOptionalAction} if name in SWITCHES else {}
            group.add_argument(f"--{name.replace('_', '-')}", dest=name, default=argparse.SUPPRESS, help=text, **how)


def own_kwargs(options: argparse.Namespace, env: str, given: Any) -> Any:
    """``env_kwargs``, with the env's own flags among them."""
    own = {name for flags in OWN_FLAGS.values() for name in flags}
    typed = {name: value for name, value in vars(options).items() if name in own}
    for name, value in typed.items():
        flag = f"--{'no-' if value is False else ''}{name.replace('_', '-')}"
        if name not in own_flags(env):
            whose = ", ".join(owner for owner, flags in OWN_FLAGS.items() if name in flags)
            alone = env in BUILT_IN or name in SWITCHES
            hint = "" if alone else f"; {env} may take it as --env-kwargs {name}={value}"
            raise UsageError(f"{flag} is a flag of {whose}, not of {env}{hint}")
    if not typed:
        return given
    if twice := sorted(typed.keys() & parse_env_kwargs(vars(options).get("env_kwargs", [])).keys()):
        raise UsageError(f"{twice[0]} is given twice: as a flag and in --env-kwargs; leave one out")
    paths = {name: str(Path(value).absolute()) for name, value in typed.items() if name in PATHS}
    words = [f"{name}={value}" for name, value in typed.items() if name not in PATHS]
    return parse_env_kwargs(given) | parse_env_kwargs(words) | paths


def _metavar(annotation: Any) -> str:
    if get_origin(annotation) is Literal:
        return "|".join(get_args(annotation))
    words = {int: "N", float: "X", str: "NAME"}
    return next((words[kind] for kind in (annotation, *get_args(annotation)) if kind in words), "VALUE")


def _default(default: Any) -> str:
    if default is None or default in ({}, ()):
        return ""
    if isinstance(default, dict):
        default = " ".join(map(str, default["pi"]))
    if isinstance(default, bool):
        default = "yes" if default else "no"
    return f" [{default}]"
