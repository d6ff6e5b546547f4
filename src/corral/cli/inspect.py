"""``corral doctor`` and ``corral list``: check an env; list envs and runs."""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path

import gymnasium as gym
from rich.console import Console

from corral.cli.flags import merge_env_flags
from corral.config.schema import parse_env_kwargs
from corral.core.errors import UsageError, one_line
from corral.core.files import read_json
from corral.doctor.checks import examine
from corral.doctor.replay import replay_fault
from corral.envs.atari import is_atari
from corral.envs.registry import BUILT_IN, ENVPOOL
from corral.storage.run_dir import MAX_SUMMARY_BYTES, RUNS_ROOT

__all__ = ["run_doctor", "run_list"]

_NEEDED_PACKAGES = {
    "box2d": ("box2d", "Box2D"),
    "mujoco": ("mujoco", "mujoco"),
    "phys2d": ("jax", "jax"),
    "tabular": ("jax", "jax"),
}
"""Families of Gymnasium's envs that need more packages: the extra of Gymnasium, and a module that it installs."""
_COLOURS = {"pass": "green", "warn": "yellow", "fail": "red"}


def run_doctor(options: argparse.Namespace) -> int:
    """Check an env and print the findings; return exit code 2 if a check fails."""
    if options.steps < 1 or options.n_envs < 1:
        raise UsageError("--steps and --n-envs should be at least 1")
    console = Console(highlight=False, emoji=False, soft_wrap=True)
    if options.replay is not None:
        if options.env_kwargs:
            raise UsageError("--replay has the env's arguments in its file; leave --env-kwargs out")
        return _replay(console, options.env, options.replay)
    kwargs = parse_env_kwargs(merge_env_flags(options, options.env, options.env_kwargs))
    counts = dict.fromkeys(_COLOURS, 0)
    for finding in examine(options.env, kwargs, options.n_envs, options.steps):
        counts[finding.level] += 1
        console.print(f"[{_COLOURS[finding.level]}]{finding.level}[/] ", end="")
        console.print(f"{finding.what}: {finding.result}", markup=False)
        if finding.remedy:
            console.print(f"     -> {finding.remedy}", markup=False)
    console.print(", ".join(f"{n} {level}" for level, n in counts.items() if n), markup=False)
    return 2 if counts["fail"] else 0


def _replay(console: Console, env: str, path: str) -> int:
    """Replay the episode of a fault file; return exit code 1 if the env raises again."""
    env_traceback = replay_fault(path, env)
    if env_traceback is None:
        console.print("the env did not raise this time: it is not deterministic, or it was fixed", markup=False)
        return 0
    console.print(f"raised again\n\nThe env's own traceback:\n{env_traceback.rstrip()}", markup=False)
    return 1


def run_list(options: argparse.Namespace) -> int:
    """List envs or runs."""
    console = Console(highlight=False, emoji=False)
    if options.what == "runs":
        _list_runs(console)
    elif options.what == "envpool":
        from corral.envs.envpool import tasks

        console.print("\n".join(f"{ENVPOOL}{task}" for task in tasks()), markup=False, soft_wrap=True)
    elif options.what == "atari":
        from corral.envs.atari import register

        register()
        console.print("\n".join(sorted(filter(is_atari, gym.registry))), markup=False, soft_wrap=True)
    else:
        _list_envs(console)
    return 0


def _list_envs(console: Console) -> None:
    """Print built-in envs and Gymnasium's by family, with the package to install where one is missing."""
    console.print("built in: " + ", ".join(sorted(BUILT_IN)), markup=False)
    families: dict[str, list[str]] = {}
    for spec in gym.registry.values():
        if isinstance(spec.entry_point, str):  # Gymnasium registers ids that it has removed with another entry point
            parts = spec.entry_point.split(":")[0].split(".")
            family = parts[2] if parts[:2] == ["gymnasium", "envs"] else parts[0]
            families.setdefault(family, []).append(spec.id)
    for family, ids in sorted(families.items()):
        extra, module = _NEEDED_PACKAGES.get(family, ("", "gymnasium"))
        missing = "" if importlib.util.find_spec(module) else f" (needs: pip install 'gymnasium[{extra}]')"
        console.print(f"{family}{missing}: " + ", ".join(sorted(ids)), markup=False)
    missing = "" if importlib.util.find_spec("ale_py") else " (needs: pip install 'corral[atari]')"
    console.print(f"atari{missing}: ALE/Pong-v5 and a hundred others; `corral list atari` names them", markup=False)
    if importlib.util.find_spec("envpool"):
        console.print(
            "envpool: Atari, Procgen, MuJoCo and others in C++; `corral list envpool` names them", markup=False
        )
    else:
        console.print("envpool: Atari, Procgen, MuJoCo and others (needs: pip install 'corral[envpool]')", markup=False)
    console.print("or your own: package.module:callable, file.py:callable", markup=False)


def _list_runs(console: Console) -> None:
    """Print runs and sweeps, each by age."""
    configs = sorted(RUNS_ROOT.glob("*/config.yaml"), key=lambda path: path.lstat().st_mtime)
    for config in configs:
        summary = _describe_summary(config.parent / "summary.json")
        console.print(f"{config.parent}  {summary}", markup=False, soft_wrap=True)
    sweeps = sorted(RUNS_ROOT.glob("*/sweep.yaml"), key=lambda path: path.lstat().st_mtime)
    for sweep in sweeps:
        console.print(f"{sweep.parent}  a sweep, with its runs in trials/", markup=False, soft_wrap=True)
    if not configs and not sweeps:
        console.print(f"no runs under {RUNS_ROOT}/ yet; start one with `corral train CartPole-v1`", markup=False)


def _describe_summary(path: Path) -> str:
    """Return the results in a run's ``summary.json`` in one line."""
    try:
        summary = read_json(path, MAX_SUMMARY_BYTES)
        reward = "none" if summary["mean_reward"] is None else f"{summary['mean_reward']:,.2f}"
        return (
            f"{summary['steps']:,} steps, reward {reward}, {summary['fps']:,.0f} fps, "
            f"ended by {one_line(summary['exit_reason'])}"
        )
    except (OSError, ValueError, KeyError, TypeError):
        return "not finished"
