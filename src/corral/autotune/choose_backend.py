"""What ``auto`` means for backend, workers and envs: a small cost model over measured costs. It changes no result.

Times are in microseconds unless a name says otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from corral.autotune.measure_costs import Costs
from corral.config.rules import MAX_ENVS
from corral.config.schema import TrainConfig, parse_config
from corral.core.errors import UsageError
from corral.core.machine import available_cores, available_memory

__all__ = ["BackendChoice", "EnvsChoice", "choose_backend", "choose_n_envs"]

_MESSAGE_TIME = 60.0
"""Time to send actions to the workers and receive their replies, in each step of backend ``process``."""
_ROLLOUT_TIME = 1500.0
"""Time of a rollout of backend ``worker`` besides stepping and acting: wake-up, noise, weights and reports."""
_SHARD_MESSAGE_TIME = 50.0
"""Time to send a minibatch's shards to workers and wait for the last of them."""
_BUSY_CORES_SLOWDOWN = 1.15
"""How many times slower each of several busy cores is than one alone: they share caches, memory and power."""
_WORKER_START_SECONDS = 0.5
"""Start-up time of workers, without making their envs."""
_TORCH_IMPORT_SECONDS = 2.0
"""Time until workers have imported torch, if their actor needs it."""
_MIN_SPEEDUP = 1.05
"""How many times faster than ``serial`` workers must be to be chosen."""
_ENOUGH_SPEED = 0.95
"""The fraction of the best speed that is enough: the fewest envs that reach it are chosen."""
_EQUAL_SPEED = 0.98
"""Half the envs count as equally fast if they reach this fraction of the speed."""


@dataclass(frozen=True, slots=True)
class BackendChoice:
    """A backend with its number of workers, and the reason for it."""

    backend: str
    num_workers: int
    why: str
    advice: str | None = None
    """What the user should change, if anything."""


@dataclass(frozen=True, slots=True)
class EnvsChoice:
    """A number of envs, the reason for it, and the costs that were measured."""

    n_envs: int
    why: str
    costs: Costs


class _Candidate(NamedTuple):
    """A backend with a number of workers, whose speed can be predicted."""

    backend: str
    num_workers: int

    def __str__(self) -> str:
        if self.backend == "serial":
            return "serial"
        return f"{self.num_workers} worker{'s' if self.num_workers > 1 else ''}"


_SERIAL = _Candidate("serial", 1)


def choose_backend(config: TrainConfig, costs: Callable[[], Costs], on_accelerator: bool) -> BackendChoice:
    """Return the backend that the config requires, or else the fastest by the costs.

    ``costs`` measures; it is called only if the costs decide anything. ``on_accelerator``: whether the policy is on an
    accelerator, so that all inference has to be in this process.
    """
    cores = available_cores()
    if config.backend == "ray":  # without num_workers, one for each core of the cluster
        return BackendChoice("ray", config.num_workers or 0, "as asked")
    if config.backend == "serial":
        return BackendChoice("serial", 1, "as asked", _overlap_advice(config))
    if config.backend != "auto" or config.num_workers is not None or config.adaptive or config.worker_only_setting:
        return _required_workers(config, on_accelerator, cores)
    if cores == 1 or (config.n_envs == 1 and not config.overlap):
        reason = "this machine has one core" if cores == 1 else "there is one env"
        why = f"auto: {reason}, so workers would not be faster"
        return BackendChoice("serial", 1, why, _overlap_advice(config))
    return _fastest_backend(config, costs(), on_accelerator, cores)


def _overlap_advice(config: TrainConfig) -> str | None:
    """Return a warning if ``overlap`` is set for a backend without workers."""
    if not config.overlap:
        return None
    return "overlap gains nothing with backend serial: one process collects or learns, and the policy lags behind"


def _required_workers(config: TrainConfig, on_accelerator: bool, cores: int) -> BackendChoice:
    """Return a backend with workers, because a setting requires them."""
    if config.backend == "auto" and on_accelerator and config.adaptive:
        raise UsageError("adaptive is for backend worker, but the policy is on an accelerator; leave it out")
    workers = config.num_workers or min(cores, config.n_envs)
    advice = None
    if workers > cores:
        advice = f"num_workers {workers} is more than the {cores} cores of this machine: no faster, and more memory"
    is_explicit = config.backend != "auto" or config.num_workers is not None or config.adaptive
    why = "as asked" if is_explicit else f"auto: {config.worker_only_setting} needs workers"
    return BackendChoice(_parallel_backend(config, on_accelerator), workers, why, advice)


