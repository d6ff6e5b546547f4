"""The choice of the device that a run computes on, with its reason."""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import NamedTuple

import torch

from corral.core.errors import UsageError

__all__ = ["DeviceChoice", "choose_device", "is_slow_in_bf16"]


class DeviceChoice(NamedTuple):
    """A device and the reason for it, as text."""

    device: torch.device
    why: str


def choose_device(wanted: str, has_images: Callable[[], bool] = lambda: False) -> DeviceChoice:
    """Return the device called ``wanted``; ``auto`` is an accelerator for images, and the CPU for small networks."""
    if wanted == "auto":
        cpu, accelerator = torch.device("cpu"), _find_accelerator()
        if accelerator is None:
            return DeviceChoice(cpu, "auto: this machine has no GPU")
        if has_images():
            return DeviceChoice(torch.device(accelerator), "auto: a GPU is faster with images than the CPU")
        return DeviceChoice(cpu, "auto: for small networks the CPU is faster than transfers to a GPU")
    try:
        device = torch.device(wanted)
    except RuntimeError:
        raise UsageError(f"device {wanted!r}: should be cpu, cuda, cuda:<index>, mps or auto") from None
    if device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (device.index or 0) >= count:
            raise UsageError(f"device {wanted!r}: this machine has {count} CUDA devices; use --device cpu")
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise UsageError("device 'mps': this machine has no Metal device; use --device cpu")
    return DeviceChoice(device, "as asked")


def is_slow_in_bf16(device: torch.device) -> bool:
    """Return whether bfloat16 takes longer than single precision: on a CPU without instructions for it."""
    if device.type != "cpu":
        return False
    # oneDNN reports bfloat16 on any AVX-512 CPU and emulates it, so x86 is judged by the instructions themselves.
    probes = [getattr(torch.cpu, name, None) for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported")]
    if platform.machine().lower() in ("x86_64", "amd64") and all(probes):
        return not any(is_supported() for is_supported in probes if is_supported is not None)
    has_onednn = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return not (has_onednn and torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _find_accelerator() -> str | None:
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else None
