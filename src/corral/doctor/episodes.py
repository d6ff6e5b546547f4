"""Checks that an env is deterministic: the same episodes from the same seeds, and from the same state."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from corral.core.errors import CorralError, EnvFault
from corral.core.seeding import fresh_seed, seed_global_generators
from corral.core.types import Leaves
from corral.doctor.finding import Finding
from corral.doctor.isolation import call_isolated
from corral.envs.factory import EnvFactory
from corral.envs.lifecycle import ENV_EXCEPTIONS, describe_error
from corral.envs.state_protocol import state_methods
from corral.vec.child_call import Heartbeat
from corral.vec.serial import SerialVectorEnv
from corral.vec.stepper_factory import is_inseparable

__all__ = ["check_restoring", "check_seeds", "check_states"]

Array = npt.NDArray[Any]
_TRACE_STEPS, _TRACE_SECONDS, _MIN_TRACE_STEPS = 10_000, 3.0, 20
"""A trace ends after so many steps or seconds, but not before the fewest steps."""
_STEPS_BEFORE_STATE, _STEPS_AFTER_STATE = 20, 100
_SEED, _OTHER_SEED = 1, 10**6
_SAME_SEED = "same seed, same episode"
_OTHER_EPISODE = "other seed, other episode"
_STATES = "get_state and set_state"


@dataclass(slots=True)
class _Trace:
    """What an env returned, step by step, over as many episodes as there was time for."""

    steps: list[bytes] = field(default_factory=list)
    """A digest of each step, and of each reset."""
    lengths: list[int] = field(default_factory=list)
    """The number of steps of each episode; the last episode may be incomplete."""


@dataclass(slots=True)
class _Traces:
    """Traces that are compared: the first three have the same seeds and the same number of steps."""

    new_env: _Trace
    same_env: _Trace
    """The same episodes once more, in the same env."""
    second_env: _Trace
    other_seed: _Trace
    """One episode with another seed, in a third env."""


def check_seeds(factory: EnvFactory) -> list[Finding]:
    """Play the same episodes twice in one env and once in another, and one episode with another seed in a third."""
    try:
        traces = call_isolated(_trace_in_one_process, factory)
    except CorralError:  # perhaps a process can make only one env
        traces = _trace_in_separate_processes(factory)
    return [_compare_repetitions(traces), _compare_seeds(traces)]


def _compare_repetitions(traces: _Traces) -> Finding:
    """Return whether episodes with the same seeds were the same."""
    first = traces.new_env
    if traces.second_env.steps != first.steps:
        result = f"two envs with one seed went different ways {_first_difference(first, traces.second_env)}"
        remedy = (
            "draw all randomness from self.np_random, which super().reset(seed=seed) seeds; else no run can be repeated"
        )
        return Finding("fail", _SAME_SEED, result, remedy)
    if traces.same_env.steps != first.steps:
        where = _first_difference(first, traces.same_env)
        result = f"an episode depends on the one before it (through the env or a wrapper), first {where}"
        remedy = "reset everything in reset(): workers that are replaced replay only the current episode"
        return Finding("warn", _SAME_SEED, result, remedy)
    n_episodes = len(first.lengths)
    result = (
        f"identical over {sum(first.lengths):,} steps of {n_episodes} episode{'s' if n_episodes > 1 else ''}, the "
        f"longest of {max(first.lengths):,}, in a new env and in a used one"
    )
    return Finding("pass", _SAME_SEED, result)


def _compare_seeds(traces: _Traces) -> Finding:
    """Return whether episodes with different seeds were different."""
    first = traces.new_env
    if traces.other_seed.steps == first.steps[: first.lengths[0] + 1]:
        remedy = "fine for a fixed puzzle; otherwise use the seed that reset() is given"
        return Finding("warn", _OTHER_EPISODE, "two seeds gave the same episode", remedy)
    return Finding("pass", _OTHER_EPISODE, "two seeds differ")


def _trace_in_one_process(heartbeat: Heartbeat, factory: EnvFactory) -> _Traces:
    """Return all traces; each env is closed before the next one is made, because some allow only one at a time."""
    first, repeated = _trace_twice(heartbeat, factory)
    second = _trace_new_env(heartbeat, factory, _SEED, len(first.steps))
    other = _trace_new_env(heartbeat, factory, _OTHER_SEED, first.lengths[0] + 1)
    return _Traces(new_env=first, same_env=repeated, second_env=second, other_seed=other)


def _trace_in_separate_processes(factory: EnvFactory) -> _Traces:
    """Return all traces, with each env in its own process.

    The second process seeds its global random generators differently, to find envs that draw from them.
    """
    first, repeated = call_isolated(_trace_twice, factory)
    second = call_isolated(_trace_new_env, factory, seed=_SEED, n=len(first.steps), reseed_globals=True)
    other = call_isolated(_trace_new_env, factory, seed=_OTHER_SEED, n=first.lengths[0] + 1)
    return _Traces(new_env=first, same_env=repeated, second_env=second, other_seed=other)


def _trace_twice(heartbeat: Heartbeat, factory: EnvFactory) -> tuple[_Trace, _Trace]:
    """Return traces of the same episodes, played twice in one env."""
    with _open_env(factory, heartbeat) as env:
        first = _trace(env, heartbeat, _SEED)
        return first, _trace(env, heartbeat, _SEED, len(first.steps))


def _trace_new_env(
    heartbeat: Heartbeat, factory: EnvFactory, seed: int, n: int, reseed_globals: bool = False
) -> _Trace:
    """Return a trace of ``n`` steps and resets in a new env."""
    if reseed_globals:
        seed_global_generators(fresh_seed())
    with _open_env(factory, heartbeat) as env:
        return _trace(env, heartbeat, seed, n)


@contextlib.contextmanager
def _open_env(factory: EnvFactory, heartbeat: Heartbeat) -> Iterator[SerialVectorEnv]:
    with heartbeat.making_envs():
        env = SerialVectorEnv(factory, 1, heartbeat=heartbeat.cells)
    try:
        yield env
    finally:
        env.close()


def _first_difference(expected: _Trace, actual: _Trace) -> str:
    """Return the place of the first step that differs, as text."""
    pairs = enumerate(zip(expected.steps, actual.steps, strict=False))
    step = next((i for i, (a, b) in pairs if a != b), len(actual.steps))
    for episode, length in enumerate(expected.lengths):
        if step <= length:
            return f"at step {step} of episode {episode}"
        step -= length + 1  # its reset has a digest too
    return "at the end"


def _trace(env: SerialVectorEnv, heartbeat: Heartbeat, seed: int, n: int | None = None) -> _Trace:
    """Play episodes with the seeds from ``seed`` on: ``n`` steps and resets, or as many as there is time for."""
    trace, end = _Trace(), time.perf_counter() + _TRACE_SECONDS

    def is_complete() -> bool:
        count = len(trace.steps)
        if n is not None:
            return count >= n
        return count >= _TRACE_STEPS or (count >= _MIN_TRACE_STEPS and time.perf_counter() > end)

    while not is_complete():
        with heartbeat.making_envs():
            env.reset_arrays([seed + len(trace.lengths)])
        trace.lengths.append(-1)  # its reset is no step
        for arrays in _play_episode(env):
            trace.steps.append(_digest(arrays))
            trace.lengths[-1] += 1
            if is_complete():
                break
    return trace


@dataclass(slots=True)
class _SavedState:
    """A state in the middle of an episode, what the env showed then, and digests of the steps that followed."""

    state: bytes
    observations: Leaves
    masks: Array
    next_steps: list[bytes]


def check_states(factory: EnvFactory) -> list[Finding]:
    """Check that a second env continues from a state as the first one does; no finding if the env has no states."""
    saved = call_isolated(_save_state, factory)
    if saved is None:
        return []
    if isinstance(saved, Finding):
        return [saved]
    next_steps = call_isolated(_continue_from_state, factory, saved=saved)
    if isinstance(next_steps, str):
        return [Finding("fail", _STATES, next_steps, "accept the bytes of get_state(), and continue from there")]
    if next_steps == saved.next_steps:
        result = f"{len(saved.state):,} bytes; a second env continues from them in the same way"
        return [Finding("pass", _STATES, result)]
    remedy = "put everything that determines the next steps into the bytes, the random generator too"
    return [Finding("fail", _STATES, "a second env continues from the state differently", remedy)]


def _save_state(heartbeat: Heartbeat, factory: EnvFactory) -> _SavedState | Finding | None:
    """Play half an episode, take a state and play on.

    Return a warning if the env's methods are not used, and None if the env has none.
    """
    with _open_env(factory, heartbeat) as env:
        methods = state_methods(env.envs[0])
        if methods is None:
            if all(env.envs[0].has_wrapper_attr(name) for name in ("get_state", "set_state")):
                result = "a wrapper around the env has none of its own, so they are not used"
                remedy = "offer both on the outermost wrapper, with its own state in the bytes"
                return Finding("warn", _STATES, result, remedy)
            return None
        with heartbeat.making_envs():
            env.reset_arrays([1])
        for _, _ in zip(range(1 + _STEPS_BEFORE_STATE), _play_episode(env), strict=False):
            pass
        try:
            state = methods.get_raw()
        except ENV_EXCEPTIONS as error:
            result = f"get_state() raised {describe_error(error)}, so they are not used"
            return Finding("warn", _STATES, result, "correct it, or ignore this")
        if not isinstance(state, bytes | bytearray):
            result = "get_state() returns no bytes, so they are not used"
            return Finding("warn", _STATES, result, "return bytes, or ignore this")
        observations = {path: leaf.copy() for path, leaf in env.arrays.observations.items()}
        return _SavedState(bytes(state), observations, env.arrays.masks.copy(), _play_on(env))


def _continue_from_state(heartbeat: Heartbeat, factory: EnvFactory, saved: _SavedState) -> list[bytes] | str:
    """Return digests of the steps of a new env after it was set to the state; or what it raised, as text."""
    with _open_env(factory, heartbeat) as env:
        with heartbeat.making_envs():
            env.reset_arrays([2])
        methods = state_methods(env.envs[0])
        assert methods is not None
        try:
            methods.set(saved.state)
        except ENV_EXCEPTIONS as error:
            return f"set_state() raised {describe_error(error)}"
        for path, leaf in saved.observations.items():
            env.arrays.observations[path][...] = leaf
        env.arrays.masks[...] = saved.masks
        try:
            return _play_on(env)
        except EnvFault as fault:  # the first env did not raise
            return f"after set_state(), {fault.summary}"


def check_restoring(heartbeat: Heartbeat, factory: EnvFactory) -> list[Finding]:
    """Warn if envs cannot be restored after a crash: those of a vector env (for others, ``check_seeds`` decides)."""
    with heartbeat.making_envs():
        if not is_inseparable(factory):
            return []
    result = "not those of a vector env: when a worker is replaced or a run is resumed, their episodes are truncated"
    return [Finding("warn", "envs come back after a crash", result, "nothing to do; the run counts them as inexact")]


def _play_on(env: SerialVectorEnv) -> list[bytes]:
    """Return digests of the current observation and of the next steps."""
    return [_digest(arrays) for _, arrays in zip(range(1 + _STEPS_AFTER_STATE), _play_episode(env), strict=False)]


def _play_episode(env: SerialVectorEnv) -> Iterator[Sequence[Array]]:
    """Yield the current observation, then the outcome of each random legal action, until the episode ends."""
    generator, arrays = np.random.default_rng(7), env.arrays
    yield list(arrays.observations.values())
    has_ended = False
    while not has_ended:
        env.codec.decode(env.codec.random(env.masks, 1, generator), arrays.actions)
        env.send()
        env.recv()
        has_ended = bool(arrays.terminated[0] or arrays.truncated[0])
        observations = arrays.final_observations if has_ended else arrays.observations
        yield [*observations.values(), arrays.rewards, arrays.terminated, arrays.truncated]


def _digest(arrays: Sequence[Array]) -> bytes:
    """Return a hash of the arrays' bytes."""
    digest = hashlib.blake2b(digest_size=16)
    for array in arrays:
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.digest()
