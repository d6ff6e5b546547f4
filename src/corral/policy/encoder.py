"""From observation leaves to what a network eats: scaling, one-hot codes, and the frozen part of normalisation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from gymnasium import spaces
from torch import Tensor, nn

from corral.core.spaces import Layout, Leaf

__all__ = ["ObservationNormalizer", "encode", "encoded_size"]

CLIP = 10.0


class ObservationNormalizer(nn.Module):
    """Scales float leaves by means and deviations that only change between iterations, so they travel as weights."""

    def __init__(self, layout: Layout) -> None:
        super().__init__()
        self.paths = tuple(leaf.path for leaf in layout.leaves if leaf.is_float)
        for i, leaf in enumerate(leaf for leaf in layout.leaves if leaf.is_float):
            self.register_buffer(f"mean_{i}", torch.zeros(leaf.shape))
            self.register_buffer(f"deviation_{i}", torch.ones(leaf.shape))

    def set(self, path: str, mean: npt.NDArray[Any], deviation: npt.NDArray[Any]) -> None:
        """Use these statistics from now on."""
        i = self.paths.index(path)
        self.get_buffer(f"mean_{i}").copy_(torch.as_tensor(mean))
        self.get_buffer(f"deviation_{i}").copy_(torch.as_tensor(deviation))

    def forward(self, observations: dict[str, Tensor]) -> dict[str, Tensor]:
        """The same leaves, the float ones scaled and clipped."""
        scaled = dict(observations)
        for i, path in enumerate(self.paths):
            centred = observations[path].float() - self.get_buffer(f"mean_{i}")
            scaled[path] = (centred / self.get_buffer(f"deviation_{i}")).clamp(-CLIP, CLIP)
        return scaled


def encode(layout: Layout, observations: Mapping[str, Tensor]) -> Tensor:
    """All leaves as one row of features [B, F]: one-hot codes for choices, 0 to 1 for bytes, the rest as it is."""
    columns = [_encode_leaf(leaf, observations[leaf.path]) for leaf in layout.leaves]
    return columns[0] if len(columns) == 1 else torch.cat(columns, dim=-1)


def encoded_size(layout: Layout) -> int:
    """F."""
    return sum(_leaf_size(leaf) for leaf in layout.leaves)


def _encode_leaf(leaf: Leaf, value: Tensor) -> Tensor:  # [B, *leaf.shape] -> [B, f]
    rows = value.reshape(len(value), -1)
    if isinstance(leaf.space, spaces.Discrete):
        return nn.functional.one_hot(rows[:, 0].long() - int(leaf.space.start), int(leaf.space.n)).float()
    if isinstance(leaf.space, spaces.MultiDiscrete):
        starts, sizes = leaf.space.start.reshape(-1), leaf.space.nvec.reshape(-1)
        codes = [
            nn.functional.one_hot(rows[:, i].long() - int(start), int(n))
            for i, (start, n) in enumerate(zip(starts, sizes, strict=True))
        ]
        return torch.cat(codes, dim=-1).float()
    return rows.float() / 255.0 if _is_bytes(leaf) else rows.float()


def _is_bytes(leaf: Leaf) -> bool:
    """Whether a leaf uses the whole range of a byte, as pictures do."""
    space = leaf.space
    return (
        isinstance(space, spaces.Box)
        and leaf.dtype == np.uint8
        and bool((space.low == 0).all() and (space.high == 255).all())
    )


def _leaf_size(leaf: Leaf) -> int:
    if isinstance(leaf.space, spaces.Discrete):
        return int(leaf.space.n)
    if isinstance(leaf.space, spaces.MultiDiscrete):
        return int(leaf.space.nvec.sum())
    return int(np.prod(leaf.shape))
