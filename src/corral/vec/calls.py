"""Calls of a vector env: which one is pending, errors for calls in a wrong order, and checks of arguments.

The errors are subclasses of Gymnasium's, so that code written for ``AsyncVectorEnv`` catches them, and of Corral's.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, Literal

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from corral.core.errors import CorralError
from corral.core.spaces import Layout, discrete_bounds
from corral.core.types import Leaves

__all__ = [
    "AlreadyPending",
    "CallState",
    "CallTimeout",
    "Closed",
    "InvalidAction",
    "NothingPending",
    "check_state",
    "check_wait",
    "split_reset_mask",
    "to_seeds",
    "write_actions",
]

AsyncCall = Literal["reset", "step", "call"]
RESET_MASK = "reset_mask"


class CallState(Enum):
    """Which asynchronous call of a vector env is pending, or whether it is idle, unusable or closed."""

    IDLE = "idle"
    RESETTING = "reset"
    STEPPING = "step"
    CALLING = "call"
    FAILED = "failed"
    CLOSED = "closed"

    @property
    def is_pending(self) -> bool:
        """Whether a call was begun and its ``..._wait`` was not called yet."""
        return self in (CallState.RESETTING, CallState.STEPPING, CallState.CALLING)


class AlreadyPending(CorralError, gym.error.AlreadyPendingCallError):
    """A call was begun while another one was pending; ``name`` is the pending one."""


class NothingPending(CorralError, gym.error.NoAsyncCallError):
    """A ``..._wait`` method was called, but the call to wait for was not begun."""


class Closed(CorralError, gym.error.ClosedEnvironmentError):
    """A method was called after the vector env was closed."""


class CallTimeout(CorralError, multiprocessing.TimeoutError, TimeoutError):
    """A call did not finish in time; it continues, and ``..._wait`` can be called again."""


class InvalidAction(CorralError, gym.error.InvalidAction, ValueError):
    """A caller passed an action that is not in the action space."""


def check_state(owner: object, state: CallState, call: str) -> None:
    """Raise if the vector env ``owner`` is not idle, as ``call`` needs it to be."""
    if state is CallState.IDLE:
        return
    if state.is_pending:
        name = state.value
        text = f"Calling `{call}` while waiting for a pending call to `{name}` to complete; call `{name}_wait` first"
        raise AlreadyPending(text, name)
    _check_usable(owner, state, call)


def check_wait(owner: object, state: CallState, call: AsyncCall) -> None:
    """Raise if ``call`` is not pending, so that there is nothing to wait for."""
    if state.value != call:
        _check_usable(owner, state, f"{call}_wait")
        raise NothingPending(f"Calling `{call}_wait` without any prior call to `{call}_async`.", call)


def _check_usable(owner: object, state: CallState, call: str) -> None:
    """Raise if the vector env is closed, or if an earlier call failed."""
    name = type(owner).__name__
    if state is CallState.CLOSED:
        raise Closed(f"Trying to call `{call}` of this {name} after a call to `close()`.")
    if state is CallState.FAILED:
        raise CorralError(f"cannot call `{call}` of this {name}: an earlier call failed; close it and make a new one")


def to_seeds(seed: Any, n_envs: int) -> list[int | None] | None:
    """Return a seed for each env: ``seed + i`` for env ``i`` if ``seed`` is an int, or the seeds of a sequence."""
    if seed is None:
        return None
    if _is_integer(seed):
        return to_seeds(range(int(seed), int(seed) + n_envs), n_envs)
    if not isinstance(seed, Sequence | np.ndarray) or not all(item is None or _is_integer(item) for item in seed):
        expected = f"expected None, an integer or one for each of the {n_envs} envs"
        raise TypeError(f"reset got seed {seed!r:.80}, {expected}")
    if len(seed) != n_envs:
        raise ValueError(f"reset got {len(seed)} seeds, expected one for each of the {n_envs} envs")
    if any(item is not None and item < 0 for item in seed):
        raise ValueError(f"reset got seed {min(item for item in seed if item is not None)}, expected at least 0")
    return [None if item is None else int(item) for item in seed]


def _is_integer(value: Any) -> bool:
    return isinstance(value, int | np.integer)


def split_reset_mask(
    options: Mapping[str, Any] | None, episodes: npt.NDArray[np.int64]
) -> tuple[dict[str, Any] | None, npt.NDArray[np.bool_] | None]:
    """Return the options of a reset without ``reset_mask``, and a copy of that mask [N]; None means all envs.

    ``episodes`` [N] has the number of each env's episode, -1 before its first.
    """
    if options is None or RESET_MASK not in options:
        return None if options is None else dict(options), None
    mask, name, n = options[RESET_MASK], f"`options['{RESET_MASK}']`", len(episodes)
    if not isinstance(mask, np.ndarray):
        raise TypeError(f"{name} must be a numpy array, got {type(mask)}")
    if mask.shape != (n,):
        raise ValueError(f"{name} must have shape `({n},)`, got {mask.shape}")
    if mask.dtype != np.bool_:
        raise TypeError(f"{name} must have `dtype=np.bool_`, got {mask.dtype}")
    if not mask.any():
        raise ValueError(f"{name} must contain a boolean array with at least one True value, got reset_mask={mask}")
    if (never_reset := np.flatnonzero(~mask & (episodes < 0))).size:
        raise ValueError(
            f"env {never_reset[0]} was never reset and {name} leaves it out; reset first without reset_mask"
        )
    other_options = {key: value for key, value in options.items() if key != RESET_MASK}
    return other_options or None, mask.copy()


def write_actions(layout: Layout, actions: Any, out: Leaves) -> None:
    """Copy a batch of actions [N, ...] into the arrays of its leaves; raise if an action is not in the action space."""
    given = layout.unbatch(actions)
    for leaf in layout.leaves:
        values, target = given[leaf.path], out[leaf.path]  # both [N, ...]
        where = f" at {leaf.path!r}" if leaf.path else ""
        are_integers = values.dtype.kind in "iu" and target.dtype.kind in "iu"  # of any size: values are checked below
        if values.shape != target.shape or not (are_integers or np.can_cast(values.dtype, target.dtype, "same_kind")):
            if np.isscalar(actions):
                raise TypeError(f"actions{where} are {actions!r:.60}, expected a batch of shape {target.shape}")
            expected = f"expected {target.shape} {target.dtype}"
            raise ValueError(f"actions{where} are {values.shape} {values.dtype}, {expected}")
        limits = discrete_bounds(leaf.space)
        if limits is not None or are_integers:
            low, high = limits or (np.iinfo(target.dtype).min, np.iinfo(target.dtype).max)
            outside = ((values < low) | (values > high)).reshape(len(values), -1).any(axis=1)
            if outside.any():
                env = int(outside.argmax())
                raise InvalidAction(f"action {values[env].tolist()} of env {env}{where} is not in {leaf.space}")
    for path, values in given.items():
        out[path][...] = values
