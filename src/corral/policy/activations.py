"""Activations in numpy, with the slopes that a backward pass needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["ACTIVATIONS", "Activation"]

Floats = npt.NDArray[np.float32]


class Activation(NamedTuple):
    """An activation in place, and its derivative as a function of its own output, written into ``out``."""

    apply: Callable[[Floats], Any]
    slope: Callable[[Floats, Floats], Any]


def _tanh_slope(y: Floats, out: Floats) -> None:
    np.multiply(y, y, out=out)
    np.subtract(np.float32(1), out, out=out)


def _elu(z: Floats) -> None:
    np.copyto(z, np.expm1(np.minimum(z, 0)), where=z < 0)


ACTIVATIONS: dict[str, Activation] = {
    "tanh": Activation(lambda z: np.tanh(z, out=z), _tanh_slope),
    "relu": Activation(lambda z: np.maximum(z, 0, out=z), lambda y, out: np.greater(y, 0, out=out, casting="unsafe")),
    "leaky_relu": Activation(
        lambda z: np.maximum(z, z * np.float32(0.01), out=z),
        lambda y, out: np.copyto(out, np.where(y > 0, np.float32(1), np.float32(0.01))),
    ),
    "elu": Activation(_elu, lambda y, out: np.minimum(y + np.float32(1), np.float32(1), out=out)),
}
"""Those whose derivative follows from the output; the others are left to torch."""
