"""Actions as the policy sees them: a flat row of numbers, split into heads.

``Discrete`` is one categorical head, ``MultiDiscrete`` several, ``MultiBinary`` a Bernoulli head, ``Box`` a Gaussian
head; a nested space has the heads of all its leaves. Other modules work with heads and need not know the space.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from corral.core.spaces import Layout, Leaf
from corral.core.types import Leaves

__all__ = [
    "ACTION_FEATURES",
    "ActionCodec",
    "Head",
    "HeadInputs",
    "find_action_features_leaf",
    "split_by_head",
    "state_layout",
]

Array = npt.NDArray[Any]
HeadKind = Literal["categorical", "bernoulli", "gaussian"]
ACTION_FEATURES = "action_features"
"""Key of the observation whose row i describes action i. A policy can compute each action's logit from its row."""


@dataclass(frozen=True, slots=True)
class Head:
    """An independent factor of the action distribution, with its columns in parameters, actions and masks."""

    kind: HeadKind
    """The distribution of the head."""
    size: int
    """Number of choices of a categorical head; number of dimensions of a Bernoulli or Gaussian head."""
    params: slice
    """Columns of the head in the network's outputs [B, P]: logits or means."""
    actions: slice
    """Columns of the head in action rows [B, D]."""
    mask: slice
    """Columns of the head in masks [B, A]: one per choice, two (0 is legal, 1 is legal) per Bernoulli dimension."""


class ActionCodec:
    """The heads of an action space, and the conversion of flat action rows into actions of the space."""

    def __init__(self, space: spaces.Space[Any]) -> None:
        self.layout = Layout(space, role="action")
        heads: list[Head] = []
        gaussian: list[bool] = []  # by column of an action row
        self._columns: list[slice] = []  # columns of an action row, by leaf
        params = actions = mask = 0
        for leaf in self.layout.leaves:
            first_column = actions
            for kind, size in _heads_of(leaf):
                n_columns = 1 if kind == "categorical" else size
                n_mask = {"categorical": size, "bernoulli": 2 * size, "gaussian": 0}[kind]
                heads.append(
                    Head(
                        kind=kind,
                        size=size,
                        params=slice(params, params + size),
                        actions=slice(actions, actions + n_columns),
                        mask=slice(mask, mask + n_mask),
                    )
                )
                gaussian += [kind == "gaussian"] * n_columns
                params, actions, mask = params + size, actions + n_columns, mask + n_mask
            self._columns.append(slice(first_column, actions))
        self.heads = tuple(heads)
        self.gaussian = tuple(gaussian)
        """Whether each column of an action row belongs to a Gaussian head."""
        self.n_params, self.n_actions, self.n_mask = params, actions, mask
        """P, D and A: the numbers of columns of network outputs, action rows and masks."""
        is_discrete = isinstance(space, spaces.Discrete) and np.dtype(space.dtype) == np.int64
        self._discrete_start = int(space.start) if is_discrete else None  # type: ignore[attr-defined]
        self.dtype: np.dtype[Any] = np.dtype(np.float32 if any(gaussian) else np.int64)

    def decode(self, actions: Array, out: Leaves) -> None:
        """Write action rows [N, D] into per-leaf arrays of actions that the envs accept.

        The start of discrete spaces is added, Box actions are clipped to their bounds, and those of integer Boxes are
        rounded before.
        """
        if self._discrete_start is not None:  # a fast path for the most common space
            np.add(actions[:, 0], self._discrete_start, out=out[""])
            return
        for leaf, leaf_columns in zip(self.layout.leaves, self._columns, strict=True):
            target, columns = out[leaf.path], actions[:, leaf_columns]
            if isinstance(leaf.space, spaces.Box):
                rows = columns if leaf.is_float else np.rint(columns)
                np.clip(rows.reshape(target.shape), leaf.space.low, leaf.space.high, out=target, casting="unsafe")
            elif isinstance(leaf.space, spaces.Discrete):
                np.add(columns[:, 0], leaf.space.start, out=target, casting="unsafe")
            elif isinstance(leaf.space, spaces.MultiDiscrete):
                np.add(columns.reshape(target.shape), leaf.space.start, out=target, casting="unsafe")
            else:
                target[...] = columns.reshape(target.shape)

    def random(self, masks: Array | None, n: int, generator: np.random.Generator) -> Array:
        """Draw legal actions [N, D] uniformly; unbounded Box actions are drawn from a standard normal distribution."""
        actions = np.zeros((n, self.n_actions), self.dtype)
        for head in self.heads:
            width = head.actions.stop - head.actions.start
            if head.kind == "gaussian":
                actions[:, head.actions] = generator.standard_normal((n, width))
                continue
            n_choices = head.size if head.kind == "categorical" else 2
            legal = np.ones((n, width, n_choices), np.bool_)
            if masks is not None:
                legal &= masks[:, head.mask].reshape(legal.shape)
            actions[:, head.actions] = (generator.random(legal.shape) * legal).argmax(-1)
        for leaf, columns in zip(self.layout.leaves, self._columns, strict=True):
            if isinstance(leaf.space, spaces.Box) and leaf.space.is_bounded():
                # Bounds are halved because high - low may overflow.
                low, high = leaf.space.low.ravel() / 2, leaf.space.high.ravel() / 2
                actions[:, columns] = 2 * generator.uniform(low, high, (n, columns.stop - columns.start))
        return actions


