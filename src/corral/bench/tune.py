"""``corral tune``: tries numbers of envs and workers for real, and recommends one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym

from corral.bench.speed import Speed, measure_speed, median_speed
from corral.config.rules import MOST_ENVS
from corral.config.schema import parse_config
from corral.core.errors import UsageError
from corral.core.machine import available_cores

__all__ = ["Candidate", "Trial", "candidates", "draw_trials", "recommended", "try_all"]

_VARIED = ("n_envs", "num_workers", "num_envs_per_worker")
_FOR_WORKERS = ("parallel_start_method", "adaptive", "overlap")
_AS_FAST = 0.95
"""Of the fastest: then fewer envs and fewer workers are better, for learning and for memory."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A way to run."""

    n_envs: int
    backend: str
    num_workers: int


@dataclass(frozen=True, slots=True)
class Trial:
    """A candidate and how it did; the speed-up is over one process with as many envs."""

    candidate: Candidate
    speed: Speed
    speed_up: float

    @property
    def efficiency(self) -> float:
        """Speed-up by worker."""
        return self.speed_up / self.candidate.num_workers


def candidates(env: str, settings: Mapping[str, Any], most_envs: int = 64) -> list[Candidate]:
    """Sensible numbers of envs, each alone and with workers; what the settings fix stays fixed."""
    if most_envs < 1:
        raise UsageError(f"max_envs {most_envs}: should be at least 1")
    cores, numbers, workers = available_cores(), _doubling(most_envs, first=min(4, most_envs)), []
    if settings.get("n_envs") not in (None, "auto") or "num_envs_per_worker" in settings:
        config = parse_config({**settings, "env": env})
        numbers, workers = [config.n_envs], [config.num_workers] if config.num_workers else []
    elif settings.get("num_workers"):
        workers = [parse_config({**settings, "env": env, "n_envs": MOST_ENVS}).num_workers or 1]
    workers = workers or sorted({w for w in (*_doubling(cores), cores) if w > 1})
    found, refused = [], None
    for n in numbers:
        try:
            parse_config({**{k: v for k, v in settings.items() if k not in _VARIED}, "env": env, "n_envs": n})
        except UsageError as error:  # a batch_size that does not divide, for example
            refused = error
            continue
        found.append(Candidate(n, "serial", 1))
        found += [Candidate(n, "worker", w) for w in workers if w is not None and w <= n]
    if not found:
        raise refused or UsageError("there is nothing to try")
    return found


def try_all(
    env: str | Callable[..., gym.Env[Any, Any]],
    tried: Sequence[Candidate],
    settings: Mapping[str, Any],
    seconds: float,
    repeats: int,
    on_run: Callable[[Candidate], object] = lambda candidate: None,
    one_core: bool = False,
) -> list[Trial]:
    """Measure every candidate, round after round, so that a busy moment of the machine does not fall on one alone.

    With ``one_core``, one process is one core: its learner has one thread.
    """
    speeds: dict[Candidate, list[Speed]] = {candidate: [] for candidate in tried}
    for _ in range(repeats):
        for candidate in tried:
            on_run(candidate)
            alone = candidate.backend == "serial"
            left_out = (*_VARIED, *_FOR_WORKERS) if alone else _VARIED
            how = {name: value for name, value in settings.items() if name not in left_out}
            how |= {"n_envs": candidate.n_envs, "backend": candidate.backend}
            how |= ({"learner_threads": 1} if one_core else {}) if alone else {"num_workers": candidate.num_workers}
            speeds[candidate].append(measure_speed(env, seconds, how))
    return list(_trials({candidate: median_speed(found) for candidate, found in speeds.items()}))


def recommended(trials: Sequence[Trial]) -> Trial:
    """The fewest envs, and the fewest workers, that are as fast as any."""
    best = max(trial.speed.fps for trial in trials)
    fast = [trial for trial in trials if trial.speed.fps >= _AS_FAST * best]
    return min(fast, key=lambda trial: (trial.candidate.n_envs, trial.candidate.num_workers))


def draw_trials(path: Path, title: str, trials: Sequence[Trial], chosen: Trial) -> None:
    """Steps per second over the number of envs, a line for each number of workers."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    panel = figure.subplots()
    ways = sorted({(t.candidate.num_workers, t.candidate.backend) for t in trials})
    for workers, backend in ways:
        line = [t for t in trials if (t.candidate.num_workers, t.candidate.backend) == (workers, backend)]
        label = "one process" if backend == "serial" else f"{workers} workers"
        panel.plot([t.candidate.n_envs for t in line], [t.speed.fps for t in line], marker="o", label=label)
    panel.plot(
        [chosen.candidate.n_envs], [chosen.speed.fps], "*", color="black", markersize=16, label="recommended", zorder=5
    )
    panel.set_title(title, loc="left", fontweight="bold")
    panel.set(xlabel="envs", ylabel="steps per second, learning included")
    panel.set_xscale("log", base=2)
    panel.set_ylim(bottom=0)
    numbers = sorted({t.candidate.n_envs for t in trials})
    panel.set_xticks(numbers, [str(n) for n in numbers])
    panel.minorticks_off()
    panel.yaxis.set_major_formatter("{x:,.0f}")
    panel.grid(alpha=0.3)
    panel.spines[["top", "right"]].set_visible(False)
    panel.legend(frameon=False)
    figure.savefig(path, dpi=110)


def _trials(speeds: Mapping[Candidate, Speed]) -> Iterator[Trial]:
    alone = {candidate.n_envs: speed.fps for candidate, speed in speeds.items() if candidate.backend == "serial"}
    for candidate, speed in speeds.items():
        yield Trial(candidate, speed, speed.fps / alone[candidate.n_envs])


def _doubling(most: int, first: int = 1) -> list[int]:
    numbers = [first]
    while numbers[-1] * 2 <= most:
        numbers.append(numbers[-1] * 2)
    return numbers
