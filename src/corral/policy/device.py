"""Which device a run computes on, and why."""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import NamedTuple

import torch

from corral.core.errors import UsageError

__all__ = ["DeviceChoice", "choose_device", "is_slow_in_bf16"]


class DeviceChoice(NamedTuple):
    """A device and the reason for it, in words."""

    device: torch.device
    why: str


def choose_device(wanted: str, has_images: Callable[[], bool] = lambda: False) -> DeviceChoice:
    """The device called ``wanted``; ``auto`` is an accelerator for pictures, and the CPU for small networks."""
    if wanted == "auto":
        cpu, found = torch.device("cpu"), _accelerator()
        if found is None:
            return DeviceChoice(cpu, "auto: there is no GPU here")
        if has_images():
            return DeviceChoice(torch.device(found), "auto: pictures are seen faster there than by the CPU")
        return DeviceChoice(cpu, "auto: small networks are faster on the CPU than the way to a GPU is")
    try:
        device = torch.device(wanted)
    except RuntimeError:
        raise UsageError(f"device {wanted!r}: should be cpu, cuda, cuda:<index>, mps or auto") from None
    if device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (device.index or 0) >= count:
            raise UsageError(f"device {wanted!r}: this machine has {count} CUDA devices; use --device cpu")
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise UsageError("device 'mps': there is no Metal device here; use --device cpu")
    return DeviceChoice(device, "as asked")


def is_slow_in_bf16(device: torch.device) -> bool:
    """Whether bfloat16 takes longer than single precision there: on a CPU without instructions for it."""
    if device.type != "cpu":
        return False
    asked = [getattr(torch.cpu, name, None) for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported")]
    if platform.machine().lower() in ("x86_64", "amd64") and all(asked):  # oneDNN says yes to any AVX-512: it emulates
        return not any(ask() for ask in asked if ask is not None)
    there = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return not (there and torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _accelerator() -> str | None:
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else None
