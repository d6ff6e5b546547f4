"""Adam's moments in a checkpoint: ``<moment>.<parameter>``, with the names of torch's Adam for the moments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from corral.core.errors import CheckpointError

__all__ = ["MOMENTS", "check_moments"]

STEP, MEAN, SQUARE = "step", "exp_avg", "exp_avg_sq"
MOMENTS = (MEAN, SQUARE, STEP)


def check_moments(state: Mapping[str, Tensor], parameters: Iterable[tuple[str, Tensor]]) -> None:
    """Raise CheckpointError if moments do not fit their parameters: torch's fused Adam would write out of bounds.

    A parameter has either all moments or, before its first update, none.
    """
    expected: set[str] = set()
    for name, parameter in parameters:
        keys = {moment: f"{moment}.{name}" for moment in MOMENTS}
        expected.update(keys.values())
        if not any(key in state for key in keys.values()):
            continue
        for moment, key in keys.items():
            if key not in state:
                raise CheckpointError(f"the optimizer's moments do not fit: there is no {key}")
            shape, dtype = ((), torch.float32) if moment == STEP else (tuple(parameter.shape), parameter.dtype)
            _check_moment(key, state[key], shape, dtype, is_signed=moment == MEAN)
    for key in state.keys() - expected:
        raise CheckpointError(f"the optimizer's moments do not fit: {key!r:.80} belongs to no parameter")


def _check_moment(key: str, tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype, is_signed: bool) -> None:
    if tuple(tensor.shape) != shape or tensor.dtype != dtype:
        raise CheckpointError(
            f"the optimizer's moments do not fit: {key} is {tensor.dtype} of shape {tuple(tensor.shape)}, expected "
            f"{dtype} of shape {shape}"
        )
    if not bool(torch.isfinite(tensor).all()) or (not is_signed and bool((tensor < 0).any())):
        raise CheckpointError(f"the optimizer's moments do not fit: {key} has values that no update gives")
