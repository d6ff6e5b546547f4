"""Whether an env repeats itself: the same episodes for the same seeds, and from the same state."""

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
from corral.doctor.apart import apart
from corral.doctor.finding import Finding
from corral.envs.factory import EnvFactory
from corral.envs.lifecycle import ENV_EXCEPTIONS, named
from corral.envs.state_protocol import state_methods
from corral.vec.child_call import Heartbeat
from corral.vec.serial import SerialVectorEnv
from corral.vec.stepper_factory import is_inseparable

__all__ = ["check_coming_back", "check_seeds", "check_states"]

Array = npt.NDArray[Any]
_TRACE_STEPS, _TRACE_SECONDS, _LEAST_STEPS = 10_000, 3.0, 20
_STATE_STEPS = 100
_FIRST_SEED, _OTHER_SEED = 1, 10**6


@dataclass(slots=True)
class _Trace:
    """What an env returned, step by step, in whole episodes as far as there was time."""

    steps: list[bytes] = field(default_factory=list)
    """A digest of each."""
    lengths: list[int] = field(default_factory=list)
    """Steps of each episode; the last one may have been cut off."""


@dataclass(slots=True)
class _Traces:
    """The same episodes in a new env, in the same env again and in another one, and an episode with another seed."""

    first: _Trace
    used: _Trace
    again: _Trace
    other: _Trace


def check_seeds(factory: EnvFactory) -> list[Finding]:
    """Play the same episodes twice in one env and once in another, and an episode with another seed in a third."""
    what = "same seed, same episode"
    try:
        traces = apart(_all_traces, factory)
    except CorralError:  # perhaps a process can make one env and no more
        traces = _separate_traces(factory)
    first, used, again, other = traces.first, traces.used, traces.again, traces.other
    if again.steps != first.steps:
        remedy = (
            "draw all randomness from self.np_random, which super().reset(seed=seed) seeds; else no run can be repeated"
        )
        seen = f"two envs with one seed went different ways {_where(first, again)}"
        found = Finding("fail", what, seen, remedy)
    elif used.steps != first.steps:
        remedy = "reset everything in reset(): workers that are replaced replay only the current episode"
        seen = f"a second episode remembers the first (in the env or a wrapper), {_where(first, used)}"
        found = Finding("warn", what, seen, remedy)
    else:
        whole, longest = len(first.lengths), max(first.lengths)
        seen = (
            f"identical over {sum(first.lengths):,} steps of {whole} episode{'s' if whole > 1 else ''}, the longest of "
            f"{longest:,}, in a new env and in a used one"
        )
        found = Finding("pass", what, seen)
    if other.steps == first.steps[: first.lengths[0] + 1]:
        remedy = "fine for a fixed puzzle; otherwise use the seed that reset() is given"
        return [found, Finding("warn", "other seed, other episode", "two seeds gave the same episode", remedy)]
    return [found, Finding("pass", "other seed, other episode", "two seeds differ")]


def _all_traces(heartbeat: Heartbeat, factory: EnvFactory) -> _Traces:
    """All of them in this process, one env after the other, because some envs allow only one at a time."""
    first, used = _first_traces(heartbeat, factory)
    again = _one_trace(heartbeat, factory, _FIRST_SEED, len(first.steps))
    return _Traces(first, used, again, _one_trace(heartbeat, factory, _OTHER_SEED, first.lengths[0] + 1))


def _separate_traces(factory: EnvFactory) -> _Traces:
    """The traces of each env in a process of its own, which has other global generators."""
    first, used = apart(_first_traces, factory)
    again = apart(_one_trace, factory, seed=_FIRST_SEED, n=len(first.steps), own_generators=True)
    other = apart(_one_trace, factory, seed=_OTHER_SEED, n=first.lengths[0] + 1)
    return _Traces(first, used, again, other)


def _first_traces(heartbeat: Heartbeat, factory: EnvFactory) -> tuple[_Trace, _Trace]:
    with _opened(factory, heartbeat) as env:
        first = _trace(env, heartbeat, _FIRST_SEED)
        return first, _trace(env, heartbeat, _FIRST_SEED, len(first.steps))


def _one_trace(heartbeat: Heartbeat, factory: EnvFactory, seed: int, n: int, own_generators: bool = False) -> _Trace:
    if own_generators:
        seed_global_generators(fresh_seed())
    with _opened(factory, heartbeat) as env:
        return _trace(env, heartbeat, seed, n)


@contextlib.contextmanager
def _opened(factory: EnvFactory, heartbeat: Heartbeat) -> Iterator[SerialVectorEnv]:
    with heartbeat.making():
        env = SerialVectorEnv(factory, 1, heartbeat=heartbeat.cells)
    try:
        yield env
    finally:
        env.close()


def _where(one: _Trace, two: _Trace) -> str:
    """The first step that differs, in words."""
    at = next((i for i, (a, b) in enumerate(zip(one.steps, two.steps, strict=False)) if a != b), len(two.steps))
    for episode, length in enumerate(one.lengths):
        if at <= length:
            return f"at step {at} of episode {episode}"
        at -= length + 1
    return "at the end"