def _fastest_backend(config: TrainConfig, costs: Costs, on_accelerator: bool, cores: int) -> BackendChoice:
    """Return the fastest candidate, or ``serial`` if workers are hardly faster or the run is too short for them."""
    rates = {
        candidate: _steps_per_second(config, costs, candidate, cores)
        for candidate in _candidates(config, on_accelerator, cores)
    }
    chosen = fastest = max(rates, key=lambda candidate: rates[candidate])
    reason = ""
    if fastest != _SERIAL:
        if rates[fastest] < _MIN_SPEEDUP * rates[_SERIAL]:
            chosen, reason = _SERIAL, f", which is less than {_MIN_SPEEDUP - 1:.0%} faster"
        elif _is_too_short(config, costs, rates[_SERIAL], rates[fastest]):
            chosen, reason = _SERIAL, ", but the run is too short to make up for their start"
    compared = dict.fromkeys([next(iter(rates)), fastest])  # one entry if they are the same
    speeds = ", ".join(f"{rates[candidate]:,.0f} with {candidate}" for candidate in compared)
    why = f"auto: {_describe_costs(config, costs)}; expected steps/s: {speeds}{reason}"
    return BackendChoice(
        chosen.backend, chosen.num_workers, why, _diminishing_returns_advice(config, costs, chosen, cores)
    )


def _parallel_backend(config: TrainConfig, on_accelerator: bool) -> str:
    """Return the backend with workers that the config means."""
    if config.backend != "auto":
        return config.backend
    return "process" if on_accelerator else "worker"


def _candidates(config: TrainConfig, on_accelerator: bool, cores: int) -> list[_Candidate]:
    """Return the backends and numbers of workers that the config allows, ``serial`` first if it does."""
    if config.backend == "serial":
        return [_SERIAL]
    backend = _parallel_backend(config, on_accelerator)
    if config.num_workers is not None:
        return [_Candidate(backend, config.num_workers)]
    min_workers = 1 if config.overlap or config.backend != "auto" else 2
    parallel = [_Candidate(backend, w) for w in range(min_workers, min(cores, config.n_envs) + 1)]
    return parallel if config.backend != "auto" else [_SERIAL, *parallel]


def _is_too_short(config: TrainConfig, costs: Costs, serial_rate: float, parallel_rate: float) -> bool:
    """Return whether a run would end before workers have made up for the time that they need to start."""
    if config.timesteps is None:
        return False
    needs_torch = config.learner == "torch" or not costs.workers_compute_gradients
    start_seconds = _WORKER_START_SECONDS + (_TORCH_IMPORT_SECONDS if needs_torch else 0)
    return config.timesteps / serial_rate - config.timesteps / parallel_rate < start_seconds


def _steps_per_second(config: TrainConfig, costs: Costs, candidate: _Candidate, cores: int) -> float:
    """Predict the steps per second of a run, learning included."""
    collect = _collect_time(config, costs, candidate, cores)
    update = _update_time(config, costs, candidate, cores)
    iteration = collect + update
    if config.overlap and candidate.backend == "worker":  # at the same time, as far as there are cores for both
        busy = collect * candidate.num_workers + update * costs.gradient_threads
        iteration = max(collect, update, busy / cores)
    return config.rollout_size / iteration * 1e6


