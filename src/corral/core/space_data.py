"""Spaces as plain data, so that a saved policy can be used without its env and without running anyone's code."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

__all__ = ["space_from_data", "space_to_data"]

MOST_NUMBERS = 1 << 24
"""In one value of a space that is read, all parts together: a picture of 2,000 x 2,000 pixels in color fits."""
_MOST_AXES = 32


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
    """The space behind ``space_to_data``'s data; an error, before anything is made, if it is a giant."""
    if (numbers := _count_numbers(data)) > MOST_NUMBERS:
        raise ValueError(f"a value of it has {numbers:.3g} numbers; at most {MOST_NUMBERS:,} are taken")
    return _make_space(data)


def _count_numbers(data: Mapping[str, Any]) -> int:
    """How many numbers a value of a space has."""
    match data["type"]:
        case "Dict":
            return sum(_count_numbers(sub) for _, sub in data["spaces"])
        case "Tuple":
            return sum(_count_numbers(sub) for sub in data["spaces"])
        case "Box":
            return _product(data["shape"])
        case "MultiBinary":
            return _product([data["n"]] if isinstance(data["n"], int) else data["n"])
    return 1  # or as many as the data themselves have


def _product(shape: Any) -> int:
    if len(shape) > _MOST_AXES or any(type(size) is not int or not 0 <= size <= MOST_NUMBERS for size in shape):
        raise ValueError(f"a shape of {shape!r:.80}; expected up to {_MOST_AXES} sizes of at most {MOST_NUMBERS:,}")
    return math.prod(shape)


def _make_space(data: Mapping[str, Any]) -> spaces.Space[Any]:
    match data["type"]:
        case "Dict":
            return spaces.Dict([(key, _make_space(sub)) for key, sub in data["spaces"]])  # a dict would be sorted
        case "Tuple":
            return spaces.Tuple([_make_space(sub) for sub in data["spaces"]])
        case "Box":
            shape, dtype = tuple(data["shape"]), np.dtype(data["dtype"])
            if dtype.kind not in "fiub":
                raise ValueError(f"a Box of {dtype!s:.80}; expected numbers")
            return spaces.Box(_array(data["low"], shape, dtype), _array(data["high"], shape, dtype), shape, dtype.type)
        case "Discrete":
            return spaces.Discrete(data["n"], start=data["start"], dtype=np.dtype(data["dtype"]).type)
        case "MultiDiscrete":
            nvec, start = np.array(data["nvec"]), np.array(data["start"])
            return spaces.MultiDiscrete(nvec, dtype=np.dtype(data["dtype"]).type, start=start)
        case "MultiBinary":
            return spaces.MultiBinary(data["n"])
    raise ValueError(f"no space of type {data['type']!r:.80}")


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
