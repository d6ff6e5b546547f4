"""Actions as the policy sees them: a flat row of numbers, split into heads.

``Discrete`` is one categorical head, ``MultiDiscrete`` several, ``MultiBinary`` a Bernoulli head, ``Box`` a
Gaussian one, and nested spaces are simply more heads: so no code after this file asks which space it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from corral.core.spaces import Layout, Leaf
from corral.core.types import Leaves

__all__ = ["ACTION_FEATURES", "ActionCodec", "Head", "by_head", "scored_leaf", "state_layout"]

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Head:
    """An independent factor of the action distribution, and where its numbers lie."""

    kind: Literal["categorical", "bernoulli", "gaussian"]
    size: int
    """Choices of a categorical head; numbers of a Bernoulli or Gaussian one."""
    params: slice
    """Its share of the network's outputs: logits or means."""
    actions: slice
    """Its share of an action row."""
    mask: slice
    """Its share of a mask: one entry a choice; two (0 allowed, 1 allowed) for each Bernoulli number."""


class ActionCodec:
    """The heads of an action space, and the translation of flat action rows into what the env takes."""

    def __init__(self, space: spaces.Space[Any]) -> None:
        self.layout = Layout(space, role="action")
        heads: list[Head] = []
        gaussian: list[bool] = []
        self._columns: list[slice] = []  # of an action row, for each leaf
        params = actions = mask = 0
        for leaf in self.layout.leaves:
            first = actions
            for kind, size in _factors(leaf):
                columns = 1 if kind == "categorical" else size
                entries = {"categorical": size, "bernoulli": 2 * size, "gaussian": 0}[kind]
                heads.append(
                    Head(
                        kind,
                        size,
                        slice(params, params + size),
                        slice(actions, actions + columns),
                        slice(mask, mask + entries),
                    )
                )
                gaussian += [kind == "gaussian"] * columns
                params, actions, mask = params + size, actions + columns, mask + entries
            self._columns.append(slice(first, actions))
        self.heads = tuple(heads)
        self.gaussian = tuple(gaussian)
        self.n_params, self.n_actions, self.n_mask = params, actions, mask
        plain = isinstance(space, spaces.Discrete) and np.dtype(space.dtype) == np.int64
        self._plain_start = int(space.start) if plain else None  # type: ignore[attr-defined]
        self.dtype: np.dtype[Any] = np.dtype(np.float32 if any(gaussian) else np.int64)

    def decode(self, actions: Array, out: Leaves) -> None:
        """Write action rows [N, D] into the env's per-leaf arrays: offsets added, boxes clipped, whole ones rounded."""
        if self._plain_start is not None:  # one Discrete
            np.add(actions[:, 0], self._plain_start, out=out[""])
            return
        for leaf, part in zip(self.layout.leaves, self._columns, strict=True):
            target, columns = out[leaf.path], actions[:, part]
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
        """Legal actions [N, D] drawn evenly: what a policy that knows nothing would do."""
        actions = np.zeros((n, self.n_actions), self.dtype)
        for head in self.heads:
            width = head.actions.stop - head.actions.start
            if head.kind == "gaussian":
                actions[:, head.actions] = generator.standard_normal((n, width))
                continue
            allowed = np.ones((n, width, head.size if head.kind == "categorical" else 2), np.bool_)
            if masks is not None:
                allowed &= masks[:, head.mask].reshape(allowed.shape)
            actions[:, head.actions] = (generator.random(allowed.shape) * allowed).argmax(-1)
        for leaf, part in zip(self.layout.leaves, self._columns, strict=True):
            if isinstance(leaf.space, spaces.Box) and leaf.space.is_bounded():
                low, high = leaf.space.low.ravel() / 2, leaf.space.high.ravel() / 2  # their difference may overflow
                actions[:, part] = 2 * generator.uniform(low, high, (n, part.stop - part.start))
        return actions


def by_head(
    heads: Sequence[Head], params: Any, log_std: Any, masks: Any | None
) -> list[tuple[Head, Any, Any | None, Any]]:
    """Each head with its share of parameters [B, P], masks [B, A] and deviations [G], as arrays or as tensors."""
    parts, gaussian = [], 0
    for head in heads:
        mask = None if masks is None or head.kind == "gaussian" else masks[:, head.mask]
        std = log_std[gaussian : gaussian + head.size] if head.kind == "gaussian" else log_std
        gaussian += head.size if head.kind == "gaussian" else 0
        parts.append((head, params[:, head.params], mask, std))
    return parts


def _factors(leaf: Leaf) -> list[tuple[Literal["categorical", "bernoulli", "gaussian"], int]]:
    if isinstance(leaf.space, spaces.Discrete):
        return [("categorical", int(leaf.space.n))]
    if isinstance(leaf.space, spaces.MultiDiscrete):
        return [("categorical", int(n)) for n in leaf.space.nvec.reshape(-1)]
    if isinstance(leaf.space, spaces.MultiBinary):
        return [("bernoulli", int(np.prod(leaf.shape)))]
    return [("gaussian", int(np.prod(leaf.shape)))]


ACTION_FEATURES = "action_features"


def scored_leaf(layout: Layout, action_space: gym.Space[Any]) -> Leaf | None:
    """The leaf that says what each action is; None if there is none, or nothing else to see."""
    leaf = next((leaf for leaf in layout.leaves if leaf.keys == (ACTION_FEATURES,)), None)
    if leaf is None or not isinstance(action_space, spaces.Discrete) or len(layout.leaves) < 2:
        return None
    fits = leaf.is_float and leaf.dtype.itemsize <= 4 and len(leaf.shape) == 2 and leaf.shape[0] == action_space.n
    return leaf if fits and leaf.shape[1] else None


def state_layout(layout: Layout) -> Layout:
    """All leaves but the one that describes actions."""
    assert isinstance(layout.space, spaces.Dict)
    return Layout(spaces.Dict({key: sub for key, sub in layout.space.spaces.items() if key != ACTION_FEATURES}))
