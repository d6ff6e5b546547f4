"""Flags of the command line, made from the config: a flag, a YAML key and a field of the config have one name.

Flags have no types. The text of a flag goes through the same validation as a value in a YAML file, so there is one set
of rules and of error messages.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Container, Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args, get_origin

from corral.config.backends import BACKENDS
from corral.config.schema import TrainConfig, parse_env_kwargs
from corral.core.errors import UsageError, shorten_long_words
from corral.core.suggestions import did_you_mean
from corral.envs.registry import BOOLEAN_FLAGS, BUILT_IN, ENV_FLAGS, PATH_FLAGS, env_flags

__all__ = [
    "Parser",
    "add_cluster_flags",
    "add_config_flags",
    "add_directory_flags",
    "add_env_flags",
    "add_node_flags",
    "merge_env_flags",
]

_FLAGS = {"timesteps": ("--timesteps", "--total-timesteps"), "hooks": ("--hook",)}
"""By setting, its flags, if they are not just the name of the setting."""
_GROUP_TITLES = {
    "budget": "budget (whichever is reached first; a small one gets shorter rollouts where --n-steps is not given)",
    "environment": "environment",
    "parallel": "parallelism (never changes the result, except for --n-envs and --overlap)",
    "opponents": "opponents (for envs with another side)",
    "expert": "warm start (imitate an expert first; `corral warmstart` has settings for what follows)",
    "cluster": "machines of backend ray",
    "recovery": "workers that die, hang or grow (replaced without a trace in the result)",
    "ppo": "PPO (names and defaults of Stable-Baselines3)",
    "policy": "policy",
    "learner": "learner (part of the result, so kept on resume)",
    "run": "run",
}


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line, which suggests the nearest flag."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **kwargs)
        # With the expression of argparse, -1e-3 would be a flag.
        self._negative_number_matcher = re.compile(r"^-(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?$")

    def error(self, message: str) -> NoReturn:
        """Print what is wrong and exit with code 2."""
        unknown = re.match(r"unrecognized arguments: (\S+)", message)
        if unknown:
            flag = unknown[1].split("=")[0]
            all_flags = [option for action in self._actions for option in action.option_strings if option != "--help"]
            message = f"unknown flag {flag}{did_you_mean(flag, all_flags)}" if flag.startswith("-") else message
        self.exit(2, f"{self.prog}: {shorten_long_words(message)}. `{self.prog} --help` explains.\n")

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """Parse arguments as argparse does; the error for an unknown flag suggests one of this parser's flags."""
        options, unknown = self.parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {unknown[0]}")
        return options


def add_config_flags(
    parser: argparse.ArgumentParser, shown: Container[str] | None = None, hidden: Container[str] = ()
) -> None:
    """Add a flag for every field of the config that the parser does not have yet.

    The help lists all of them, or those in ``shown``, without those in ``hidden``. Parsed options contain only flags
    that were typed.
    """
    groups: dict[str, Any] = {}
    for name, field in TrainConfig.model_fields.items():
        if name in ("env", "stages") or any(action.dest == name for action in parser._actions):
            continue
        extra = field.json_schema_extra
        title = _GROUP_TITLES[str(extra["group"] if isinstance(extra, dict) else "run")]
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        flags = _FLAGS.get(name, (f"--{name.replace('_', '-')}",))
        is_hidden = name in hidden or (shown is not None and name not in shown)
        text = (field.description or "").replace("%", "%%") + _default_in_help(field.default)
        groups[title].add_argument(
            *flags,
            dest=name,
            default=argparse.SUPPRESS,
            help=argparse.SUPPRESS if is_hidden else text,
            **_argument_kind(name, field.annotation),
        )


def _argument_kind(name: str, annotation: Any) -> dict[str, Any]:
    """Return the arguments of ``add_argument`` that say how many values a setting's flag takes."""
    if bool in (annotation, *get_args(annotation)):
        return {"action": argparse.BooleanOptionalAction}
    if name == "net_arch":
        return {"nargs": "+", "metavar": "SIZE"}
    if name == "env_kwargs":
        return {"nargs": "+", "metavar": "KEY=VALUE", "action": "extend"}
    if name == "hooks":
        return {"action": "append", "metavar": "NAME"}
    return {"metavar": "|".join(("auto", *BACKENDS)) if name == "backend" else _metavar(annotation)}


