"""Which parts of an observation are images: the one rule that networks, encoders, normalisers and doctor use."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from gymnasium import spaces

from corral.core.spaces import Layout, Leaf

__all__ = ["ImageLeaf", "image_leaves", "is_normalizable"]

_MIN_SIDE = 8  # an array with a shorter side is a table: MiniGrid's 7 x 7 x 3 holds codes of objects, not colours


@dataclass(frozen=True, slots=True)
class ImageLeaf:
    """A leaf of an observation space that is an image: its size and the order of its axes."""

    path: str
    channels: int
    height: int
    width: int
    channels_first: bool
    scale: float
    """The factor that brings its values to 0..1; 1 if they are used as they are."""

    @classmethod
    def from_leaf(cls, leaf: Leaf) -> ImageLeaf | None:
        """Return the leaf as an image, or None if it is none.

        An image is a Box of bytes or floats with three axes and sides of at least 8 pixels. With four axes it is a
        stack of frames, which count as channels. Only bytes that span 0..255 are scaled.
        """
        space = leaf.space
        if not isinstance(space, spaces.Box) or not (leaf.is_float or leaf.dtype == np.uint8):
            return None
        if len(leaf.shape) not in (3, 4):
            return None
        *frames, a, b, c = leaf.shape
        channels_first = _is_channels_first(a, b, c)
        channels, height, width = (a, b, c) if channels_first else (c, a, b)
        if min(height, width) < _MIN_SIDE or not channels:
            return None
        spans_bytes = leaf.dtype == np.uint8 and bool((space.low == 0).all() and (space.high == 255).all())
        scale = 1 / 255 if spans_bytes else 1.0
        return cls(leaf.path, channels * math.prod(frames), height, width, channels_first, scale)


def image_leaves(layout: Layout) -> tuple[ImageLeaf, ...]:
    """Return the leaves of a space that are images."""
    images = (ImageLeaf.from_leaf(leaf) for leaf in layout.leaves)
    return tuple(image for image in images if image is not None)


def is_normalizable(leaf: Leaf) -> bool:
    """Return whether ``normalize_obs`` covers a leaf: floats of any shape, and integers in a Box that is no image."""
    if leaf.is_float:
        return True
    return isinstance(leaf.space, spaces.Box) and leaf.dtype.kind in "iu" and ImageLeaf.from_leaf(leaf) is None


def _is_channels_first(a: int, b: int, c: int) -> bool:
    """Return whether axes (a, b, c) are (channels, height, width) rather than (height, width, channels).

    Two equal axes are height and width. Otherwise the smallest axis is the channels, as in Stable-Baselines3.
    """
    if (a == b) != (b == c):
        return b == c
    return min(a, b, c) == a
