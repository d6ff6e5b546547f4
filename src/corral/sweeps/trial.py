"""One trial: an ordinary run for each of its seeds, begun, gone on with, or found finished."""

from __future__ import annotations

import dataclasses
import statistics
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from corral.config.schema import TrainConfig, parse_config
from corral.core.errors import CorralError, RunInUse
from corral.core.files import read_json
from corral.envs.factory import EnvFactory
from corral.policy.policy import NetworkFactory
from corral.storage.run_dir import MOST_SUMMARY
from corral.training.api import TrainResult, resume, train
from corral.training.hooks.callback import Callback
from corral.training.iteration import Iteration

__all__ = [
    *("Listener", "TrialRequest", "Outcome", "State"),
    *("run_trial", "finished", "numbers", "objective", "read_summaries", "run_dirs"),
]

State = Literal["complete", "pruned", "failed", "begun"]
PRUNED: Literal["pruned"] = "pruned"
_BUDGETS = ("timesteps", "num_episodes", "duration")
_LARGEST = 1e100
_WAIT_SECONDS = 15.0
"""For the processes of a sweep that was killed to let go of a run directory."""

Listener = Callable[[int, float, float | None], bool]
"""Told after every iteration: which of the seeds it is, the share of its budget that is used, and the mean reward so
far; the answer is whether to give the trial up."""


@dataclass(frozen=True, slots=True)
class TrialRequest:
    """A trial that is to be carried out, here or in another process."""

    label: str
    path: Path
    settings: dict[str, Any]
    """The config as plain data, without seed and directory."""
    seeds: list[int]
    factory: EnvFactory
    network: NetworkFactory | str | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a trial ended."""

    state: State
    objective: float | None = None
    error: str | None = None
    exit_code: int = 1
    """What the error would have ended a single run with."""


def run_trial(order: TrialRequest, listener: Listener) -> Outcome:
    """Train with every seed, going on where an earlier attempt stopped. Whatever a trial raises is its outcome."""
    summaries = []
    try:
        for index, (seed, path) in enumerate(zip(order.seeds, run_dirs(order.path, order.seeds), strict=True)):
            summaries.append(_run(order, seed, path, index, listener))
            if summaries[-1]["exit_reason"] == PRUNED:
                return Outcome(PRUNED)
    except CorralError as error:
        return Outcome("failed", error=str(error), exit_code=error.exit_code)
    except Exception as error:
        return Outcome("failed", error=f"{type(error).__name__}: {error}\n\n{traceback.format_exc().rstrip()}")
    config = parse_config(order.settings)
    value = objective(config, summaries)
    if value is None:
        return Outcome("failed", error="no episode ended within the budget, so there is no reward to judge it by")
    return Outcome("complete", value)


def objective(config: TrainConfig, summaries: Sequence[Mapping[str, Any]]) -> float | None:
    """What a trial is judged by, the more the better: the mean over its seeds."""
    name = "eval_reward" if config.eval_freq else "mean_reward"
    known = numbers(summaries, name)
    return statistics.fmean(known) if known and len(known) == len(summaries) else None


def numbers(summaries: Iterable[Mapping[str, Any]], name: str) -> list[float]:
    """What runs say under a name, where that is a number that can be computed with."""
    values = (summary.get(name) for summary in summaries)
    return [float(value) for value in values if isinstance(value, int | float) and -_LARGEST <= value <= _LARGEST]


def run_dirs(path: Path, seeds: Sequence[int]) -> list[Path]:
    """The run directories of a trial: its own, or one in it for each of several seeds."""
    return [path] if len(seeds) == 1 else [path / f"seed-{seed}" for seed in seeds]


def read_summaries(path: Path, seeds: Sequence[int]) -> list[dict[str, Any]]:
    """How the runs of a trial ended, those that did."""
    found = (_read_summary(run) for run in run_dirs(path, seeds))
    return [summary for summary in found if summary is not None]


def finished(summary: Mapping[str, Any]) -> bool:
    """Whether a run ended as it should: neither a signal nor a failure ended it."""
    return summary["exit_reason"] in (*_BUDGETS, "stages", PRUNED)


def _run(order: TrialRequest, seed: int, path: Path, index: int, listener: Listener) -> Mapping[str, Any]:
    """One run from wherever it is to its end; returns its summary."""
    earlier = _read_summary(path)
    if earlier is not None and finished(earlier):
        return earlier
    config = parse_config({**order.settings, "seed": seed})

    def after_iteration(state: Iteration) -> None:
        if listener(index, _share(config, state), state.metrics.get("rollout/ep_rew_mean")):
            state.stop(PRUNED)

    deadline = time.monotonic() + _WAIT_SECONDS
    while True:
        try:
            return _train(order, seed, path, after_iteration).summary.to_data()
        except RunInUse:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def _train(order: TrialRequest, seed: int, path: Path, callback: Callback) -> TrainResult:
    kwargs = order.settings.get("env_kwargs", {})
    factory = dataclasses.replace(order.factory, kwargs=kwargs)
    if (path / "config.yaml").exists():
        return resume(path, env=factory, policy=order.network, callback=callback, quiet=True)
    settings = {name: value for name, value in order.settings.items() if name not in ("env", "policy")}
    settings |= {"seed": seed, "output_dir": str(path)}
    return train(factory, policy=order.network, callback=callback, quiet=True, **settings)


def _share(config: TrainConfig, state: Iteration) -> float:
    """How much of the budget is used: of the one that is used most."""
    done = {
        "timesteps": state.timesteps,
        "num_episodes": state.episodes,
        "duration": state.metrics["time/time_elapsed"] / 3600,
    }
    budgets = {name: getattr(config, name) for name in _BUDGETS}
    return max(float(done[name] / total) for name, total in budgets.items() if total is not None)


def _read_summary(path: Path) -> dict[str, Any] | None:
    try:
        summary = read_json(path / "summary.json", MOST_SUMMARY)
    except (OSError, ValueError):
        return None
    return summary if isinstance(summary, dict) and "exit_reason" in summary else None
