"""Plays random legal actions in an env and checks data, masks, episodes, scale of the numbers, and speed."""

from __future__ import annotations

import statistics
import sys
import time
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np

from corral.core.spaces import Layout
from corral.doctor.finding import Finding
from corral.envs.factory import EnvFactory
from corral.policy.images import is_normalizable
from corral.vec.child_call import Heartbeat
from corral.vec.serial import SerialVectorEnv

__all__ = ["check_data"]

_MAX_WALKS = 3
"""Step times vary only if they do in so many walks, because other programs may disturb one of them."""
_WARM_UP = 0.1
"""The fraction of a walk whose step times do not count, because code is loaded and caches are filled."""
_LARGE_OBSERVATION, _LARGE_REWARD = 20, 50
"""Larger numbers should be normalised."""


@dataclass(slots=True)
class _Walk:
    """Statistics of random legal steps in an env (a random walk)."""

    step_seconds: list[float] = field(default_factory=list)
    """Wall-clock time of each step."""
    step_costs: list[float] = field(default_factory=list)
    """Seconds of CPU time of each step; wall-clock time if the step waited for something, such as I/O."""
    n_episodes: int = 0
    """Number of episodes that ended."""
    rewards: list[float] = field(default_factory=list)
    largest_observation: float = 0.0
    """Largest absolute value in parts of observations that ``normalize_obs`` covers."""
    outside_bounds: str | None = None
    """A value outside of the bounds of its space, if there was one, as text."""
    converted_dtype: str | None = None
    """A dtype that is not the space's, if there was one, as text."""
    legal_fractions: list[float] = field(default_factory=list)
    """Fraction of the actions that the mask of each step allowed; empty without masks."""


def check_data(heartbeat: Heartbeat, factory: EnvFactory, steps: int) -> list[Finding]:
    """Take random legal steps and check what the env returns."""
    with heartbeat.making_envs():  # a plain callable gives a single env that can be wrapped, also of a vector env
        env = SerialVectorEnv(lambda: factory(), 1, seed=0, heartbeat=heartbeat.cells)
    spaces = f"{env.single_observation_space}, {env.single_action_space}"
    try:
        walk = timed_walk = _walk(env, heartbeat, steps)
        for _ in range(_MAX_WALKS - 1):
            if _varies(timed_walk.step_costs):
                timed_walk = _walk(env, heartbeat, steps)
    finally:
        env.close()
    return [
        _check_spaces(walk, spaces),
        _check_masks(walk),
        _check_episodes(walk, steps),
        _check_scale(walk),
        _check_speed(timed_walk),
    ]


def _check_spaces(walk: _Walk, spaces: str) -> Finding:
    what = "returned data fits the spaces"
    if walk.outside_bounds:
        return Finding("warn", what, walk.outside_bounds, "widen the bounds of the observation space")
    if walk.converted_dtype:
        return Finding("warn", what, walk.converted_dtype, "harmless; declare that dtype to save the conversion")
    return Finding("pass", what, f"{spaces:.160}")


def _walk(env: SerialVectorEnv, heartbeat: Heartbeat, steps: int) -> _Walk:
    """Reset the env and take ``steps`` random legal steps."""
    walk, generator = _Walk(), np.random.default_rng(0)
    inner = env.envs[0]
    recorder = env.envs[0] = _Recorder(inner, env.layout)
    with heartbeat.making_envs():
        env.reset_arrays([0])
    for _ in range(steps):
        if env.masks is not None:
            walk.legal_fractions.append(float(env.masks[0].mean()))
        env.codec.decode(env.codec.random(env.masks, 1, generator), env.arrays.actions)
        env.send()
        env.recv()
        walk.rewards.append(float(env.arrays.rewards[0]))
        walk.n_episodes += bool(env.arrays.terminated[0] or env.arrays.truncated[0])
        for leaf in env.layout.leaves:
            if is_normalizable(leaf):
                # in floats, because the lowest integer has no absolute value
                values = env.arrays.observations[leaf.path].astype(np.float64)
                walk.largest_observation = max(walk.largest_observation, float(np.abs(values).max(initial=0)))
    env.envs[0] = inner
    walk.outside_bounds, walk.converted_dtype = recorder.outside_bounds, recorder.converted_dtype
    walk.step_seconds, walk.step_costs = recorder.step_seconds, recorder.step_costs
    return walk