class HeadInputs(NamedTuple):
    """A head with its columns of the network's outputs and of the mask, as arrays or as tensors."""

    head: Head
    params: Any  # [B, size]
    mask: Any | None  # [B, entries]; None for a Gaussian head
    log_std: Any  # [size] for a Gaussian head; of no use for others


def split_by_head(heads: Sequence[Head], params: Any, log_std: Any, masks: Any | None) -> list[HeadInputs]:
    """Split ``params`` [B, P], ``masks`` [B, A] and ``log_std`` [number of Gaussian dimensions] by head."""
    inputs, n_gaussian = [], 0
    for head in heads:
        mask = None if masks is None or head.kind == "gaussian" else masks[:, head.mask]
        head_log_std = log_std[n_gaussian : n_gaussian + head.size] if head.kind == "gaussian" else log_std
        n_gaussian += head.size if head.kind == "gaussian" else 0
        inputs.append(HeadInputs(head, params[:, head.params], mask, head_log_std))
    return inputs


def _heads_of(leaf: Leaf) -> list[tuple[HeadKind, int]]:
    """Return kind and size of every head of a leaf."""
    if isinstance(leaf.space, spaces.Discrete):
        return [("categorical", int(leaf.space.n))]
    if isinstance(leaf.space, spaces.MultiDiscrete):
        return [("categorical", int(n)) for n in leaf.space.nvec.reshape(-1)]
    if isinstance(leaf.space, spaces.MultiBinary):
        return [("bernoulli", int(np.prod(leaf.shape)))]
    return [("gaussian", int(np.prod(leaf.shape)))]


def find_action_features_leaf(layout: Layout, action_space: gym.Space[Any]) -> Leaf | None:
    """Return the observation leaf ``action_features`` if a policy can score actions by it, else None.

    It must be a float array with one row per action of a ``Discrete`` space, beside at least one other leaf.
    """
    leaf = next((leaf for leaf in layout.leaves if leaf.keys == (ACTION_FEATURES,)), None)
    if leaf is None or not isinstance(action_space, spaces.Discrete) or len(layout.leaves) < 2:
        return None
    is_float32 = leaf.is_float and leaf.dtype.itemsize <= 4  # or float16
    has_row_per_action = len(leaf.shape) == 2 and leaf.shape[0] == action_space.n and leaf.shape[1] > 0
    return leaf if is_float32 and has_row_per_action else None


def state_layout(layout: Layout) -> Layout:
    """Return the layout of a Dict observation space without its leaf ``action_features``."""
    assert isinstance(layout.space, spaces.Dict)
    return Layout(spaces.Dict({key: space for key, space in layout.space.spaces.items() if key != ACTION_FEATURES}))
