"""Pictures among the observations, and the convolutional networks that turn each into a row of numbers.

Bytes stay bytes until the first layer, which has the scale folded into its weights. Convolutions run channels-last,
which is a third faster on a CPU. With ``bf16`` they compute in half the bits; weights and gradients stay whole.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import get_args

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from corral.core.config_values import Cnn
from corral.core.errors import UsageError
from corral.core.spaces import Layout, Leaf

__all__ = ["LEAST_SIDE", "Picture", "PictureEncoder", "pictures_in"]

LEAST_SIDE = {"nature": 36, "small": 8, "impala": 8}
"""Pixels that a side of a picture needs, by network."""
_SMALLEST = 8  # anything smaller is no picture, but a table
_WIDTHS = {"nature": (32, 64, 64), "small": (16, 32, 32), "impala": (16, 32, 32)}


@dataclass(frozen=True, slots=True)
class Picture:
    """A leaf that is one: its channels, its sides, and how they lie in it."""

    path: str
    channels: int
    height: int
    width: int
    channels_first: bool
    scale: float
    """What its numbers are multiplied with, so that they become 0 to 1."""

    @classmethod
    def of(cls, leaf: Leaf) -> Picture | None:
        """The leaf as a picture, or several on top of each other (4 axes), if it looks like that."""
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

    def arranged(self, seen: Tensor) -> Tensor:
        """Observations [B, ...] as floats [B, C, H, W], in channels-last memory."""
        if not self.channels_first:
            seen = seen.movedim(-1, -3)
        pixels = seen.reshape(len(seen), self.channels, self.height, self.width)
        return pixels.to(torch.float32, memory_format=torch.channels_last)

    def network(self, cnn: Cnn) -> Cnn:
        """The network that ``cnn`` means for it."""
        side = min(self.height, self.width)
        if cnn == "auto":
            return "nature" if side >= LEAST_SIDE["nature"] else "small"
        if side < LEAST_SIDE[cnn]:
            fit = " or ".join(name for name in get_args(Cnn) if side >= LEAST_SIDE.get(name, 0) and name != "none")
            where = f" {self.path!r}" if self.path else ""
            raise UsageError(
                f"cnn {cnn} needs pictures of at least {LEAST_SIDE[cnn]} x {LEAST_SIDE[cnn]}, but the picture{where} "
                f"is {self.height} x {self.width}; {fit} fit"
            )
        return cnn


def pictures_in(layout: Layout) -> tuple[Picture, ...]:
    """The leaves that are pictures."""
    found = (Picture.of(leaf) for leaf in layout.leaves)
    return tuple(picture for picture in found if picture is not None)


class PictureEncoder(nn.Module):
    """A network for each picture; they share nothing."""

    def __init__(
        self, pictures: tuple[Picture, ...], cnn: Cnn, n_features: int, ortho_init: bool, bf16: bool = False
    ) -> None:
        super().__init__()
        self.pictures = pictures
        self.bf16 = bf16
        self.n_features = n_features * len(pictures)
        self.kinds = tuple(picture.network(cnn) for picture in pictures)
        pairs = zip(pictures, self.kinds, strict=True)
        self.networks = nn.ModuleList(_network(picture, kind, n_features) for picture, kind in pairs)
        if ortho_init:
            for layer in self.modules():
                if isinstance(layer, nn.Conv2d | nn.Linear):
                    nn.init.orthogonal_(layer.weight, math.sqrt(2))
                    assert layer.bias is not None
                    nn.init.zeros_(layer.bias)

    def forward(self, seen: Mapping[str, Tensor]) -> Tensor:
        """Pictures by path, each [B, ...], to features [B, F]."""
        pairs = zip(self.pictures, self.networks, strict=True)
        with torch.autocast(next(iter(seen.values())).device.type, torch.bfloat16, enabled=self.bf16):
            features = [network(picture.arranged(seen[picture.path])) for picture, network in pairs]
        return torch.cat(features, dim=1).float()


class ScaledConv(nn.Conv2d):
    """A convolution of ``scale * x``: scaling the weights is cheaper."""

    def __init__(self, scale: float, n_in: int, n_out: int, kernel: int, stride: int = 1, padding: int = 0) -> None:
        super().__init__(n_in, n_out, kernel, stride, padding)
        self.scale = scale

    def forward(self, pixels: Tensor) -> Tensor:
        """[B, C, H, W] to [B, C', H', W']."""
        weight = self.weight if self.scale == 1 else self.weight * self.scale
        return nn.functional.conv2d(pixels, weight, self.bias, self.stride, self.padding)


class ResidualBlock(nn.Module):
    """Two convolutions, added to what went in."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.ReLU(), nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1)
        )

    def forward(self, pixels: Tensor) -> Tensor:
        """[B, C, H, W] to the same."""
        return pixels + self.layers(pixels)  # type: ignore[no-any-return]


def _network(picture: Picture, cnn: Cnn, n_features: int) -> nn.Sequential:
    """[B, C, H, W] to [B, n_features]."""
    layers = {"nature": _nature, "small": _small, "impala": _impala}[cnn](picture)
    convolutions = nn.Sequential(*layers, nn.ReLU(), nn.Flatten())
    with torch.no_grad():
        n_flat = convolutions(torch.zeros(1, picture.channels, picture.height, picture.width)).shape[1]
    return nn.Sequential(*convolutions, nn.Linear(n_flat, n_features), nn.ReLU())


def _nature(picture: Picture) -> list[nn.Module]:
    """Mnih et al. 2015, as in Stable-Baselines3."""
    a, b, c = _WIDTHS["nature"]
    first = ScaledConv(picture.scale, picture.channels, a, 8, stride=4)
    return [first, nn.ReLU(), nn.Conv2d(a, b, 4, stride=2), nn.ReLU(), nn.Conv2d(b, c, 3)]


def _small(picture: Picture) -> list[nn.Module]:
    """For pictures in which every pixel counts: a quarter of each side remains."""
    a, b, c = _WIDTHS["small"]
    first = ScaledConv(picture.scale, picture.channels, a, 3, padding=1)
    rest = nn.Conv2d(a, b, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(b, c, 3, stride=2, padding=1)
    return [first, nn.ReLU(), *rest]


def _impala(picture: Picture) -> list[nn.Module]:
    """Espeholt et al. 2018, the deep one."""
    layers: list[nn.Module] = []
    channels = picture.channels
    for width in _WIDTHS["impala"]:
        scale = 1.0 if layers else picture.scale
        layers += [ScaledConv(scale, channels, width, 3, padding=1), nn.MaxPool2d(3, stride=2, padding=1)]
        layers += [ResidualBlock(width), ResidualBlock(width)]
        channels = width
    return layers


def _channels_first(a: int, b: int, c: int) -> bool:
    """Two equal sides are the picture's; where that does not tell, the smallest is the channels', as in SB3."""
    if (a == b) != (b == c):
        return b == c
    return min(a, b, c) == a
