"""A trial of a sweep: one ordinary run for each seed, which is started, resumed, or read if it has finished."""

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
from corral.storage.run_dir import MAX_SUMMARY_BYTES
from corral.training.api import TrainResult, resume, train
from corral.training.hooks.callback import Callback
from corral.training.iteration import Iteration

__all__ = [
    *("OnProgress", "Outcome", "State", "TrialProgress", "TrialRequest"),
    *("finished", "numbers", "objective", "read_summaries", "run_dirs", "run_trial"),
]

State = Literal["complete", "pruned", "failed", "begun"]
"""How far a trial is; ``begun``: it is running, or was interrupted."""
PRUNED: Literal["pruned"] = "pruned"
_BUDGETS = ("timesteps", "num_episodes", "duration")
_LARGEST_NUMBER = 1e100
_LOCK_SECONDS = 15.0
"""How long to wait until processes of a sweep that was killed have released a run directory."""


@dataclass(frozen=True, slots=True)
class TrialProgress:
    """The progress of a running trial after an iteration."""

    seed_index: int
    """Index of the seed that it trains with."""
    share: float
    """Share of that run's budget that is used."""
    reward: float | None
    """Mean reward of the run's last episodes."""


OnProgress = Callable[[TrialProgress], bool]
"""Called after every iteration of a trial; returns whether to prune the trial."""


@dataclass(frozen=True, slots=True)
class TrialRequest:
    """A trial to run, in this process or in another."""

    label: str
    path: Path
    settings: dict[str, Any]
    """The config as plain data, without seed and output directory."""
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
    """The exit code that a single run would have with this error."""


def run_trial(trial: TrialRequest, on_progress: OnProgress) -> Outcome:
    """Train with every seed, from where an earlier attempt stopped; return the outcome, also if the trial raises."""
    summaries = []
    try:
        for index, (seed, path) in enumerate(zip(trial.seeds, run_dirs(trial.path, trial.seeds), strict=True)):
            summaries.append(_run_seed(trial, index, seed, path, on_progress))
            if summaries[-1]["exit_reason"] == PRUNED:
                return Outcome(PRUNED)
    except CorralError as error:
        return Outcome("failed", error=str(error), exit_code=error.exit_code)
    except Exception as error:
        return Outcome("failed", error=f"{type(error).__name__}: {error}\n\n{traceback.format_exc().rstrip()}")
    value = objective(parse_config(trial.settings), summaries)
    if value is None:
        return Outcome("failed", error="no episode ended within the budget, so there is no reward to compare")
    return Outcome("complete", value)


def objective(config: TrainConfig, summaries: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the mean reward over the runs of a trial, which the sweep maximizes; None if a run has none.

    It is the reward of the last evaluation, or that of the last training episodes if evaluation is off.
    """
    rewards = numbers(summaries, "eval_reward" if config.eval_freq else "mean_reward")
    return statistics.fmean(rewards) if rewards and len(rewards) == len(summaries) else None


def numbers(summaries: Iterable[Mapping[str, Any]], name: str) -> list[float]:
    """Return the values of ``name`` in summaries that are numbers of a magnitude that can be computed with."""
    values = (summary.get(name) for summary in summaries)
    return [
        float(value)
        for value in values
        if isinstance(value, int | float) and -_LARGEST_NUMBER <= value <= _LARGEST_NUMBER
    ]


def run_dirs(path: Path, seeds: Sequence[int]) -> list[Path]:
    """Return the run directories of a trial: the trial's own, or one in it for each of several seeds."""
    return [path] if len(seeds) == 1 else [path / f"seed-{seed}" for seed in seeds]


def read_summaries(path: Path, seeds: Sequence[int]) -> list[dict[str, Any]]:
    """Return the summaries of those runs of a trial that have one."""
    summaries = (_read_summary(run) for run in run_dirs(path, seeds))
    return [summary for summary in summaries if summary is not None]


def finished(summary: Mapping[str, Any]) -> bool:
    """Return whether a run ended by its budget, its stages or pruning, not by a signal or an error."""
    return summary["exit_reason"] in (*_BUDGETS, "stages", PRUNED)


def _run_seed(trial: TrialRequest, index: int, seed: int, path: Path, on_progress: OnProgress) -> Mapping[str, Any]:
    """Start or resume the run of one seed, unless it has finished; return its summary."""
    earlier = _read_summary(path)
    if earlier is not None and finished(earlier):
        return earlier
    config = parse_config({**trial.settings, "seed": seed})

    def after_iteration(state: Iteration) -> None:
        reward = state.metrics.get("rollout/ep_rew_mean")
        if on_progress(TrialProgress(index, _budget_used(config, state), reward)):
            state.stop(PRUNED)

    deadline = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            return _train_or_resume(trial, seed, path, after_iteration).summary.to_data()
        except RunInUse:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def _train_or_resume(trial: TrialRequest, seed: int, path: Path, callback: Callback) -> TrainResult:
    factory = dataclasses.replace(trial.factory, kwargs=trial.settings.get("env_kwargs", {}))
    if (path / "config.yaml").exists():
        return resume(path, env=factory, policy=trial.network, callback=callback, quiet=True)
    settings = {name: value for name, value in trial.settings.items() if name not in ("env", "policy")}
    settings |= {"seed": seed, "output_dir": str(path)}
    return train(factory, policy=trial.network, callback=callback, quiet=True, **settings)


def _budget_used(config: TrainConfig, state: Iteration) -> float:
    """Return the largest share that is used of any of the run's budgets."""
    used = {
        "timesteps": state.timesteps,
        "num_episodes": state.episodes,
        "duration": state.metrics["time/time_elapsed"] / 3600,
    }
    budgets = {name: getattr(config, name) for name in _BUDGETS}
    return max(float(used[name] / budget) for name, budget in budgets.items() if budget is not None)


def _read_summary(path: Path) -> dict[str, Any] | None:
    """Return the summary of a run; None if there is none that can be read."""
    try:
        summary = read_json(path / "summary.json", MAX_SUMMARY_BYTES)
    except (OSError, ValueError):
        return None
    return summary if isinstance(summary, dict) and "exit_reason" in summary else None
