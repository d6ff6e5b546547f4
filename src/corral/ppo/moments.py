"""Adam's moments as a checkpoint holds them, by the names that torch's Adam has for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from corral.core.errors import CheckpointError

__all__ = ["MOMENTS", "STEP", "check_moments"]

STEP, MEAN, SQUARE = "step", "exp_avg", "exp_avg_sq"
MOMENTS = (STEP, MEAN, SQUARE)


def check_moments(state: Mapping[str, Tensor], parameters: Iterable[tuple[str, Tensor]]) -> None:
    """Refuse moments that do not fit their parameters: torch's fused Adam would write beyond them.

    A parameter has either all of them or, before its first update, none.
    """
    known = set()
    for name, parameter in parameters:
        names = [f"{key}.{name}" for key in MOMENTS]
        known |= {*names}
        if not any(full in state for full in names):
            continue
        for full, key in zip(names, MOMENTS, strict=True):
            if full not in state:
                raise CheckpointError(f"the optimizer's moments do not fit: there is no {full}")
            shape, dtype = ((), torch.float32) if key == STEP else (tuple(parameter.shape), parameter.dtype)
            _check(full, state[full], shape, dtype, signed=key == MEAN)
    for full in state.keys() - known:
        raise CheckpointError(f"the optimizer's moments do not fit: {full!r:.80} belongs to no parameter")


def _check(name: str, tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype, signed: bool) -> None:
    if tuple(tensor.shape) != shape or tensor.dtype != dtype:
        raise CheckpointError(
            f"the optimizer's moments do not fit: {name} is {tensor.dtype} of shape {tuple(tensor.shape)}, expected "
            f"{dtype} of shape {shape}"
        )
    if not bool(torch.isfinite(tensor).all()) or (not signed and bool((tensor < 0).any())):
        raise CheckpointError(f"the optimizer's moments do not fit: {name} has values that no update gives")
