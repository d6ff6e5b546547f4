"""Which observations are pictures. Networks, encoders, normalisers and doctor all ask here."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from gymnasium import spaces

from corral.core.spaces import Layout, Leaf

__all__ = ["ImageLeaf", "image_leaves", "is_normalizable"]

_SMALLEST = 8  # an array with a shorter side is a table: MiniGrid's 7 x 7 x 3 holds codes of objects, not colours


@dataclass(frozen=True, slots=True)
class ImageLeaf:
    """A leaf that is a picture: its channels, its sides, and how they lie in it."""

    path: str
    channels: int
    height: int
    width: int
    channels_first: bool
    scale: float
    """What its numbers are multiplied with, so that they become 0 to 1."""

    @classmethod
    def from_leaf(cls, leaf: Leaf) -> ImageLeaf | None:
        """The leaf as a picture, or several on top of each other (4 axes); None if it is not one.

        A picture is a Box of bytes or floats with three axes and sides of at least 8. Only its bytes are scaled.
        """
        space = leaf.space
        if not isinstance(space, spaces.Box) or not (leaf.is_float or leaf.dtype == np.uint8):
            return None
        if len(leaf.shape) not in (3, 4):
            return None
        *frames, a, b, c = leaf.shape
        first = _channels_first(a, b, c)
        channels, height, width = (a, b, c) if first else (c, a, b)
        if min(height, width) < _SMALLEST or not channels:
            return None
        whole_bytes = leaf.dtype == np.uint8 and bool((space.low == 0).all() and (space.high == 255).all())
        scale = 1 / 255 if whole_bytes else 1.0
        return cls(leaf.path, channels * math.prod(frames), height, width, first, scale)


def image_leaves(layout: Layout) -> tuple[ImageLeaf, ...]:
    """The leaves that are pictures."""
    found = (ImageLeaf.from_leaf(leaf) for leaf in layout.leaves)
    return tuple(picture for picture in found if picture is not None)


def is_normalizable(leaf: Leaf) -> bool:
    """Whether ``normalize_obs`` covers a leaf: floats of any shape, and integers in a Box that is no picture."""
    if leaf.is_float:
        return True
    return isinstance(leaf.space, spaces.Box) and leaf.dtype.kind in "iu" and ImageLeaf.from_leaf(leaf) is None


def _channels_first(a: int, b: int, c: int) -> bool:
    """Two equal sides are the picture's; where that does not tell, the smallest is the channels', as in SB3."""
    if (a == b) != (b == c):
        return b == c
    return min(a, b, c) == a
