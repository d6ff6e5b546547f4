"""From observation leaves to what a network eats: scaling, one-hot codes, and the frozen part of normalisation.

Numpy, because workers without torch act with it too.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from corral.core.spaces import Layout, Leaf
from corral.core.types import Leaves
from corral.policy.images import ImageLeaf, is_normalizable

__all__ = ["ENCODING", "Encoder", "Scale", "encoded_size", "normalized", "scales_from"]

Floats = npt.NDArray[np.float32]
CLIP = 10.0
ENCODING = 2
"""Which features weights were trained on; checkpoints hold it. Version 1, which was not written, scaled all bytes."""
MEAN, DEVIATION = "normalizer.mean_{}", "normalizer.deviation_{}"


class Scale(NamedTuple):
    """Statistics that a leaf is normalised with."""

    mean: Floats
    deviation: Floats


def normalized(observations: Leaves, scales: Mapping[str, Scale]) -> Leaves:
    """The same leaves, those with a scale normalised and clipped."""
    leaves = dict(observations)
    for path, scale in scales.items():
        centred = observations[path].astype(np.float32) - scale.mean
        leaves[path] = np.clip(centred / scale.deviation, np.float32(-CLIP), np.float32(CLIP))
    return leaves


class Encoder:
    """Leaves as one row of features [B, F]: choices as one-hot codes, bytes of pictures as 0 to 1, the rest as is."""

    def __init__(self, layout: Layout, leave_out: Collection[str] = ()) -> None:
        leaves = [leaf for leaf in layout.leaves if leaf.path not in leave_out]
        self.n_features = encoded_size(layout, leave_out)
        edges = itertools.accumulate((_leaf_size(leaf) for leaf in leaves), initial=0)
        self._parts = [
            (leaf.path, slice(a, b), leaf.shape == (b - a,), _writer(leaf))
            for leaf, (a, b) in zip(leaves, itertools.pairwise(edges), strict=True)
        ]
        self._whole = len(self._parts) == 1

    def __call__(self, observations: Leaves, out: Floats | None = None) -> Floats:
        """Encode rows, into ``out`` if it is given."""
        for path, columns, flat, write in self._parts:
            value = observations[path]
            if out is None:
                out = np.empty((len(value), self.n_features), np.float32)
            write(value if flat else value.reshape(len(value), -1), out if self._whole else out[:, columns])
        assert out is not None
        return out


def encoded_size(layout: Layout, leave_out: Collection[str] = ()) -> int:
    """F."""
    return sum(_leaf_size(leaf) for leaf in layout.leaves if leaf.path not in leave_out)


def _writer(leaf: Leaf) -> Callable[[npt.NDArray[Any], Floats], None]:
    """How values [B, n] of a leaf are written into its features [B, f]."""
    if isinstance(leaf.space, spaces.Box | spaces.MultiBinary):
        picture = ImageLeaf.from_leaf(leaf)
        return _write if picture is None or picture.scale == 1 else _write_scaled
    sizes = np.ravel(leaf.space.n if isinstance(leaf.space, spaces.Discrete) else leaf.space.nvec)
    offsets = np.concatenate([[0], np.cumsum(sizes)[:-1]]) - np.ravel(leaf.space.start)

    def one_hot(value: npt.NDArray[Any], out: Floats) -> None:
        out[...] = 0
        np.put_along_axis(out, value + offsets, np.float32(1), axis=1)

    return one_hot


def _write(value: npt.NDArray[Any], out: Floats) -> None:
    out[...] = value


def _write_scaled(value: npt.NDArray[Any], out: Floats) -> None:
    np.divide(value, np.float32(255), out=out, dtype=np.float32)


def _leaf_size(leaf: Leaf) -> int:
    if isinstance(leaf.space, spaces.Discrete):
        return int(leaf.space.n)
    if isinstance(leaf.space, spaces.MultiDiscrete):
        return int(leaf.space.nvec.sum())
    return int(np.prod(leaf.shape))


def scales_from(layout: Layout, weights: Mapping[str, Any]) -> dict[str, Scale]:
    """The statistics among a policy's weights, by leaf; none if it does not normalise."""
    paths = [leaf.path for leaf in layout.leaves if is_normalizable(leaf) and MEAN.format(0) in weights]
    return {
        path: Scale(np.asarray(weights[MEAN.format(i)]), np.asarray(weights[DEVIATION.format(i)]))
        for i, path in enumerate(paths)
    }
