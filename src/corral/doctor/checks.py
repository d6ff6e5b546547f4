"""The examination of an env: each check looks at one thing and says pass, warn or fail, with the remedy.

Data is looked at through the same stepper that training uses, so what passes here passes there.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import cloudpickle
import gymnasium as gym
import numpy as np
import numpy.typing as npt

from corral.core.envs import EnvFactory, resolve_env
from corral.core.errors import CorralError
from corral.core.spaces import Layout
from corral.vec import ProcessVectorEnv, SerialVectorEnv
from corral.vec.api import CorralVectorEnv
from corral.vec.pool import descriptors_needed
from corral.vec.states import state_methods
from corral.vec.steppers import stays_together

__all__ = ["Finding", "examine"]

Array = npt.NDArray[Any]
Level = Literal["pass", "warn", "fail"]
_TRACE_STEPS = 100
_MEMORY_ENVS = 4


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    level: Level
    what: str
    seen: str
    remedy: str = ""


@dataclass(slots=True)
class _Walk:
    """What a walk of random legal actions came across."""

    step_seconds: list[float] = field(default_factory=list)
    episodes: int = 0
    rewards: list[float] = field(default_factory=list)
    largest: float = 0.0
    outside: str | None = None
    converted: str | None = None
    legal_share: list[float] = field(default_factory=list)


def examine(
    env: str | Callable[..., gym.Env[Any, Any]], kwargs: Mapping[str, Any], n_envs: int, steps: int
) -> Iterator[Finding]:
    """Run every check, one finding after the other; the later ones are left out if the env cannot even be made."""
    factory = resolve_env(env, kwargs)
    checks: list[tuple[str, Callable[[], Iterable[Finding]]]] = [
        ("factory pickles", lambda: _pickles(factory)),
        ("a fresh process can make and reset it", lambda: _spawns(factory)),
        ("returned data fits the spaces", lambda: _data(factory, steps)),
        ("same seed, same episode", lambda: _seeds(factory)),
        ("get_state and set_state", lambda: _states(factory)),
        ("envs come back after a crash", lambda: _comes_back(factory)),
        ("memory", lambda: _memory(factory, n_envs)),
        ("open files", lambda: _limits(n_envs)),
    ]
    for what, check in checks:
        try:
            yield from check()
        except CorralError as error:  # the later ones would meet it again
            yield Finding("fail", what, str(error), "fix the env; training would stop here too")
            return


def _pickles(factory: EnvFactory) -> Iterator[Finding]:
    size = len(cloudpickle.dumps(factory))
    if size > 10 * 2**20:
        yield Finding("warn", "factory pickles", f"{size / 2**20:.0f} MB", "load large data inside the factory instead")
    else:
        yield Finding("pass", "factory pickles", f"{size:,} bytes")


def _spawns(factory: EnvFactory) -> Iterator[Finding]:
    started = time.perf_counter()
    env = ProcessVectorEnv(factory, 1, num_workers=1, start_method="spawn", seed=0)
    try:
        env.reset()
    finally:
        env.close()
    seconds = time.perf_counter() - started
    yield Finding("pass", "a fresh process can make and reset it", f"{seconds:.1f} s, start-up included")


# ---- data ------------------------------------------------------------------------------------------------------


def _data(factory: EnvFactory, steps: int) -> Iterator[Finding]:
    env = SerialVectorEnv(lambda: factory(), 1, seed=0)  # one that can be looked into, also of a vector env
    facts = f"{env.single_observation_space}, {env.single_action_space}"
    try:
        walk = _walk(env, steps)
    finally:
        env.close()
    if walk.outside:
        yield Finding(
            "warn", "returned data fits the spaces", walk.outside, "widen the bounds of the observation space"
        )
    elif walk.converted:
        yield Finding(
            "warn",
            "returned data fits the spaces",
            walk.converted,
            "harmless; declare that dtype to save the conversion",
        )
    else:
        yield Finding("pass", "returned data fits the spaces", f"{facts:.160}")
    yield _masks(walk)
    yield _episodes(walk, steps)
    yield _scale(walk)
    yield _speed(walk)


def _walk(env: SerialVectorEnv, steps: int) -> _Walk:
    walk, generator = _Walk(), np.random.default_rng(0)
    inner = env.envs[0]
    watcher = _Watcher(inner, env.layout)
    env.envs[0] = watcher
    env.reset_arrays()
    for _ in range(steps):
        if env.masks is not None:
            walk.legal_share.append(float(env.masks[0].mean()))
        env.codec.decode(env.codec.random(env.masks, 1, generator), env.arrays.actions)
        env.send()
        env.recv()
        walk.rewards.append(float(env.arrays.rewards[0]))
        walk.episodes += bool(env.arrays.terminated[0] or env.arrays.truncated[0])
        for leaf in env.layout.leaves:
            if leaf.is_float:
                walk.largest = max(walk.largest, float(np.abs(env.arrays.observations[leaf.path]).max(initial=0)))
    walk.outside, walk.converted, walk.step_seconds = watcher.outside, watcher.converted, watcher.seconds
    return walk


class _Watcher(gym.Wrapper[Any, Any, Any, Any]):
    """Sees what the env returns before the stepper converts it."""

    def __init__(self, env: gym.Env[Any, Any], layout: Layout) -> None:
        super().__init__(env)
        self.outside: str | None = None
        self.converted: str | None = None
        self.seconds: list[float] = []
        self._layout = layout

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        outcome = self.env.reset(seed=seed, options=options)
        if isinstance(outcome, tuple):
            self._look(outcome[0])
        return outcome

    def step(self, action: Any) -> Any:
        started = time.perf_counter()
        outcome = self.env.step(action)
        self.seconds.append(time.perf_counter() - started)
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
    if slow > 10 * median:
        return Finding(
            "warn", "speed of a step", seen, "steps vary a lot: give each worker several envs to even it out"
        )
    return Finding("pass", "speed of a step", seen)


# ---- seeds -----------------------------------------------------------------------------------------------------


def _seeds(factory: EnvFactory) -> Iterator[Finding]:
    first, again, fresh, other = (
        _trace(factory, seed, episodes_before) for seed, episodes_before in ((1, 0), (1, 0), (1, 1), (2, 0))
    )
    if not _same(first, again):
        remedy = (
            "draw all randomness from self.np_random, which super().reset(seed=seed) seeds; else no run can be repeated"
        )
        yield Finding("fail", "same seed, same episode", "two envs with one seed went different ways", remedy)
    elif not _same(first, fresh):
        remedy = "reset everything in reset(): workers that are replaced replay only the current episode"
        yield Finding(
            "warn", "same seed, same episode", "a second episode remembers the first (in the env or a wrapper)", remedy
        )
    else:
        yield Finding(
            "pass", "same seed, same episode", f"identical over {_TRACE_STEPS} steps, in a new env and in a used one"
        )
    if _same(first, other):
        remedy = "fine for a fixed puzzle; otherwise use the seed that reset() is given"
        yield Finding("warn", "other seed, other episode", "two seeds gave the same episode", remedy)
    else:
        yield Finding("pass", "other seed, other episode", "two seeds differ")


def _states(factory: EnvFactory) -> Iterator[Finding]:
    """Whether another env goes on from a state as the first one does; nothing to say if there are no states."""
    what = "get_state and set_state"
    env, other = SerialVectorEnv(factory, 1), SerialVectorEnv(factory, 1)
    try:
        methods, others = state_methods(env.envs[0]), state_methods(other.envs[0])
        if methods is None or others is None:
            if all(env.envs[0].has_wrapper_attr(name) for name in ("get_state", "set_state")):
                seen = "a wrapper around the env has none of its own, so they are not used"
                yield Finding(
                    "warn", what, seen, "offer both on the outermost wrapper, with its own state in the bytes"
                )
            return
        env.reset_arrays([1]), other.reset_arrays([2])
        list(_steps(env, 20))
        state = methods.get()
        if state is None:
            yield Finding(
                "warn", what, "get_state() gives no bytes, so they are not used", "return bytes, or ignore this"
            )
            return
        others.set(state)
        for path, leaf in env.arrays.observations.items():
            other.arrays.observations[path][...] = leaf
        other.arrays.masks[...] = env.arrays.masks
        one, two = ([a.copy() for arrays in _steps(e, _TRACE_STEPS) for a in arrays] for e in (env, other))
        if _same(one, two):
            yield Finding("pass", what, f"{len(state):,} bytes; another env goes on from them alike")
        else:
            remedy = "put all that decides how the env goes on into the bytes, its random generator too"
            yield Finding("fail", what, "another env goes on from the state differently", remedy)
    finally:
        env.close()
        other.close()


def _comes_back(factory: EnvFactory) -> Iterator[Finding]:
    """Of plain envs the seeds have told."""
    if stays_together(factory):
        seen = "not those of a vector env: where a worker is replaced or a run is resumed, their episodes are cut off"
        yield Finding("warn", "envs come back after a crash", seen, "nothing to do; the run counts them as inexact")


def _trace(factory: EnvFactory, seed: int, episodes_before: int) -> list[Array]:
    """What an env returns for a seed and a fixed sequence of actions, perhaps after other episodes."""
    env = SerialVectorEnv(factory, 1)
    try:
        for _ in range(episodes_before):
            env.reset_arrays([seed + 100])
            list(_steps(env, 20))
        env.reset_arrays([seed])
        return [array.copy() for arrays in _steps(env, _TRACE_STEPS) for array in arrays]
    finally:
        env.close()


def _steps(env: CorralVectorEnv, n: int) -> Iterator[Sequence[Array]]:
    generator, a = np.random.default_rng(7), env.arrays
    yield list(a.observations.values())
    for _ in range(n):
        env.codec.decode(env.codec.random(env.masks, 1, generator), a.actions)
        env.send()
        env.recv()
        ended = bool(a.terminated[0] or a.truncated[0])
        yield [*(a.final_observations if ended else a.observations).values(), a.rewards]
        if ended:
            return


def _same(one: list[Array], two: list[Array]) -> bool:
    return len(one) == len(two) and all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))


# ---- machine ---------------------------------------------------------------------------------------------------


def _memory(factory: EnvFactory, n_envs: int) -> Iterator[Finding]:
    def resident(n: int) -> float:
        env = ProcessVectorEnv(factory, n, num_workers=1, seed=0)
        try:
            env.reset()
            return float(env.apply(_resident_memory, [0])[0])
        finally:
            env.close()

    import psutil

    base = resident(1)
    each = max(0.0, resident(1 + _MEMORY_ENVS) - base) / _MEMORY_ENVS
    free = psutil.virtual_memory().available
    seen = f"{each / 2**20:.1f} MB an env, {base / 2**20:.0f} MB a worker; {free / 2**30:.1f} GB are free"
    if each * n_envs > 0.8 * free:
        yield Finding("fail", "memory", seen, f"--n-envs {max(1, int(0.8 * free / max(each, 1)))} would fit")
    else:
        yield Finding("pass", "memory", seen)


def _resident_memory(_env: Any) -> int:
    import psutil

    return int(psutil.Process().memory_info().rss)


def _limits(n_envs: int) -> Iterator[Finding]:
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = descriptors_needed(n_envs)
    seen = f"{soft:,} (at most {hard:,}); {n_envs} workers would need about {needed}"
    if 0 <= hard < needed:
        yield Finding(
            "fail", "open files", seen, "raise it (ulimit -n) or put several envs in each worker (--num-workers)"
        )
    else:
        yield Finding("pass", "open files", seen)
