"""Spaces as plain data, so that a saved policy can be used without its env and without running anyone's code."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

__all__ = ["space_from_data", "space_to_data"]

MOST_NUMBERS = 1 << 26
"""In one value of a Box that is read."""


def space_to_data(space: spaces.Space[Any]) -> dict[str, Any]:
    """A space as JSON-ready data."""
    if isinstance(space, spaces.Dict):
        return {"type": "Dict", "spaces": [[key, space_to_data(sub)] for key, sub in space.spaces.items()]}
    if isinstance(space, spaces.Tuple):
        return {"type": "Tuple", "spaces": [space_to_data(sub) for sub in space.spaces]}
    dtype = np.dtype(space.dtype).str
    if isinstance(space, spaces.Box):
        bounds = {"low": _bound(space.low), "high": _bound(space.high)}
        return {"type": "Box", "shape": list(space.shape), "dtype": dtype, **bounds}
    if isinstance(space, spaces.Discrete):
        return {"type": "Discrete", "n": int(space.n), "start": int(space.start), "dtype": dtype}
    if isinstance(space, spaces.MultiDiscrete):
        return {"type": "MultiDiscrete", "nvec": space.nvec.tolist(), "start": space.start.tolist(), "dtype": dtype}
    if isinstance(space, spaces.MultiBinary):
        return {"type": "MultiBinary", "n": space.n if isinstance(space.n, int) else list(space.shape)}
    raise TypeError(f"no plain form for {space}")


def space_from_data(data: Mapping[str, Any]) -> spaces.Space[Any]:
    """The space behind ``space_to_data``'s data."""
    match data["type"]:
        case "Dict":
            return spaces.Dict([(key, space_from_data(sub)) for key, sub in data["spaces"]])  # a dict would be sorted
        case "Tuple":
            return spaces.Tuple([space_from_data(sub) for sub in data["spaces"]])
        case "Box":
            shape, dtype = tuple(data["shape"]), np.dtype(data["dtype"])
            if any(type(size) is not int or size < 0 for size in shape) or math.prod(shape) > MOST_NUMBERS:
                raise ValueError(f"a Box of shape {shape!r:.80}; at most {MOST_NUMBERS:,} numbers are taken")
            return spaces.Box(_array(data["low"], shape, dtype), _array(data["high"], shape, dtype), shape, dtype.type)
        case "Discrete":
            return spaces.Discrete(data["n"], start=data["start"], dtype=np.dtype(data["dtype"]).type)
        case "MultiDiscrete":
            nvec, start = np.array(data["nvec"]), np.array(data["start"])
            return spaces.MultiDiscrete(nvec, dtype=np.dtype(data["dtype"]).type, start=start)
        case "MultiBinary":
            return spaces.MultiBinary(data["n"])
    raise ValueError(f"no space of type {data['type']!r}")


def _bound(values: Any) -> Any:
    """One number where all are equal; infinities as words, which JSON lacks numbers for."""
    flat = values.reshape(-1)
    if flat.size and (flat == flat[0]).all():
        flat = flat[:1]
    words = [str(value) if np.isinf(value) else value.item() for value in flat]
    return words[0] if len(words) == 1 else words


def _array(bound: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    values = np.array([float(v) if isinstance(v, str) else v for v in (bound if isinstance(bound, list) else [bound])])
    return np.broadcast_to(values.reshape(shape) if values.size > 1 else values.reshape(-1)[0], shape).astype(dtype)
