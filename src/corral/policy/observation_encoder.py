"""Encodes observations as features for a network: scaling, one-hot codes, and normalisation with fixed statistics.

It uses numpy, because workers that do not import torch act with it too.
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

__all__ = ["ENCODING", "ObservationEncoder", "Scale", "encoded_size", "normalize_observations", "scales_from_weights"]

Floats = npt.NDArray[np.float32]
CLIP = 10.0
"""Normalised observations are clipped to this, as by Stable-Baselines3's VecNormalize."""
ENCODING = 2
"""Version of the encoding that weights were trained on, kept in checkpoints. Version 1 scaled all bytes.

Checkpoints of version 1 do not name it.
"""
MEAN, DEVIATION = "normalizer.mean_{}", "normalizer.deviation_{}"
"""Names of ``ObservationNormalizer``'s buffers among a policy's weights."""


class Scale(NamedTuple):
    """Statistics that a leaf is normalised with, both of the leaf's shape."""

    mean: Floats
    deviation: Floats


def normalize_observations(observations: Leaves, scales: Mapping[str, Scale]) -> Leaves:
    """Return the observations, with the leaves that have a scale normalised and clipped."""
    leaves = dict(observations)
    for path, scale in scales.items():
        centred = observations[path].astype(np.float32) - scale.mean
        leaves[path] = np.clip(centred / scale.deviation, np.float32(-CLIP), np.float32(CLIP))
    return leaves


class _EncodedLeaf(NamedTuple):
    """How one leaf of an observation is encoded."""

    path: str
    columns: slice
    """Its columns of the features."""
    is_flat: bool
    """Whether its values are [B, n] already and need no reshape."""
    write: Callable[[npt.NDArray[Any], Floats], None]


class ObservationEncoder:
    """Encodes observations as rows of features [B, F].

    Discrete leaves become one-hot codes, bytes of images are scaled to 0..1, and all else is used as it is.
    """

    def __init__(self, layout: Layout, leave_out: Collection[str] = ()) -> None:
        leaves = [leaf for leaf in layout.leaves if leaf.path not in leave_out]
        self.n_features = encoded_size(layout, leave_out)
        edges = itertools.accumulate((_leaf_size(leaf) for leaf in leaves), initial=0)
        self._leaves = [
            _EncodedLeaf(leaf.path, slice(start, stop), leaf.shape == (stop - start,), _writer(leaf))
            for leaf, (start, stop) in zip(leaves, itertools.pairwise(edges), strict=True)
        ]
        self._has_one_leaf = len(self._leaves) == 1

    def __call__(self, observations: Leaves, out: Floats | None = None) -> Floats:
        """Encode B rows, into ``out`` [B, F] if it is given."""
        for path, columns, is_flat, write in self._leaves:
            values = observations[path]
            rows = len(values)
            if out is None:
                out = np.empty((rows, self.n_features), np.float32)
            write(values if is_flat else values.reshape(rows, -1), out if self._has_one_leaf else out[:, columns])
        assert out is not None
        return out


def encoded_size(layout: Layout, leave_out: Collection[str] = ()) -> int:
    """Return the number of features F of the leaves that are not left out."""
    return sum(_leaf_size(leaf) for leaf in layout.leaves if leaf.path not in leave_out)


def _writer(leaf: Leaf) -> Callable[[npt.NDArray[Any], Floats], None]:
    """Return a function that writes values [B, n] of a leaf into its features [B, f]."""
    if isinstance(leaf.space, spaces.Box | spaces.MultiBinary):
        image = ImageLeaf.from_leaf(leaf)
        return _copy if image is None or image.scale == 1 else _copy_scaled
    sizes = np.ravel(leaf.space.n if isinstance(leaf.space, spaces.Discrete) else leaf.space.nvec)
    offsets = np.concatenate([[0], np.cumsum(sizes)[:-1]]) - np.ravel(leaf.space.start)

    def one_hot(values: npt.NDArray[Any], out: Floats) -> None:
        out[...] = 0
        np.put_along_axis(out, values + offsets, np.float32(1), axis=1)

    return one_hot


def _copy(values: npt.NDArray[Any], out: Floats) -> None:
    out[...] = values


def _copy_scaled(values: npt.NDArray[Any], out: Floats) -> None:
    np.divide(values, np.float32(255), out=out, dtype=np.float32)


def _leaf_size(leaf: Leaf) -> int:
    if isinstance(leaf.space, spaces.Discrete):
        return int(leaf.space.n)
    if isinstance(leaf.space, spaces.MultiDiscrete):
        return int(leaf.space.nvec.sum())
    return int(np.prod(leaf.shape))


def scales_from_weights(layout: Layout, weights: Mapping[str, Any]) -> dict[str, Scale]:
    """Return the normalisation statistics among a policy's weights, by leaf; empty if it does not normalise."""
    paths = [leaf.path for leaf in layout.leaves if is_normalizable(leaf) and MEAN.format(0) in weights]
    return {
        path: Scale(np.asarray(weights[MEAN.format(i)]), np.asarray(weights[DEVIATION.format(i)]))
        for i, path in enumerate(paths)
    }