class _OneDirectory(argparse.Action):
    """Takes a directory by any of several flags, and refuses two different ones."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        earlier = getattr(namespace, self.dest, values)
        if earlier != values:
            parser.error(f"a run has one directory, but {earlier} and {values} were given")
        setattr(namespace, self.dest, values)


def add_directory_flags(parser: argparse.ArgumentParser) -> None:
    """Add ``--output-dir``, also under the names that it has in other training scripts."""
    parser.add_argument(
        "--output-dir",
        "--save-path",
        "--checkpoint-dir",
        "--log-path",
        dest="output_dir",
        metavar="DIR",
        action=_OneDirectory,
        default=argparse.SUPPRESS,
        help="the run directory, which holds checkpoints and logs [runs/<env>-<date>-<time>]",
    )


def add_env_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags for arguments of built-in envs, which are short for ``--env-kwargs``."""
    for env, flags in ENV_FLAGS.items():
        group = parser.add_argument_group(env)
        for name, text in flags.items():
            kind: Any = {"action": argparse.BooleanOptionalAction} if name in BOOLEAN_FLAGS else {}
            group.add_argument(f"--{name.replace('_', '-')}", dest=name, default=argparse.SUPPRESS, help=text, **kind)


def add_cluster_flags(parser: Parser, _script: object = None) -> None:
    """Add the flags with which ``corral doctor`` examines a cluster."""
    add = parser.add_argument
    add("--cluster", action="store_true", help="examine the machines of a Ray cluster, with ENV on each")
    help_ = "of the cluster: local (a Ray on this machine alone), auto (the Ray that runs here) or HOST:PORT [local]"
    add("--ray-address", metavar="ADDRESS", default=argparse.SUPPRESS, help=help_)
    help_ = "a directory that is copied to every node, where ENV finds its modules and files"
    add("--ray-working-dir", metavar="DIR", default=argparse.SUPPRESS, help=help_)


def add_node_flags(parser: Parser, _script: object = None) -> None:
    """Add the flags of ``corral node``."""
    add = parser.add_argument
    add("--head", action="store_true", help="start a cluster, of which this machine is the head")
    add("--join", metavar="HOST:PORT", help="join the cluster with this head")
    add("--port", type=int, default=6379, metavar="N", help="the port of the head [6379]")
    add("--address", metavar="IP", help="the address of this machine [that of its route to the others]")
    add("--num-cpus", type=int, metavar="N", help="cores for workers [all]")
    add("--token", metavar="FILE", help="the cluster's secret [~/.corral/ray-token]")
    help_ = "after SIGTERM, wait at most this long until the envs have moved to other nodes [25]"
    add("--drain-seconds", type=float, default=25.0, metavar="S", help=help_)


def merge_env_flags(options: argparse.Namespace, env: str, env_kwargs: Any) -> Any:
    """Return ``env_kwargs`` with the values of the flags that ``add_env_flags`` added.

    Raise ``UsageError`` for a flag of another env, or for a value that is given in both ways.
    """
    flag_names = {name for flags in ENV_FLAGS.values() for name in flags}
    values = {name: value for name, value in vars(options).items() if name in flag_names}
    for name, value in values.items():
        if name not in env_flags(env):
            flag = f"--{'no-' if value is False else ''}{name.replace('_', '-')}"
            owners = ", ".join(owner for owner, flags in ENV_FLAGS.items() if name in flags)
            may_be_kwarg = env not in BUILT_IN and name not in BOOLEAN_FLAGS
            hint = f"; {env} may take it as --env-kwargs {name}={value}" if may_be_kwarg else ""
            raise UsageError(f"{flag} is a flag of {owners}, not of {env}{hint}")
    if not values:
        return env_kwargs
    if given_twice := sorted(values.keys() & parse_env_kwargs(vars(options).get("env_kwargs", [])).keys()):
        raise UsageError(f"{given_twice[0]} is given twice: as a flag and in --env-kwargs; leave one out")
    paths = {name: str(Path(value).absolute()) for name, value in values.items() if name in PATH_FLAGS}
    others = [f"{name}={value}" for name, value in values.items() if name not in PATH_FLAGS]
    return parse_env_kwargs(env_kwargs) | parse_env_kwargs(others) | paths


def _metavar(annotation: Any) -> str:
    """Return what the help shows in the place of a flag's value."""
    if get_origin(annotation) is Literal:
        return "|".join(get_args(annotation))
    metavars = {int: "N", float: "X", str: "NAME"}
    return next((metavars[kind] for kind in (annotation, *get_args(annotation)) if kind in metavars), "VALUE")


def _default_in_help(default: Any) -> str:
    if default is None or default in ({}, ()):
        return ""
    if isinstance(default, dict):
        default = " ".join(map(str, default["pi"]))
    if isinstance(default, bool):
        default = "yes" if default else "no"
    return f" [{default}]"
