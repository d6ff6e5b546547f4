"""Convolutional networks that turn each image of an observation into a row of features.

Images stay bytes until the first layer, whose weights include the scale to 0..1. Convolutions run in channels-last
memory, which is a third faster on a CPU. With ``bf16`` the convolutions compute in bfloat16, while weights and
gradients stay in single precision.
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

__all__ = ["ImageEncoder"]

_MIN_SIDE = {"nature": 36, "small": 8, "impala": 8}
"""The fewest pixels that a side of an image may have, by network."""


class ImageEncoder(nn.Module):
    """One convolutional network for each image of an observation; the networks share no weights."""

    def __init__(
        self, images: tuple[ImageLeaf, ...], cnn: Cnn, n_features: int, ortho_init: bool, bf16: bool = False
    ) -> None:
        super().__init__()
        self.images = images
        self.bf16 = bf16
        self.n_features = n_features * len(images)
        self.architectures = tuple(_choose_network(image, cnn) for image in images)
        pairs = zip(images, self.architectures, strict=True)
        self.networks = nn.ModuleList(_build_network(image, kind, n_features) for image, kind in pairs)
        if ortho_init:  # orthogonal weights: Saxe et al. 2014, arXiv:1312.6120; gain sqrt(2) for ReLU
            for layer in self.modules():
                if isinstance(layer, nn.Conv2d | nn.Linear):
                    nn.init.orthogonal_(layer.weight, math.sqrt(2))
                    assert layer.bias is not None
                    nn.init.zeros_(layer.bias)

    def forward(self, pixels: Mapping[str, Tensor]) -> Tensor:
        """Turn images, by path and each [B, ...], into features [B, F]."""
        pairs = zip(self.images, self.networks, strict=True)
        with torch.autocast(next(iter(pixels.values())).device.type, torch.bfloat16, enabled=self.bf16):
            features = [network(_to_channels_first(image, pixels[image.path])) for image, network in pairs]
        return torch.cat(features, dim=1).float()


class ScaledConv(nn.Conv2d):
    """A convolution of ``scale * x`` that scales the weights instead, because there are fewer weights than pixels."""

    def __init__(self, scale: float, n_in: int, n_out: int, kernel: int, stride: int = 1, padding: int = 0) -> None:
        super().__init__(n_in, n_out, kernel, stride, padding)
        self.scale = scale

    def forward(self, pixels: Tensor) -> Tensor:
        """Convolve [B, C, H, W] to [B, C', H', W']."""
        weight = self.weight if self.scale == 1 else self.weight * self.scale
        return nn.functional.conv2d(pixels, weight, self.bias, self.stride, self.padding)


class ResidualBlock(nn.Module):
    """Two convolutions whose output is added to their input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.ReLU(), nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1)
        )

    def forward(self, pixels: Tensor) -> Tensor:
        """Return a tensor of the same shape [B, C, H, W]."""
        return pixels + self.layers(pixels)  # type: ignore[no-any-return]


def _to_channels_first(image: ImageLeaf, pixels: Tensor) -> Tensor:
    """Return observations [B, ...] as floats [B, C, H, W], in channels-last memory."""
    if not image.channels_first:
        pixels = pixels.movedim(-1, -3)
    pixels = pixels.reshape(len(pixels), image.channels, image.height, image.width)
    return pixels.to(torch.float32, memory_format=torch.channels_last)


def _choose_network(image: ImageLeaf, cnn: Cnn) -> Cnn:
    """Return the network that ``cnn`` means for an image; raise UsageError if the image is too small for it."""
    side = min(image.height, image.width)
    if cnn == "auto":
        return "nature" if side >= _MIN_SIDE["nature"] else "small"
    if side < _MIN_SIDE[cnn]:
        fitting = " or ".join(name for name in get_args(Cnn) if side >= _MIN_SIDE.get(name, 0) and name != "none")
        path = f" {image.path!r}" if image.path else ""
        raise UsageError(
            f"cnn {cnn} needs images of at least {_MIN_SIDE[cnn]} x {_MIN_SIDE[cnn]}, but the image{path} "
            f"is {image.height} x {image.width}; {fitting} fit"
        )
    return cnn


def _build_network(image: ImageLeaf, cnn: Cnn, n_features: int) -> nn.Sequential:
    """Return a network from [B, C, H, W] to [B, n_features]."""
    layers = {"nature": _nature, "small": _small, "impala": _impala}[cnn](image)
    n_flat = _flat_size(image, layers)
    return nn.Sequential(*layers, nn.ReLU(), nn.Flatten(), nn.Linear(n_flat, n_features), nn.ReLU())


def _flat_size(image: ImageLeaf, layers: list[nn.Module]) -> int:
    """Return C' * H' * W' after the layers, by formula: a trial forward pass would need memory for activations."""
    channels, sides = image.channels, [image.height, image.width]
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


def _nature(image: ImageLeaf) -> list[nn.Module]:
    """Return the layers of DQN (Mnih et al. 2015, doi:10.1038/nature14236), as in Stable-Baselines3's NatureCNN."""
    first = ScaledConv(image.scale, image.channels, 32, 8, stride=4)
    return [first, nn.ReLU(), nn.Conv2d(32, 64, 4, stride=2), nn.ReLU(), nn.Conv2d(64, 64, 3)]


def _small(image: ImageLeaf) -> list[nn.Module]:
    """Return layers for small images in which every pixel counts: they keep a quarter of each side."""
    first = ScaledConv(image.scale, image.channels, 16, 3, padding=1)
    second, third = nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.Conv2d(32, 32, 3, stride=2, padding=1)
    return [first, nn.ReLU(), second, nn.ReLU(), third]


def _impala(image: ImageLeaf) -> list[nn.Module]:
    """Return the layers of IMPALA's deep residual network (Espeholt et al. 2018, arXiv:1802.01561)."""
    layers: list[nn.Module] = []
    channels = image.channels
    for width in (16, 32, 32):
        scale = 1.0 if layers else image.scale
        layers += [ScaledConv(scale, channels, width, 3, padding=1), nn.MaxPool2d(3, stride=2, padding=1)]
        layers += [ResidualBlock(width), ResidualBlock(width)]
        channels = width
    return layers
