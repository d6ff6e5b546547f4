"""The convolutional networks that turn each picture among the observations into a row of numbers.

Bytes stay bytes until the first layer, which has the scale folded into its weights. Convolutions run channels-last,
which is a third faster on a CPU. With ``bf16`` they compute in half the bits; weights and gradients stay whole.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import get_args

import torch
from torch import Tensor, nn

from corral.config.values import Cnn
from corral.core.errors import UsageError
from corral.policy.images import ImageLeaf

__all__ = ["LEAST_SIDE", "PictureEncoder"]

LEAST_SIDE = {"nature": 36, "small": 8, "impala": 8}
"""Pixels that a side of a picture needs, by network."""
_WIDTHS = {"nature": (32, 64, 64), "small": (16, 32, 32), "impala": (16, 32, 32)}


class PictureEncoder(nn.Module):
    """A network for each picture; they share nothing."""

    def __init__(
        self, pictures: tuple[ImageLeaf, ...], cnn: Cnn, n_features: int, ortho_init: bool, bf16: bool = False
    ) -> None:
        super().__init__()
        self.pictures = pictures
        self.bf16 = bf16
        self.n_features = n_features * len(pictures)
        self.kinds = tuple(_choose_network(picture, cnn) for picture in pictures)
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
            features = [network(_arranged(picture, seen[picture.path])) for picture, network in pairs]
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


def _arranged(picture: ImageLeaf, seen: Tensor) -> Tensor:
    """Observations [B, ...] as floats [B, C, H, W], in channels-last memory."""
    if not picture.channels_first:
        seen = seen.movedim(-1, -3)
    pixels = seen.reshape(len(seen), picture.channels, picture.height, picture.width)
    return pixels.to(torch.float32, memory_format=torch.channels_last)


def _choose_network(picture: ImageLeaf, cnn: Cnn) -> Cnn:
    """The network that ``cnn`` means for a picture."""
    side = min(picture.height, picture.width)
    if cnn == "auto":
        return "nature" if side >= LEAST_SIDE["nature"] else "small"
    if side < LEAST_SIDE[cnn]:
        fit = " or ".join(name for name in get_args(Cnn) if side >= LEAST_SIDE.get(name, 0) and name != "none")
        where = f" {picture.path!r}" if picture.path else ""
        raise UsageError(
            f"cnn {cnn} needs pictures of at least {LEAST_SIDE[cnn]} x {LEAST_SIDE[cnn]}, but the picture{where} "
            f"is {picture.height} x {picture.width}; {fit} fit"
        )
    return cnn


def _network(picture: ImageLeaf, cnn: Cnn, n_features: int) -> nn.Sequential:
    """[B, C, H, W] to [B, n_features]."""
    layers = {"nature": _nature, "small": _small, "impala": _impala}[cnn](picture)
    n_flat = _flat_size(picture, layers)
    return nn.Sequential(*layers, nn.ReLU(), nn.Flatten(), nn.Linear(n_flat, n_features), nn.ReLU())


def _flat_size(picture: ImageLeaf, layers: list[nn.Module]) -> int:
    """Numbers that the layers make of a picture; by formula, so that it can be had without memory."""
    channels, sides = picture.channels, [picture.height, picture.width]
    for layer in layers:
        if isinstance(layer, nn.Conv2d):
            channels = layer.out_channels
        if isinstance(layer, nn.Conv2d | nn.MaxPool2d):
            kernel, stride, padding = (
                size[0] if isinstance(size, tuple) else int(size)
                for size in (layer.kernel_size, layer.stride, layer.padding)
            )
            sides = [(side + 2 * padding - kernel) // stride + 1 for side in sides]
    return channels * math.prod(sides)


def _nature(picture: ImageLeaf) -> list[nn.Module]:
    """Mnih et al. 2015, as in Stable-Baselines3."""
    a, b, c = _WIDTHS["nature"]
    first = ScaledConv(picture.scale, picture.channels, a, 8, stride=4)
    return [first, nn.ReLU(), nn.Conv2d(a, b, 4, stride=2), nn.ReLU(), nn.Conv2d(b, c, 3)]


def _small(picture: ImageLeaf) -> list[nn.Module]:
    """For pictures in which every pixel counts: a quarter of each side remains."""
    a, b, c = _WIDTHS["small"]
    first = ScaledConv(picture.scale, picture.channels, a, 3, padding=1)
    rest = nn.Conv2d(a, b, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(b, c, 3, stride=2, padding=1)
    return [first, nn.ReLU(), *rest]


def _impala(picture: ImageLeaf) -> list[nn.Module]:
    """Espeholt et al. 2018, the deep one."""
    layers: list[nn.Module] = []
    channels = picture.channels
    for width in _WIDTHS["impala"]:
        scale = 1.0 if layers else picture.scale
        layers += [ScaledConv(scale, channels, width, 3, padding=1), nn.MaxPool2d(3, stride=2, padding=1)]
        layers += [ResidualBlock(width), ResidualBlock(width)]
        channels = width
    return layers
