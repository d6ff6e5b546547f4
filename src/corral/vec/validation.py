"""Writes what envs return into their rows of the arrays, and refuses what no learner could use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from corral.core.actions import ActionCodec
from corral.core.spaces import Layout
from corral.envs.lifecycle import FLAG, scalar
from corral.vec.api import StepArrays
from corral.vec.calls import InvalidAction

__all__ = ["MASK", "NUMBER", "InvalidRow", "RowWriter", "public_info", "shape_of"]

MASK = "action_mask"
NUMBER = (bool, int, float, np.bool_, np.integer, np.floating)
_HALF_SIGNLESS, _HALF_INFINITY = np.uint16(0x7FFF), np.uint16(0x7C00)
LARGEST = float(np.finfo(np.float32).max)  # the learner computes in single precision


class InvalidRow(ValueError):
    """What an env returned cannot be used; ``row`` says which env's it was, if it was found among many."""

    def __init__(self, message: str, row: int | None = None) -> None:
        super().__init__(message)
        self.row = row


class RowWriter:
    """Knows the spaces of some envs, and whether they mask their actions."""

    def __init__(self, observation_space: gym.Space[Any], action_space: gym.Space[Any], arrays: StepArrays) -> None:
        self.arrays = arrays
        self.has_masks: bool | None = None
        self.mask_dtype: np.dtype[Any] | None = None  # of masks in infos, if they have any; known after a first reset
        self.codec = ActionCodec(action_space)
        self.layout = layout = Layout(observation_space)
        self.write = layout.writer(arrays.observations)
        """Write an observation; a ValueError says what does not fit."""
        self._action_space = action_space
        self._floats = [arrays.observations[leaf.path] for leaf in layout.leaves if leaf.is_float]
        halves = [array for array in self._floats if array.dtype == np.float16]
        others = [array for array in (arrays.rewards, *self._floats) if array.dtype != np.float16]
        self._checked = [(array.reshape(-1), _largest_square(array)) for array in others]
        self._bits = [array.reshape(-1).view(np.uint16) for array in halves]  # numpy has no fast product of halves
        self._one_choice = [head.kind for head in self.codec.heads] == ["categorical"]

    def observation(self, i: int, observation: Any) -> None:
        """Write an observation."""
        try:
            self.write(i, observation)
        except ValueError as error:
            raise InvalidRow(f"the observation has {error}") from None

    def reward(self, i: int, reward: Any) -> None:
        """Write a reward."""
        reward = scalar(reward)
        if not isinstance(reward, NUMBER):
            raise InvalidRow(f"the reward is {shape_of(reward)} {reward!r:.60}, expected a number")
        try:
            self.arrays.rewards[i] = reward
        except OverflowError:
            raise InvalidRow(f"the reward {reward!r:.60} is too large") from None

    def life_lost(self, i: int, lost: Any) -> None:
        """Write whether a return ends here."""
        lost = scalar(lost)
        if not isinstance(lost, FLAG):
            raise InvalidRow(f"life_lost is {shape_of(lost)} {lost!r:.60}, expected a boolean")
        self.arrays.life_lost[i] = lost

    def learn_masks(self, by_method: bool, info: Mapping[str, Any]) -> None:
        """Take from the info of a first reset whether there are masks, and the dtype of those in infos."""
        if self.has_masks is None:
            self.has_masks = by_method or MASK in info
            if MASK in info:
                given = info[MASK]
                self.mask_dtype = given.dtype if isinstance(given, np.ndarray) else np.dtype(np.bool_)

    def check_action(self, env: int, action: Any, raised: str) -> None:
        """Where an env raised: refuse an action that is not in the action space, for then the env is not at fault."""
        if not self._action_space.contains(action):
            plain = action.tolist() if isinstance(action, np.ndarray | np.generic) else action
            raise InvalidAction(
                f"env {env} raised {raised} for action {plain!r:.80}, which is not in {self._action_space}"
            )

    def mask(self, i: int, given: Any) -> None:
        """Write a mask; None where there is none."""
        if not self.has_masks:
            if given is not None:
                raise InvalidRow("there is an action mask, though the first reset had none: offer one always or never")
            return
        row = self.arrays.masks[i]
        if type(given) is np.ndarray and given.dtype == np.bool_ and given.shape == row.shape and row.size:
            row[:] = given
            if self._one_choice and given.any():
                return
        if given is None:
            raise InvalidRow(f"info has no {MASK!r}, though the first reset had one")
        try:
            if isinstance(given, tuple):  # one array for each dimension of a MultiDiscrete
                given = np.concatenate([np.asarray(part).reshape(-1) for part in given])
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
        row[:] = mask
        for head in self.codec.heads:
            if head.kind == "gaussian":
                continue
            allowed = row[head.mask].reshape(-1, 2) if head.kind == "bernoulli" else row[head.mask]
            if not allowed.any(-1).all():
                raise InvalidRow(
                    "the action mask forbids every action; a state with no legal action should end the episode"
                )

    def all_finite(self) -> None:
        """Look at every row: at one number for each array, and only on suspicion at each."""
        for flat, most in self._checked:
            if not np.dot(flat, flat) <= most:
                self._look(0, len(self.arrays.rewards), with_reward=True)
        for bits in self._bits:
            if np.maximum.reduce(bits & _HALF_SIGNLESS) >= _HALF_INFINITY:
                self._look(0, len(self.arrays.rewards), with_reward=True)

    def finite(self, i: int, with_reward: bool) -> None:
        """Look at one row."""
        self._look(i, i + 1, with_reward)

    def _look(self, first: int, stop: int, with_reward: bool) -> None:
        part = slice(first, stop)
        rewards = self.arrays.rewards[part] if with_reward else self.arrays.rewards[:0]
        with np.errstate(all="ignore"):
            suspects = [
                array
                for array in (rewards, *(leaf[part] for leaf in self._floats))
                if not (np.abs(array).max(initial=0) <= LARGEST if array.itemsize > 4 else np.isfinite(array.sum()))
            ]
        for array in suspects:
            rows = array.reshape(len(array), -1)
            bad = np.flatnonzero(~(np.isfinite(rows) & (np.abs(rows) <= LARGEST)).all(axis=1))
            if bad.size:  # else the terms were finite and only their sum overflowed
                what = "reward" if array is rewards else "observation"
                how = "too large for single precision" if np.isfinite(array[bad[0]]).all() else "not finite"
                raise InvalidRow(f"the {what} is {how}: {array[bad[0]]!r:.120}", int(bad[0]) + first)


def shape_of(value: Any) -> str:
    """What kind of thing an env returned."""
    if isinstance(value, tuple):
        old = " (the old gym API: wrap it with shimmy.GymV21CompatibilityV0)" if len(value) == 4 else ""
        return f"a tuple of {len(value)}{old}"
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape}"
    return type(value).__name__


def _largest_square(array: npt.NDArray[Any]) -> float:
    """What the squares of an array's numbers may add up to: no more than if one of them is as large as can be."""
    return float(np.finfo(array.dtype).max) if array.itemsize <= 4 else LARGEST**2


def public_info(info: dict[str, Any]) -> dict[str, Any]:
    """A copy, for the env may keep and change its own; without the mask, which travels by itself."""
    return {key: value for key, value in info.items() if key != MASK}
