"""A walk of random legal actions through an env, and what it tells: data, masks, episodes, scale and speed."""

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

_WALKS = 3  # that must all show that steps vary, because other programs may disturb one of them
_WARM_UP = 0.1  # the share of a walk whose times do not count: code is loaded, caches are filled


@dataclass(slots=True)
class _Walk:
    """What a walk of random legal actions came across."""

    step_seconds: list[float] = field(default_factory=list)
    """By the clock."""
    step_costs: list[float] = field(default_factory=list)
    """Seconds that each step needs of the processor, or waits for something of its own accord."""
    episodes: int = 0
    rewards: list[float] = field(default_factory=list)
    largest: float = 0.0
    outside: str | None = None
    converted: str | None = None
    legal_share: list[float] = field(default_factory=list)


def check_data(heartbeat: Heartbeat, factory: EnvFactory, steps: int) -> list[Finding]:
    """Walk ``steps`` random legal steps and look at what comes back."""
    with heartbeat.making():  # one that can be looked into, also of a vector env
        env = SerialVectorEnv(lambda: factory(), 1, seed=0, heartbeat=heartbeat.cells)
    env_info = f"{env.single_observation_space}, {env.single_action_space}"
    try:
        walk = undisturbed = _walk(env, heartbeat, steps)
        for _ in range(_WALKS - 1):
            if _vary(undisturbed.step_costs):
                undisturbed = _walk(env, heartbeat, steps)
    finally:
        env.close()
    return [_fits(walk, env_info), _masks(walk), _episodes(walk, steps), _scale(walk), _speed(undisturbed)]


def _fits(walk: _Walk, env_info: str) -> Finding:
    if walk.outside:
        return Finding(
            "warn", "returned data fits the spaces", walk.outside, "widen the bounds of the observation space"
        )
    if walk.converted:
        return Finding(
            "warn",
            "returned data fits the spaces",
            walk.converted,
            "harmless; declare that dtype to save the conversion",
        )
    return Finding("pass", "returned data fits the spaces", f"{env_info:.160}")


def _walk(env: SerialVectorEnv, heartbeat: Heartbeat, steps: int) -> _Walk:
    walk, generator = _Walk(), np.random.default_rng(0)
    inner = env.envs[0]
    watcher = env.envs[0] = _Watcher(inner, env.layout)
    with heartbeat.making():
        env.reset_arrays([0])
    for _ in range(steps):
        if env.masks is not None:
            walk.legal_share.append(float(env.masks[0].mean()))
        env.codec.decode(env.codec.random(env.masks, 1, generator), env.arrays.actions)
        env.send()
        env.recv()
        walk.rewards.append(float(env.arrays.rewards[0]))
        walk.episodes += bool(env.arrays.terminated[0] or env.arrays.truncated[0])
        for leaf in env.layout.leaves:
            if is_normalizable(leaf):
                seen = env.arrays.observations[leaf.path].astype(np.float64)  # the lowest integer has no absolute value
                walk.largest = max(walk.largest, float(np.abs(seen).max(initial=0)))
    env.envs[0] = inner
    walk.outside, walk.converted = watcher.outside, watcher.converted
    walk.step_seconds, walk.step_costs = watcher.seconds, watcher.costs
    return walk


class _Watcher(gym.Wrapper[Any, Any, Any, Any]):
    """Sees what the env returns before the stepper converts it."""

    def __init__(self, env: gym.Env[Any, Any], layout: Layout) -> None:
        super().__init__(env)
        self.outside: str | None = None
        self.converted: str | None = None
        self.seconds: list[float] = []
        self.costs: list[float] = []
        self._layout = layout

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        outcome = self.env.reset(seed=seed, options=options)
        if isinstance(outcome, tuple):
            self._look(outcome[0])
        return outcome

    def step(self, action: Any) -> Any:
        waits, used, started = _waits(), time.process_time(), time.perf_counter()
        outcome = self.env.step(action)
        elapsed, used = time.perf_counter() - started, time.process_time() - used
        self.seconds.append(elapsed)
        self.costs.append(elapsed if _waits() > waits else used)  # other programs may have had the processor meanwhile
        if isinstance(outcome, tuple) and outcome:
            self._look(outcome[0])
        return outcome

    def _look(self, observation: Any) -> None:
        try:
            leaves = self._layout.unbatch(observation)
        except ValueError:
            return  # the stepper says it better
        for leaf in self._layout.leaves:
            given = leaves[leaf.path]
            where = f" at {leaf.path!r}" if leaf.path else ""
            if given.dtype != leaf.dtype and isinstance(leaf.space, gym.spaces.Box):
                self.converted = f"{given.dtype} where the space says {leaf.dtype}{where}"
            if not isinstance(leaf.space, gym.spaces.Box) or given.shape != leaf.shape:
                continue
            if not ((given >= leaf.space.low) & (given <= leaf.space.high)).all():
                self.outside = f"a value outside the bounds{where}: {given!r:.80}"


def _masks(walk: _Walk) -> Finding:
    if not walk.legal_share:
        return Finding("pass", "action masks", "none offered")
    shares = walk.legal_share
    if min(shares) == 1.0:
        return Finding(
            "warn", "action masks", "offered, but every action was always allowed", "check that masks are filled in"
        )
    return Finding("pass", "action masks", f"always legal; {np.mean(shares):.0%} of the actions allowed on average")


def _episodes(walk: _Walk, steps: int) -> Finding:
    if walk.episodes == 0:
        remedy = (
            "if episodes can go on for ever, add a limit (gymnasium.wrappers.TimeLimit, EnvPool's max_episode_steps), "
            "so that rewards can be compared"
        )
        return Finding("warn", "episodes end", f"none ended in {steps} random steps", remedy)
    return Finding("pass", "episodes end", f"{walk.episodes} in {steps} random steps")


def _scale(walk: _Walk) -> Finding:
    reward = max(map(abs, walk.rewards), default=0.0)
    seen = f"rewards from {min(walk.rewards):.3g} to {max(walk.rewards):.3g}"
    if walk.largest:
        seen = f"observations up to {walk.largest:.3g}, {seen}"
    remedies = []
    if walk.largest > 20:
        remedies.append("--normalize-obs")
    if reward > 50:
        remedies.append("--normalize-reward")
    if remedies:
        return Finding("warn", "scale of the numbers", seen, f"consider {' and '.join(remedies)}")
    if not any(walk.rewards):
        return Finding(
            "warn", "scale of the numbers", seen, "random play never earned a reward: it may be hard to find"
        )
    return Finding("pass", "scale of the numbers", seen)


def _speed(walk: _Walk) -> Finding:
    micro = sorted(second * 1e6 for second in walk.step_seconds)
    median, slow = statistics.median(micro), micro[int(0.95 * (len(micro) - 1))]
    seen = (
        f"{median:,.0f} µs a step (95% under {slow:,.0f} µs), {1e6 / statistics.mean(micro):,.0f} steps/s on one core"
    )
    if _vary(walk.step_costs):
        return Finding(
            "warn", "speed of a step", seen, "steps vary a lot: give each worker several envs to even it out"
        )
    return Finding("pass", "speed of a step", seen)


def _vary(costs: list[float]) -> bool:
    """Whether more than one step in twenty costs ten times as much as most of them."""
    counted = sorted(costs[int(_WARM_UP * len(costs)) :])
    return counted[int(0.95 * (len(counted) - 1))] > 10 * statistics.median(counted)


def _waits() -> int:
    """How often this thread has given up the processor of its own accord; always 0 where the system does not tell."""
    if sys.platform != "linux":
        return 0
    import resource

    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
