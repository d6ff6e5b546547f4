"""``corral doctor`` and ``corral list``: check an env or the machines of a cluster; list envs and runs."""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Iterable
from pathlib import Path

import gymnasium as gym
from rich.console import Console

from corral.cli.flags import merge_env_flags
from corral.config.schema import parse_config, parse_env_kwargs
from corral.core.errors import UsageError, one_line
from corral.core.files import read_json
from corral.doctor.checks import examine
from corral.doctor.finding import Finding
from corral.doctor.replay import replay_fault
from corral.envs.atari import is_atari
from corral.envs.factory import resolve_env
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
_CLUSTER_FLAGS = ("ray_address", "ray_working_dir")
"""Options of ``corral doctor --cluster``."""
_ENV_CHECK_FLAGS = ("replay", "n_envs", "steps")
"""Options that make no sense with ``--cluster``."""
_DEFAULT_STEPS, _DEFAULT_N_ENVS = 1000, 8
_COLOURS = {"pass": "green", "warn": "yellow", "fail": "red"}


def run_doctor(options: argparse.Namespace) -> int:
    """Check an env or a cluster and print the findings; return exit code 2 if a check fails."""
    console = Console(highlight=False, emoji=False, soft_wrap=True)
    if options.cluster:
        return _print_findings(console, _examine_cluster(console, options))
    if options.env is None:
        raise UsageError(
            "which env? For example: corral doctor CartPole-v1. Or --cluster, for the machines of a Ray cluster"
        )
    if given := [name for name in _CLUSTER_FLAGS if hasattr(options, name)]:
        raise UsageError(f"{_flag_of(given[0])} is for --cluster; give that too, or leave it out")
    steps = _DEFAULT_STEPS if options.steps is None else options.steps
    n_envs = _DEFAULT_N_ENVS if options.n_envs is None else options.n_envs
    if steps < 1 or n_envs < 1:
        raise UsageError("--steps and --n-envs should be at least 1")
    if options.replay is not None:
        if options.env_kwargs:
            raise UsageError("--replay has the env's arguments in its file; leave --env-kwargs out")
        return _replay(console, options.env, options.replay)
    kwargs = parse_env_kwargs(merge_env_flags(options, options.env, options.env_kwargs))
    return _print_findings(console, examine(options.env, kwargs, n_envs, steps))


def _print_findings(console: Console, findings: Iterable[Finding]) -> int:
    """Print findings and how many there are of each level; return exit code 2 if a check failed."""
    counts = dict.fromkeys(_COLOURS, 0)
    for finding in findings:
        counts[finding.level] += 1
        console.print(f"[{_COLOURS[finding.level]}]{finding.level}[/] ", end="")
        console.print(f"{finding.what}: {finding.result}", markup=False)
        if finding.remedy:
            console.print(f"     -> {finding.remedy}", markup=False)
    console.print(", ".join(f"{n} {level}" for level, n in counts.items() if n), markup=False)
    return 2 if counts["fail"] else 0


def _examine_cluster(console: Console, options: argparse.Namespace) -> list[Finding]:
    """Examine the nodes of a cluster, print a table of them and return the findings."""
    if given := [name for name in _ENV_CHECK_FLAGS if getattr(options, name) is not None]:
        raise UsageError(f"{_flag_of(given[0])} is for the checks of an env; leave it out with --cluster")
    kwargs = parse_env_kwargs(merge_env_flags(options, options.env or "", options.env_kwargs))
    if kwargs and options.env is None:
        raise UsageError("--env-kwargs needs an env: corral doctor ENV --cluster")
    cluster_settings = {name: value for name, value in vars(options).items() if name in _CLUSTER_FLAGS}
    config = parse_config({"env": options.env or "", "backend": "ray", **cluster_settings})

    from corral.cli.cluster_table import print_nodes
    from corral.doctor.cluster import examine_cluster  # this imports torch
    from corral.rollout.ray_cluster import RayCluster
    from corral.rollout.source import ClusterConfig

    factory = None if options.env is None else resolve_env(options.env, kwargs)
    with Console(stderr=True).status("examining the nodes"):
        cluster = RayCluster(ClusterConfig(address=config.ray_address, working_dir=config.ray_working_dir), None)
        try:
            report = examine_cluster(cluster, factory)
        finally:
            cluster.close()
    print_nodes(console, config.ray_address, report)
    return report.findings


def _flag_of(name: str) -> str:
    return f"--{name.replace('_', '-')}"


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