class _Recorder(gym.Wrapper[Any, Any, Any, Any]):
    """Times the env's steps, and checks observations before the stepper converts them."""

    def __init__(self, env: gym.Env[Any, Any], layout: Layout) -> None:
        super().__init__(env)
        self.outside_bounds: str | None = None
        self.converted_dtype: str | None = None
        self.step_seconds: list[float] = []
        self.step_costs: list[float] = []
        self._layout = layout

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Reset the env and check its observation."""
        outcome = self.env.reset(seed=seed, options=options)
        if isinstance(outcome, tuple):
            self._check_observation(outcome[0])
        return outcome

    def step(self, action: Any) -> Any:
        """Step the env, record how long it takes, and check its observation."""
        waits, cpu_started, started = _count_waits(), time.process_time(), time.perf_counter()
        outcome = self.env.step(action)
        elapsed, cpu_time = time.perf_counter() - started, time.process_time() - cpu_started
        self.step_seconds.append(elapsed)
        # CPU time, unless the step waited: in the elapsed time other programs may have had the CPU.
        self.step_costs.append(elapsed if _count_waits() > waits else cpu_time)
        if isinstance(outcome, tuple) and outcome:
            self._check_observation(outcome[0])
        return outcome

    def _check_observation(self, observation: Any) -> None:
        """Record a value outside of its bounds, and a dtype that is not the space's."""
        try:
            leaves = self._layout.unbatch(observation)
        except ValueError:
            return  # the stepper's own error says more
        for leaf in self._layout.leaves:
            if not isinstance(leaf.space, gym.spaces.Box):
                continue
            values = leaves[leaf.path]
            path = f" at {leaf.path!r}" if leaf.path else ""
            if values.dtype != leaf.dtype:
                self.converted_dtype = f"{values.dtype} where the space says {leaf.dtype}{path}"
            if values.shape == leaf.shape and not ((values >= leaf.space.low) & (values <= leaf.space.high)).all():
                self.outside_bounds = f"a value outside the bounds{path}: {values!r:.80}"


def _check_masks(walk: _Walk) -> Finding:
    if not walk.legal_fractions:
        return Finding("pass", "action masks", "the env has none")
    if min(walk.legal_fractions) == 1.0:
        result = "the env has them, but every action was always allowed"
        return Finding("warn", "action masks", result, "check that masks are filled in")
    result = f"always legal; {np.mean(walk.legal_fractions):.0%} of the actions allowed on average"
    return Finding("pass", "action masks", result)


def _check_episodes(walk: _Walk, steps: int) -> Finding:
    if walk.n_episodes == 0:
        remedy = (
            "if episodes can be endless, add a limit (gymnasium.wrappers.TimeLimit, EnvPool's max_episode_steps), "
            "so that rewards can be compared"
        )
        return Finding("warn", "episodes end", f"none ended in {steps} random steps", remedy)
    return Finding("pass", "episodes end", f"{walk.n_episodes} in {steps} random steps")


def _check_scale(walk: _Walk) -> Finding:
    what = "scale of the numbers"
    result = f"rewards from {min(walk.rewards):.3g} to {max(walk.rewards):.3g}"
    if walk.largest_observation:
        result = f"observations up to {walk.largest_observation:.3g}, {result}"
    flags = []
    if walk.largest_observation > _LARGE_OBSERVATION:
        flags.append("--normalize-obs")
    if max(map(abs, walk.rewards), default=0.0) > _LARGE_REWARD:
        flags.append("--normalize-reward")
    if flags:
        return Finding("warn", what, result, f"consider {' and '.join(flags)}")
    if not any(walk.rewards):
        return Finding("warn", what, result, "random play never earned a reward: it may be hard to find")
    return Finding("pass", what, result)


def _check_speed(walk: _Walk) -> Finding:
    times = sorted(seconds * 1e6 for seconds in walk.step_seconds)  # microseconds
    median, slow = statistics.median(times), times[int(0.95 * (len(times) - 1))]
    result = (
        f"{median:,.0f} µs a step (95% under {slow:,.0f} µs), {1e6 / statistics.mean(times):,.0f} steps/s on one core"
    )
    if _varies(walk.step_costs):
        remedy = "steps vary a lot: give each worker several envs to even it out"
        return Finding("warn", "speed of a step", result, remedy)
    return Finding("pass", "speed of a step", result)


def _varies(step_costs: list[float]) -> bool:
    """Return whether the 95th percentile, after the warm-up, is more than ten times the median."""
    costs = sorted(step_costs[int(_WARM_UP * len(step_costs)) :])
    return costs[int(0.95 * (len(costs) - 1))] > 10 * statistics.median(costs)


def _count_waits() -> int:
    """Return how often this thread has waited (voluntary context switches); always 0 except on Linux."""
    if sys.platform != "linux":
        return 0
    import resource

    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
