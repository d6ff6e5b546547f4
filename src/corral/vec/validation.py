"""Write what envs return into their rows of the step arrays, and refuse values that the learner cannot use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from corral.core.actions import ActionCodec
from corral.core.spaces import Layout, Leaf, discrete_bounds
from corral.core.types import Leaves
from corral.envs.lifecycle import FLAG_TYPES, unwrap_scalar
from corral.vec.api import StepArrays
from corral.vec.calls import InvalidAction

__all__ = ["MASK", "NUMBER_TYPES", "InvalidRow", "RowWriter", "describe_value", "public_info"]

MASK = "action_mask"
"""The key of the action mask in an info."""
NUMBER_TYPES = (bool, int, float, np.bool_, np.integer, np.floating)
"""The types that count as numbers in rewards and infos."""
MAX_VALUE = float(np.finfo(np.float32).max)
"""The largest absolute value that the learner can use: it computes in single precision."""
_FLOAT16_ABS_BITS, _FLOAT16_INFINITY = np.uint16(0x7FFF), np.uint16(0x7C00)  # all bits but the sign; those of infinity


class InvalidRow(ValueError):
    """An env returned something that cannot be used; ``row`` is the row of that env, if a batch was checked."""

    def __init__(self, message: str, row: int | None = None) -> None:
        super().__init__(message)
        self.row = row


class RowWriter:
    """Checks what envs return and writes it into their rows of ``arrays``. Its checks raise ``InvalidRow``."""

    def __init__(self, observation_space: gym.Space[Any], action_space: gym.Space[Any], arrays: StepArrays) -> None:
        self.arrays = arrays
        self.has_masks: bool | None = None
        """Whether the envs mask their actions; None before the first reset."""
        self.mask_dtype: np.dtype[Any] | None = None
        """The dtype of the masks in infos; None before the first reset, and where infos have none."""
        self.codec = ActionCodec(action_space)
        self.layout = layout = Layout(observation_space)
        self.copy_observation = layout.writer(arrays.observations)
        """Copy an observation into a row; raise a plain ``ValueError`` if it does not fit."""
        self._action_space = action_space
        limits = {leaf.path: discrete_bounds(leaf.space) for leaf in layout.leaves}
        self._limits = {path: limit for path, limit in limits.items() if limit is not None}
        self._float_leaves = [arrays.observations[leaf.path] for leaf in layout.leaves if leaf.is_float]
        float16 = [array for array in self._float_leaves if array.dtype == np.float16]
        others = [array for array in (arrays.rewards, *self._float_leaves) if array.dtype != np.float16]
        self._max_squares = [(array.reshape(-1), _max_sum_of_squares(array)) for array in others]
        self._float16_bits = [array.reshape(-1).view(np.uint16) for array in float16]  # numpy's float16 dot is slow
        self._is_one_categorical = [head.kind for head in self.codec.heads] == ["categorical"]

    def write_observation(self, i: int, observation: Any) -> None:
        """Write an observation into row ``i``."""
        try:
            self.copy_observation(i, observation)
        except ValueError as error:
            raise InvalidRow(f"the observation has {error}") from None

    def write_observations(self, leaves: Leaves, envs: npt.NDArray[np.int64] | None = None) -> None:
        """Write observations, each leaf [K, ...], into the rows ``envs`` [K], or into all rows."""
        n = len(self.arrays.rewards) if envs is None else len(envs)
        rows = slice(None) if envs is None else envs
        for leaf in self.layout.leaves:
            value = leaves[leaf.path]
            if value.shape != (n, *leaf.shape) or not np.can_cast(value.dtype, leaf.dtype, "same_kind"):
                where = f" at {leaf.path!r}" if leaf.path else ""
                expected = f"{(n, *leaf.shape)} {leaf.dtype}"
                raise InvalidRow(f"the observations{where} are {value.shape} {value.dtype}, expected {expected}")
            self.arrays.observations[leaf.path][rows] = value
            if not leaf.is_float:
                self._check_integers(leaf, value, self.arrays.observations[leaf.path][rows])

    def _check_integers(self, leaf: Leaf, given: npt.NDArray[Any], written: npt.NDArray[Any]) -> None:
        """Raise ``InvalidRow`` for integers that the leaf's dtype cannot hold or that are not in its space."""
        if given.dtype != written.dtype and not np.array_equal(given, written):
            raise InvalidRow(
                f"the observations have values {given.min()} to {given.max()}, which {leaf.dtype} cannot hold"
            )
        if leaf.path in self._limits:
            low, high = self._limits[leaf.path]
            if ((written < low) | (written > high)).any():
                raise InvalidRow(
                    f"the observations have values {given.min()} to {given.max()}, not all in {leaf.space}"
                )

    def write_reward(self, i: int, reward: Any) -> None:
        """Write a reward into row ``i``."""
        reward = unwrap_scalar(reward)
        if not isinstance(reward, NUMBER_TYPES):
            raise InvalidRow(f"the reward is {describe_value(reward)} {reward!r:.60}, expected a number")
        try:
            self.arrays.rewards[i] = reward
        except OverflowError:
            raise InvalidRow(f"the reward {reward!r:.60} is too large") from None

    def write_life_lost(self, i: int, lost: Any) -> None:
        """Write into row ``i`` whether the return ends here although the episode continues."""
        lost = unwrap_scalar(lost)
        if not isinstance(lost, FLAG_TYPES):
            raise InvalidRow(f"life_lost is {describe_value(lost)} {lost!r:.60}, expected a boolean")
        self.arrays.life_lost[i] = lost

    def detect_masks(self, has_mask_method: bool, info: Mapping[str, Any]) -> None:
        """Set ``has_masks`` and ``mask_dtype`` from the info of the first reset; later calls change nothing."""
        if self.has_masks is None:
            self.has_masks = has_mask_method or MASK in info
            if MASK in info:
                mask = info[MASK]
                self.mask_dtype = mask.dtype if isinstance(mask, np.ndarray) else np.dtype(np.bool_)

    def check_action(self, env: int, action: Any, raised: str) -> None:
        """Raise ``InvalidAction`` if the action for which an env ``raised`` is not in its action space.

        In that case the caller is at fault, not the env.
        """
        if not self._action_space.contains(action):
            plain = action.tolist() if isinstance(action, np.ndarray | np.generic) else action
            raise InvalidAction(
                f"env {env} raised {raised} for action {plain!r:.80}, which is not in {self._action_space}"
            )

    def write_mask(self, i: int, mask: Any) -> None:
        """Write an action mask into row ``i``; ``mask`` is None if the env returned none."""
        if not self.has_masks:
            if mask is not None:
                raise InvalidRow("there is an action mask, though the first reset had none: offer one always or never")
            return
        row = self.arrays.masks[i]
        if type(mask) is np.ndarray and mask.dtype == np.bool_ and mask.shape == row.shape and row.size:
            row[:] = mask
            if self._is_one_categorical and mask.any():
                return
        if mask is None:
            raise InvalidRow(f"info has no {MASK!r}, though the first reset had one")
        row[:] = self._checked_mask(mask)
        for head in self.codec.heads:
            if head.kind == "gaussian":
                continue
            allowed = row[head.mask].reshape(-1, 2) if head.kind == "bernoulli" else row[head.mask]
            if not allowed.any(-1).all():
                raise InvalidRow(
                    "the action mask forbids every action; a state with no legal action should end the episode"
                )

    def _checked_mask(self, given: Any) -> npt.NDArray[Any]:
        """Return a mask as an array of booleans, or of 0 and 1, with the expected shape."""
        try:
            if isinstance(given, tuple):  # one array for each dimension of a MultiDiscrete
                given = np.concatenate([np.asarray(dimension).reshape(-1) for dimension in given])
            mask, expected = np.asarray(given), self.codec.n_mask
        except ValueError:
            raise InvalidRow(f"the action mask {given!r:.80} is not an array of numbers") from None
        if expected == 0:
            raise InvalidRow(f"there is an action mask, but {self._action_space} has no choices to mask")
        if mask.shape != (expected,):
            raise InvalidRow(f"the action mask has shape {mask.shape}, expected ({expected},)")
        if mask.dtype.kind != "b" and (mask.dtype.kind not in "iu" or not np.isin(mask, (0, 1)).all()):
            raise InvalidRow(
                f"the action mask has dtype {mask.dtype} and values {mask!r:.80}, expected booleans or 0 and 1"
            )
        return mask

    def check_all_finite(self) -> None:
        """Raise ``InvalidRow`` if a reward or observation in any row is not finite or too large.

        Each number is looked at only if the sum of squares of its array, which is fast, exceeds a limit.
        """
        for numbers, max_squares in self._max_squares:
            if not np.dot(numbers, numbers) <= max_squares:
                self._check_rows(0, len(self.arrays.rewards), with_reward=True)
        for bits in self._float16_bits:
            if np.maximum.reduce(bits & _FLOAT16_ABS_BITS) >= _FLOAT16_INFINITY:
                self._check_rows(0, len(self.arrays.rewards), with_reward=True)

    def check_finite(self, i: int, with_reward: bool) -> None:
        """Raise ``InvalidRow`` if the observation in row ``i``, or its reward, is not finite or too large."""
        self._check_rows(i, i + 1, with_reward)

    def _check_rows(self, first: int, stop: int, with_reward: bool) -> None:
        """Raise ``InvalidRow`` for the first of these rows that has a number that is not finite or too large."""
        rows = slice(first, stop)
        rewards = self.arrays.rewards[rows] if with_reward else self.arrays.rewards[:0]
        with np.errstate(all="ignore"):
            suspects = [
                array
                for array in (rewards, *(leaf[rows] for leaf in self._float_leaves))
                if not (np.abs(array).max(initial=0) <= MAX_VALUE if array.itemsize > 4 else np.isfinite(array.sum()))
            ]
        for array in suspects:
            numbers = array.reshape(len(array), -1)
            bad = np.flatnonzero(~(np.isfinite(numbers) & (np.abs(numbers) <= MAX_VALUE)).all(axis=1))
            if bad.size:  # otherwise every number is finite, and only their sum overflowed
                name = "reward" if array is rewards else "observation"
                problem = "too large for single precision" if np.isfinite(array[bad[0]]).all() else "not finite"
                raise InvalidRow(f"the {name} is {problem}: {array[bad[0]]!r:.120}", int(bad[0]) + first)


def describe_value(value: Any) -> str:
    """Return, for an error message, the type of a value, and its shape or length."""
    if isinstance(value, tuple):
        old = " (the old gym API: wrap it with shimmy.GymV21CompatibilityV0)" if len(value) == 4 else ""
        return f"a tuple of {len(value)}{old}"
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape}"
    return type(value).__name__


def _max_sum_of_squares(array: npt.NDArray[Any]) -> float:
    """Return a limit for the sum of squares of an array; if it is not exceeded, every number is finite and usable.

    It is the largest float32 for arrays of float32, and the square of the largest usable number for arrays of float64.
    """
    return float(np.finfo(array.dtype).max) if array.itemsize <= 4 else MAX_VALUE**2


def public_info(info: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of an info, because the env may change its own, without the mask, which ``arrays`` holds."""
    return {key: value for key, value in info.items() if key != MASK}
