"""What ``auto`` means: a small cost model over what was measured, and a reason in words. Never changes a result."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from corral.autotune.measure_costs import Costs
from corral.config.rules import MOST_ENVS
from corral.config.schema import TrainConfig, parse_config
from corral.core.errors import UsageError
from corral.core.machine import available_cores, available_memory

__all__ = ["BackendChoice", "EnvsChoice", "choose_backend", "choose_n_envs", "diminishing_returns", "predict"]

_MESSAGE_US = 60.0
"""To tell the workers something and hear back from them, in each step of ``process``."""
_ROLLOUT_US = 1500.0
"""What a rollout costs ``worker`` besides stepping and acting: waking everyone, noise, weights, and the report."""
_SIGNAL_US = 50.0
"""To hand a minibatch to helpers and wait for the last of them."""
_CROWD = 1.15
"""How much slower each of several busy cores is than one alone: they share caches, memory and power."""
_START_SECONDS = 0.5
"""Until workers are there, besides making their envs."""
_TORCH_SECONDS = 2.0
"""Until they have imported torch, where their actor needs it."""
_BETTER = 1.05
"""How much faster a way must be than a simpler one."""
_ENOUGH = 0.95
"""The share of the best speed that is worth the fewest envs."""


@dataclass(frozen=True, slots=True)
class BackendChoice:
    """Who steps and acts, with how many workers, and why."""

    backend: str
    num_workers: int
    why: str
    advice: str | None = None
    """What the user might rather do."""


@dataclass(frozen=True, slots=True)
class EnvsChoice:
    """How many envs, why, and what was measured to find out."""

    n_envs: int
    why: str
    costs: Costs


def choose_backend(config: TrainConfig, costs: Callable[[], Costs], central: bool) -> BackendChoice:
    """What the user asked for, or what the costs suggest; they are only measured if they decide anything.

    ``central``: the policy is on an accelerator, so that all its inference belongs in this process.
    """
    cores = available_cores()
    alone = "overlap has nothing to overlap with in one process: it lags behind and gains nothing"
    if config.backend == "serial":
        return BackendChoice("serial", 1, "as asked", alone if config.overlap else None)
    if config.backend != "auto" or config.num_workers is not None or config.adaptive or config.needs_workers:
        if config.backend == "auto" and central and config.adaptive:
            raise UsageError("adaptive is for backend worker, but the policy is on an accelerator; leave it out")
        backend: str = config.backend if config.backend != "auto" else "process" if central else "worker"
        workers = config.num_workers or min(cores, config.n_envs)
        advice = None
        if workers > cores:
            advice = f"num_workers {workers} is more than the {cores} cores there are: no faster, and more memory"
        asked = config.backend != "auto" or config.num_workers is not None or config.adaptive
        return BackendChoice(
            backend, workers, "as asked" if asked else f"auto: {config.needs_workers} needs workers", advice
        )
    if cores == 1 or (config.n_envs == 1 and not config.overlap):
        reason = "one core" if cores == 1 else "one env"
        why = f"auto: there is {reason}, so workers would have nothing to share"
        return BackendChoice("serial", 1, why, alone if config.overlap else None)
    found = costs()
    rates = {way: predict(config, found, *way, cores) for way in _candidates(config, central, cores)}
    fastest = best = max(rates, key=lambda way: rates[way])
    reason = ""
    if fastest != ("serial", 1):
        if rates[fastest] < _BETTER * rates["serial", 1]:
            best, reason = ("serial", 1), f", which is less than {_BETTER - 1:.0%} faster"
        elif _is_short(config, found, rates["serial", 1], rates[fastest]):
            best, reason = ("serial", 1), ", but the run is too short to make up for their start"
    words = ", ".join(f"{rates[way]:,.0f} with {_named(*way)}" for way in dict.fromkeys([*list(rates)[:1], fastest]))
    why = f"auto: {_told(config, found)}; expected steps/s: {words}{reason}"
    return BackendChoice(best[0], best[1], why, diminishing_returns(config, found, best[0], best[1], cores))


def _candidates(config: TrainConfig, central: bool, cores: int) -> list[tuple[str, int]]:
    """What could be done: as asked, or alone and with each number of workers."""
    if config.backend == "serial":
        return [("serial", 1)]
    parallel: str = config.backend if config.backend != "auto" else "process" if central else "worker"
    if config.num_workers is not None:
        return [(parallel, config.num_workers)]
    fewest = 1 if config.overlap or config.backend != "auto" else 2
    several: list[tuple[str, int]] = [(parallel, w) for w in range(fewest, min(cores, config.n_envs) + 1)]
    return several if config.backend != "auto" else [("serial", 1), *several]


def _is_short(config: TrainConfig, costs: Costs, alone: float, together: float) -> bool:
    """Whether a run of so many steps would be over before workers have made up for their start."""
    if config.timesteps is None:
        return False
    start = _START_SECONDS + (_TORCH_SECONDS if config.learner == "torch" or not costs.helped else 0)
    return config.timesteps / alone - config.timesteps / together < start


def predict(config: TrainConfig, costs: Costs, backend: str, workers: int, cores: int) -> float:
    """Steps per second, learning included."""
    n, t = config.n_envs, config.n_steps
    share = -(-n // workers)  # the busiest worker's envs
    crowd = _CROWD * max(1.0, workers / cores)
    step = costs.stepping(share, workers, cores)
    if backend == "serial":
        collect = t * (step + costs.acting(n))
    elif backend == "process":  # every step waits for the slowest
        wait = math.sqrt(2 * math.log(workers) * share) * costs.step_deviation
        collect = t * ((step + wait) * crowd + costs.acting(n) + _MESSAGE_US)
    else:
        collect = t * (step + costs.acting(share)) * (crowd if workers > 1 else 1) + _ROLLOUT_US
    steps = config.n_epochs * (config.rollout_size // config.minibatch_size)
    helped = backend == "worker" and costs.helped and not config.overlap
    helpers = min(config.shares, workers + 1, cores) if helped else 1
    gradient = costs.gradient_per_row * config.minibatch_size
    if helpers > 1:
        gradient = gradient * math.ceil(config.shares / helpers) / config.shares * _CROWD + _SIGNAL_US
    update = steps * gradient
    total = collect + update
    if config.overlap and backend == "worker":  # side by side, as far as there are cores
        total = max(collect, update, (collect * workers + update * costs.gradient_threads) / cores)
    return config.rollout_size / total * 1e6


def diminishing_returns(config: TrainConfig, costs: Costs, backend: str, workers: int, cores: int) -> str | None:
    """A warning, if half the envs would be as fast."""
    half = config.n_envs // 2
    if half < max(workers, 8) or (half * config.n_steps) % config.minibatch_size:
        return None
    now = predict(config, costs, backend, workers, cores)
    then = predict(config.model_copy(update={"n_envs": half}), costs, backend, workers, cores)
    if then < 0.98 * now:
        return None
    return (
        f"n_envs {config.n_envs} is past the point of diminishing returns: {half} should reach "
        f"{min(then / now, 1):.0%} of the speed"
    )


def choose_n_envs(
    settings: Mapping[str, Any], measured: Callable[[TrainConfig], Costs], central: bool = False
) -> EnvsChoice:
    """The fewest envs that are nearly as fast as any number, for settings that leave it open."""
    cores = available_cores()
    fitting, refused = [], None
    for factor in (1, 2, 4, 8, 16, 32, 64):
        n = cores * factor
        if n <= MOST_ENVS and (n >= 4 or factor > 2):
            try:
                fitting.append(parse_config({**settings, "n_envs": n}))
            except UsageError as error:  # a batch_size that does not divide, for example
                refused = error
    if not fitting:
        raise UsageError(f"n_envs auto: no number of envs fits the other settings: {refused}")
    costs = measured(fitting[0])
    most = max(cores, int(available_memory() / 2**20 / 2 / max(costs.memory_mb, 0.1)))
    fitting = [config for config in fitting if config.n_envs <= most] or fitting[:1]
    rates = []
    for config in fitting:
        rates.append(max(predict(config, costs, *way, cores) for way in _candidates(config, central, cores)))
    chosen = next(i for i, rate in enumerate(rates) if rate >= _ENOUGH * max(rates))
    best = max(range(len(rates)), key=lambda i: rates[i])
    why = (
        f"auto: {_told(fitting[chosen], costs)}; {fitting[chosen].n_envs} envs should reach {rates[chosen]:,.0f} "
        f"steps/s, {fitting[best].n_envs} {rates[best]:,.0f}"
    )
    return EnvsChoice(fitting[chosen].n_envs, why, costs)


def _told(config: TrainConfig, costs: Costs) -> str:
    update = costs.gradient_per_row * config.n_epochs * config.rollout_size / 1000
    step, act = costs.step + costs.call / config.n_envs, costs.acting(config.n_envs)
    return f"a step costs {step:,.0f} µs, choosing actions {act:,.0f} µs, an update {update:,.0f} ms"


def _named(backend: str, workers: int) -> str:
    return "serial" if backend == "serial" else f"{workers} worker{'s' if workers > 1 else ''}"
