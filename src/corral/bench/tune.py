"""``corral tune``: trains with several numbers of envs and workers, and recommends the best."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym

from corral.bench.speed import Speed, measure_speed, median_speed
from corral.config.rules import MAX_ENVS
from corral.config.schema import CLUSTER, parse_config
from corral.core.errors import UsageError
from corral.core.machine import available_cores

__all__ = ["Candidate", "Trial", "candidates", "draw_trials", "measure_candidates", "recommended", "settings_for"]

_VARIED_SETTINGS = ("n_envs", "num_workers", "num_envs_per_worker")
_OTHER_BACKENDS_SETTINGS = {
    "serial": ("parallel_start_method", "adaptive", "overlap", *CLUSTER),
    "worker": CLUSTER,
    "ray": ("adaptive",),
}
"""By backend, settings that it is measured without, because they are for other backends."""
_NEARLY_FASTEST = 0.95
"""From this fraction of the highest speed on, fewer envs and workers are better: for learning and for memory."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A backend, with a number of envs and workers, to measure."""

    n_envs: int
    backend: str
    num_workers: int


@dataclass(frozen=True, slots=True)
class Trial:
    """A candidate and its measured speed."""

    candidate: Candidate
    speed: Speed
    speed_up: float
    """Steps per second over those of one process with as many envs."""

    @property
    def efficiency(self) -> float:
        """The speed-up divided by the number of workers."""
        return self.speed_up / self.candidate.num_workers


def candidates(env: str, settings: Mapping[str, Any], max_envs: int = 64) -> list[Candidate]:
    """Return the candidates to measure: numbers of envs, each in one process and with some numbers of workers.

    What ``settings`` fix is not varied. Numbers of envs that do not fit the other settings are left out.
    """
    if max_envs < 1:
        raise UsageError(f"max_envs {max_envs}: should be at least 1")
    cores, env_counts, worker_counts = available_cores(), _doubling(max_envs, first=min(4, max_envs)), []
    if settings.get("n_envs") not in (None, "auto") or "num_envs_per_worker" in settings:
        config = parse_config({**settings, "env": env})
        env_counts, worker_counts = [config.n_envs], [config.num_workers] if config.num_workers else []
    elif settings.get("num_workers"):
        worker_counts = [parse_config({**settings, "env": env, "n_envs": MAX_ENVS}).num_workers or 1]
    worker_counts = worker_counts or sorted({w for w in (*_doubling(cores), cores) if w > 1})
    fixed = {name: value for name, value in settings.items() if name not in _VARIED_SETTINGS}
    fitting, last_error = [], None
    for n in env_counts:
        try:
            parse_config({**fixed, "env": env, "n_envs": n})
        except UsageError as error:  # for example a batch_size that does not divide the rollout
            last_error = error
            continue
        fitting.append(Candidate(n, "serial", 1))
        fitting += [Candidate(n, "worker", w) for w in worker_counts if w is not None and w <= n]
    if not fitting:
        raise last_error or UsageError("there is nothing to try")
    return fitting


def measure_candidates(
    env: str | Callable[..., gym.Env[Any, Any]],
    candidates: Sequence[Candidate],
    settings: Mapping[str, Any],
    seconds: float,
    repeats: int,
    on_run: Callable[[Candidate], object] = lambda candidate: None,
    one_core: bool = False,
) -> list[Trial]:
    """Measure every candidate ``repeats`` times for some seconds, and return the medians.

    All candidates are measured once before one is measured again, so that a busy moment of the machine does not affect
    one candidate alone. ``on_run`` is called before each measurement. With ``one_core`` a candidate without workers
    uses one core: its learner has one thread.
    """
    speeds: dict[Candidate, list[Speed]] = {candidate: [] for candidate in candidates}
    for _ in range(repeats):
        for candidate in candidates:
            on_run(candidate)
            speeds[candidate].append(measure_speed(env, seconds, settings_for(candidate, settings, one_core)))
    return list(_trials({candidate: median_speed(measured) for candidate, measured in speeds.items()}))


def settings_for(candidate: Candidate, settings: Mapping[str, Any], one_core: bool = False) -> dict[str, Any]:
    """Return ``settings`` with the candidate's backend and numbers of envs and workers."""
    is_serial = candidate.backend == "serial"
    replaced = {*_VARIED_SETTINGS, *_OTHER_BACKENDS_SETTINGS[candidate.backend]}
    candidate_settings = {name: value for name, value in settings.items() if name not in replaced}
    candidate_settings |= {"n_envs": candidate.n_envs, "backend": candidate.backend}
    if not is_serial:
        candidate_settings["num_workers"] = candidate.num_workers
    elif one_core:
        candidate_settings["learner_threads"] = 1
    return candidate_settings


def recommended(trials: Sequence[Trial]) -> Trial:
    """Return the trial with the fewest envs, then the fewest workers, among those that are nearly the fastest."""
    highest_fps = max(trial.speed.fps for trial in trials)
    fast = [trial for trial in trials if trial.speed.fps >= _NEARLY_FASTEST * highest_fps]
    return min(fast, key=lambda trial: (trial.candidate.n_envs, trial.candidate.num_workers))


def draw_trials(path: Path, title: str, trials: Sequence[Trial], chosen: Trial) -> None:
    """Draw steps per second over the number of envs, with a line for each number of workers."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    panel = figure.subplots()
    for num_workers, backend in sorted({(trial.candidate.num_workers, trial.candidate.backend) for trial in trials}):
        line = [t for t in trials if (t.candidate.num_workers, t.candidate.backend) == (num_workers, backend)]
        label = "one process" if backend == "serial" else f"{num_workers} workers"
        panel.plot([t.candidate.n_envs for t in line], [t.speed.fps for t in line], marker="o", label=label)
    panel.plot(
        [chosen.candidate.n_envs], [chosen.speed.fps], "*", color="black", markersize=16, label="recommended", zorder=5
    )
    panel.set_title(title, loc="left", fontweight="bold")
    panel.set(xlabel="envs", ylabel="steps per second, learning included")
    panel.set_xscale("log", base=2)
    panel.set_ylim(bottom=0)
    env_counts = sorted({trial.candidate.n_envs for trial in trials})
    panel.set_xticks(env_counts, [str(n) for n in env_counts])
    panel.minorticks_off()
    panel.yaxis.set_major_formatter("{x:,.0f}")
    panel.grid(alpha=0.3)
    panel.spines[["top", "right"]].set_visible(False)
    panel.legend(frameon=False)
    figure.savefig(path, dpi=110)


def _trials(speeds: Mapping[Candidate, Speed]) -> Iterator[Trial]:
    serial_fps = {candidate.n_envs: speed.fps for candidate, speed in speeds.items() if candidate.backend == "serial"}
    for candidate, speed in speeds.items():
        yield Trial(candidate, speed, speed.fps / serial_fps[candidate.n_envs])


def _doubling(most: int, first: int = 1) -> list[int]:
    """Return ``first``, twice that, and so on up to ``most``."""
    numbers = [first]
    while numbers[-1] * 2 <= most:
        numbers.append(numbers[-1] * 2)
    return numbers
