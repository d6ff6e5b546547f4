"""Calls of a vector env: what is pending, errors for calls out of order, and checks of what callers pass.

The errors are Gymnasium's, so that code written for ``AsyncVectorEnv`` catches them, and Corral's too.
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
from corral.core.spaces import Layout, limits_of
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
    """What a vector env is in the middle of."""

    IDLE = "idle"
    RESETTING = "reset"
    STEPPING = "step"
    CALLING = "call"
    FAILED = "failed"
    CLOSED = "closed"

    @property
    def is_pending(self) -> bool:
        """Whether a call was begun whose outcome nobody asked for yet."""
        return self in (CallState.RESETTING, CallState.STEPPING, CallState.CALLING)


class AlreadyPending(CorralError, gym.error.AlreadyPendingCallError):
    """A call was begun before the outcome of another one was asked for; ``name`` is the pending one."""


class NothingPending(CorralError, gym.error.NoAsyncCallError):
    """The outcome of a call was asked for that was not begun."""


class Closed(CorralError, gym.error.ClosedEnvironmentError):
    """The vector env was closed before."""


class CallTimeout(CorralError, multiprocessing.TimeoutError, TimeoutError):
    """A call is not finished yet; its outcome can be asked for again."""


class InvalidAction(CorralError, gym.error.InvalidAction, ValueError):
    """A caller passed an action that is not in the action space."""


def check_state(owner: object, state: CallState, call: str) -> None:
    """Refuse a call that needs an idle vector env, unless it is idle."""
    if state is CallState.IDLE:
        return
    if state.is_pending:
        name = state.value
        words = f"Calling `{call}` while waiting for a pending call to `{name}` to complete; call `{name}_wait` first"
        raise AlreadyPending(words, name)
    _check_usable(owner, state, call)


def check_wait(owner: object, state: CallState, call: AsyncCall) -> None:
    """Refuse to wait for a call that is not pending."""
    if state.value != call:
        _check_usable(owner, state, f"{call}_wait")
        raise NothingPending(f"Calling `{call}_wait` without any prior call to `{call}_async`.", call)


def _check_usable(owner: object, state: CallState, call: str) -> None:
    name = type(owner).__name__
    if state is CallState.CLOSED:
        raise Closed(f"Trying to call `{call}` of this {name} after a call to `close()`.")
    if state is CallState.FAILED:
        raise CorralError(f"cannot call `{call}` of this {name}: an earlier call failed; close it and make a new one")


def to_seeds(seed: Any, n_envs: int) -> list[int | None] | None:
    """One seed for each env: an int gives env ``i`` ``seed + i``, a sequence gives each its own."""
    if seed is None:
        return None
    if _is_whole(seed):
        return to_seeds(range(int(seed), int(seed) + n_envs), n_envs)
    if not isinstance(seed, Sequence | np.ndarray) or not all(one is None or _is_whole(one) for one in seed):
        expected = f"expected None, a whole number or one for each of the {n_envs} envs"
        raise TypeError(f"reset got seed {seed!r:.80}, {expected}")
    if len(seed) != n_envs:
        raise ValueError(f"reset got {len(seed)} seeds, expected one for each of the {n_envs} envs")
    if any(one is not None and one < 0 for one in seed):
        raise ValueError(f"reset got seed {min(one for one in seed if one is not None)}, expected at least 0")
    return [None if one is None else int(one) for one in seed]


def _is_whole(value: Any) -> bool:
    return isinstance(value, int | np.integer)


def split_reset_mask(
    options: Mapping[str, Any] | None, episodes: npt.NDArray[np.int64]
) -> tuple[dict[str, Any] | None, npt.NDArray[np.bool_] | None]:
    """The options of a reset without ``reset_mask``, and that mask: which envs to reset; None for all of them.

    ``episodes`` [N] counts the episodes that each env has begun, less one.
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
    if (never := np.flatnonzero(~mask & (episodes < 0))).size:
        raise ValueError(f"env {never[0]} was never reset and {name} leaves it out; reset first without reset_mask")
    rest = {key: value for key, value in options.items() if key != RESET_MASK}
    return rest or None, mask.copy()


def write_actions(layout: Layout, actions: Any, out: Leaves) -> None:
    """Copy a batch of actions into per-leaf arrays; an error says which action of which env does not fit."""
    given = layout.unbatch(actions)
    for leaf in layout.leaves:
        values, target = given[leaf.path], out[leaf.path]
        where = f" at {leaf.path!r}" if leaf.path else ""
        whole = values.dtype.kind in "iu" and target.dtype.kind in "iu"  # of any size: the values are compared below
        if values.shape != target.shape or not (whole or np.can_cast(values.dtype, target.dtype, "same_kind")):
            if np.isscalar(actions):
                raise TypeError(f"actions{where} are {actions!r:.60}, expected a batch of shape {target.shape}")
            format_action = f"{values.shape} {values.dtype}, expected {target.shape} {target.dtype}"
            raise ValueError(f"actions{where} are {format_action}")
        limits = limits_of(leaf.space)
        if limits is not None or whole:
            low, high = limits or (np.iinfo(target.dtype).min, np.iinfo(target.dtype).max)
            outside = ((values < low) | (values > high)).reshape(len(values), -1).any(axis=1)
            if outside.any():
                env = int(outside.argmax())
                raise InvalidAction(f"action {values[env].tolist()} of env {env}{where} is not in {leaf.space}")
    for path, values in given.items():
        out[path][...] = values