def _collect_time(config: TrainConfig, costs: Costs, candidate: _Candidate, cores: int) -> float:
    """Predict the time to collect one rollout."""
    n_envs, n_steps, workers = config.n_envs, config.n_steps, candidate.num_workers
    envs_per_worker = -(-n_envs // workers)  # of the worker with the most envs
    slowdown = _BUSY_CORES_SLOWDOWN * max(1.0, workers / cores)
    step = costs.step_time(envs_per_worker, workers, cores)
    if candidate.backend == "serial":
        return n_steps * (step + costs.act_time(n_envs))
    if candidate.backend == "process":
        # Every step waits for the slowest worker: the expected maximum of ``workers`` normal variables, roughly.
        wait = math.sqrt(2 * math.log(workers) * envs_per_worker) * costs.step_deviation
        return n_steps * ((step + wait) * slowdown + costs.act_time(n_envs) + _MESSAGE_TIME)
    return n_steps * (step + costs.act_time(envs_per_worker)) * (slowdown if workers > 1 else 1) + _ROLLOUT_TIME


def _update_time(config: TrainConfig, costs: Costs, candidate: _Candidate, cores: int) -> float:
    """Predict the time of all gradient steps of one update."""
    gradient_steps = config.n_epochs * (config.rollout_size // config.minibatch_size)
    gradient = costs.gradient_per_row * config.minibatch_size
    workers_help = candidate.backend == "worker" and costs.workers_compute_gradients and not config.overlap
    processes = min(config.shares, candidate.num_workers + 1, cores) if workers_help else 1
    if processes > 1:
        shards_per_process = math.ceil(config.shares / processes)
        gradient = gradient * shards_per_process / config.shares * _BUSY_CORES_SLOWDOWN + _SHARD_MESSAGE_TIME
    return gradient_steps * gradient


def _diminishing_returns_advice(config: TrainConfig, costs: Costs, candidate: _Candidate, cores: int) -> str | None:
    """Return a warning if half the envs would be as fast."""
    half = config.n_envs // 2
    if half < max(candidate.num_workers, 8) or (half * config.n_steps) % config.minibatch_size:
        return None
    rate = _steps_per_second(config, costs, candidate, cores)
    half_rate = _steps_per_second(config.model_copy(update={"n_envs": half}), costs, candidate, cores)
    if half_rate < _EQUAL_SPEED * rate:
        return None
    return (
        f"n_envs {config.n_envs} is past the point of diminishing returns: {half} should reach "
        f"{min(half_rate / rate, 1):.0%} of the speed"
    )


def choose_n_envs(
    settings: Mapping[str, Any], measure: Callable[[TrainConfig], Costs], on_accelerator: bool = False
) -> EnvsChoice:
    """Return the fewest envs that are nearly as fast as any number, for settings without ``n_envs``.

    ``measure`` measures the costs of a run with the given config.
    """
    cores = available_cores()
    configs = _configs_with_envs(settings, cores)
    costs = measure(configs[0])
    max_envs = max(cores, int(available_memory() / 2**20 / 2 / max(costs.memory_mb, 0.1)))
    configs = [config for config in configs if config.n_envs <= max_envs] or configs[:1]
    rates = [
        max(
            _steps_per_second(config, costs, candidate, cores)
            for candidate in _candidates(config, on_accelerator, cores)
        )
        for config in configs
    ]
    chosen = next(i for i, rate in enumerate(rates) if rate >= _ENOUGH_SPEED * max(rates))
    fastest = max(range(len(rates)), key=lambda i: rates[i])
    why = (
        f"auto: {_describe_costs(configs[chosen], costs)}; {configs[chosen].n_envs} envs should reach "
        f"{rates[chosen]:,.0f} steps/s, {configs[fastest].n_envs} {rates[fastest]:,.0f}"
    )
    return EnvsChoice(configs[chosen].n_envs, why, costs)


def _configs_with_envs(settings: Mapping[str, Any], cores: int) -> list[TrainConfig]:
    """Return configs with 1 to 64 envs for each core, as far as the other settings allow them; at least one."""
    configs, refused = [], None
    for envs_per_core in (1, 2, 4, 8, 16, 32, 64):
        n_envs = cores * envs_per_core
        if n_envs <= MAX_ENVS and (n_envs >= 4 or envs_per_core > 2):
            try:
                configs.append(parse_config({**settings, "n_envs": n_envs}))
            except UsageError as error:  # for example a batch_size that does not divide the rollout
                refused = error
    if not configs:
        raise UsageError(f"n_envs auto: no number of envs fits the other settings: {refused}")
    return configs


def _describe_costs(config: TrainConfig, costs: Costs) -> str:
    update_ms = costs.gradient_per_row * config.n_epochs * config.rollout_size / 1000
    step, act = costs.step + costs.vector_overhead / config.n_envs, costs.act_time(config.n_envs)
    return f"a step costs {step:,.0f} µs, choosing actions {act:,.0f} µs, an update {update_ms:,.0f} ms"