def _trace(env: SerialVectorEnv, heartbeat: Heartbeat, seed: int, n: int | None = None) -> _Trace:
    """Play episodes with the seeds from ``seed`` on: ``n`` steps and resets, or as many as there is time for."""
    trace, end = _Trace(), time.perf_counter() + _TRACE_SECONDS

    def done() -> bool:
        played = len(trace.steps)
        if n is not None:
            return played >= n
        return played >= _TRACE_STEPS or (played >= _LEAST_STEPS and time.perf_counter() > end)

    while not done():
        with heartbeat.making():
            env.reset_arrays([seed + len(trace.lengths)])
        trace.lengths.append(-1)  # its reset is no step
        for arrays in _steps(env):
            trace.steps.append(_digest(arrays))
            trace.lengths[-1] += 1
            if done():
                break
    return trace


@dataclass(slots=True)
class _Middle:
    """A state in the middle of an episode, what the env showed there, and digests of how it went on."""

    state: bytes
    observations: Leaves
    masks: Array
    steps: list[bytes]


def check_states(factory: EnvFactory) -> list[Finding]:
    """Whether another env goes on from a state as the first one does; nothing to say if there are no states."""
    what = "get_state and set_state"
    found = apart(_play_to_the_middle, factory)
    if not isinstance(found, _Middle):
        return [] if found is None else [Finding("warn", what, *found)]
    went_on = apart(_go_on, factory, middle=found)
    if isinstance(went_on, str):
        return [Finding("fail", what, went_on, "take the bytes that get_state() returned, and go on from there")]
    if went_on == found.steps:
        return [Finding("pass", what, f"{len(found.state):,} bytes; another env goes on from them alike")]
    remedy = "put all that decides how the env goes on into the bytes, its random generator too"
    return [Finding("fail", what, "another env goes on from the state differently", remedy)]


def _play_to_the_middle(heartbeat: Heartbeat, factory: EnvFactory) -> _Middle | tuple[str, str] | None:
    """Take a state and go on; or say why there is none, with a remedy; or None, if the env offers none."""
    with _opened(factory, heartbeat) as env:
        methods = state_methods(env.envs[0])
        if methods is None:
            if all(env.envs[0].has_wrapper_attr(name) for name in ("get_state", "set_state")):
                seen = "a wrapper around the env has none of its own, so they are not used"
                return seen, "offer both on the outermost wrapper, with its own state in the bytes"
            return None
        with heartbeat.making():
            env.reset_arrays([1])
        for _, _ in zip(range(21), _steps(env), strict=False):
            pass
        try:
            state = methods.get_raw()
        except ENV_EXCEPTIONS as error:
            return f"get_state() raised {named(error)}, so they are not used", "correct it, or ignore this"
        if not isinstance(state, bytes | bytearray):
            return "get_state() gives no bytes, so they are not used", "return bytes, or ignore this"
        shown = {path: leaf.copy() for path, leaf in env.arrays.observations.items()}
        return _Middle(bytes(state), shown, env.arrays.masks.copy(), _play_on(env))


def _go_on(heartbeat: Heartbeat, factory: EnvFactory, middle: _Middle) -> list[bytes] | str:
    """Digests of how another env goes on from there; or what was raised when it was given the state, or then."""
    with _opened(factory, heartbeat) as env:
        with heartbeat.making():
            env.reset_arrays([2])
        methods = state_methods(env.envs[0])
        assert methods is not None
        try:
            methods.set(middle.state)
        except ENV_EXCEPTIONS as error:
            return f"set_state() raised {named(error)}"
        for path, leaf in middle.observations.items():
            env.arrays.observations[path][...] = leaf
        env.arrays.masks[...] = middle.masks
        try:
            return _play_on(env)
        except EnvFault as fault:  # the first env went on
            return f"after set_state(), {fault.summary}"


def check_coming_back(heartbeat: Heartbeat, factory: EnvFactory) -> list[Finding]:
    """Say which envs cannot be brought back after a crash; of plain envs the seeds have told."""
    with heartbeat.making():
        if not is_inseparable(factory):
            return []
    seen = "not those of a vector env: where a worker is replaced or a run is resumed, their episodes are cut off"
    return [Finding("warn", "envs come back after a crash", seen, "nothing to do; the run counts them as inexact")]


def _play_on(env: SerialVectorEnv) -> list[bytes]:
    return [_digest(arrays) for _, arrays in zip(range(_STATE_STEPS + 1), _steps(env), strict=False)]


def _steps(env: SerialVectorEnv) -> Iterator[Sequence[Array]]:
    """What the env shows now, and what random legal actions lead to, until the episode ends."""
    generator, a = np.random.default_rng(7), env.arrays
    yield list(a.observations.values())
    ended = False
    while not ended:
        env.codec.decode(env.codec.random(env.masks, 1, generator), a.actions)
        env.send()
        env.recv()
        ended = bool(a.terminated[0] or a.truncated[0])
        yield [*(a.final_observations if ended else a.observations).values(), a.rewards, a.terminated, a.truncated]


def _digest(arrays: Sequence[Array]) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for array in arrays:
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.digest()
