"""Spaces as flat lists of leaves: how nested observations and actions become plain arrays and back.

A ``Layout`` is made once per space. Each leaf of a nested Dict or Tuple gets one array, in the leaf's own dtype,
so that uint8 images stay uint8 and nothing is pickled.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from corral.core.errors import UsageError
from corral.core.suggestions import short_repr
from corral.core.types import Leaves

__all__ = ["Layout", "Leaf", "limits_of", "poisoned", "space_from_data", "space_to_data"]

Array = npt.NDArray[Any]
_ADVICE = {
    "observation": "wrap the env to translate it (gymnasium.wrappers.TransformObservation)",
    "action": "wrap the env to translate it (gymnasium.wrappers.TransformAction)",
}
SUPPORTED = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


def poisoned(shape: Sequence[int], dtype: npt.DTypeLike) -> Array:
    """A new array filled with a value that no honest write leaves behind, so that a missed write shows."""
    array = np.empty(tuple(shape), dtype)
    poison(array)
    return array


def poison(array: Array) -> None:
    """Fill ``array`` with NaN, or with the lowest number its dtype has."""
    kind = array.dtype.kind
    array.fill(np.nan if kind == "f" else True if kind == "b" else np.iinfo(array.dtype).min if kind == "i" else 0xA5)


@dataclass(frozen=True, slots=True, eq=False)
class Leaf:
    """One elementary space inside a (nested) space."""

    path: str
    keys: tuple[str | int, ...]
    space: spaces.Box | spaces.Discrete[Any] | spaces.MultiDiscrete[Any] | spaces.MultiBinary
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def is_float(self) -> bool:
        """Whether the leaf holds floating-point numbers, which may be non-finite and may be normalised."""
        return self.dtype.kind == "f"

    def check(self, value: Any) -> Array:
        """``value`` as an array of this leaf's shape and dtype, or a ValueError that says what is wrong with it."""
        given = np.asarray(value)
        where = f" at {self.path!r}" if self.path else ""
        if given.shape != self.shape:
            raise ValueError(f"shape {given.shape}{where}, expected {self.shape}")
        if given.dtype.kind not in "biuf":
            raise ValueError(f"{type(value).__name__} {value!r:.60}{where}, expected numbers of dtype {self.dtype}")
        if given.dtype.kind == "f" and not self.is_float:
            raise ValueError(f"dtype {given.dtype}{where}, expected {self.dtype}: fractions would be lost")
        with np.errstate(over="ignore"):
            cast = given.astype(self.dtype)
        if not self.is_float and not np.array_equal(cast, given):
            raise ValueError(f"values {given.min()} to {given.max()}{where}, which {self.dtype} cannot hold")
        if not isinstance(self.space, spaces.Box) and not self.space.contains(self._native(cast)):
            raise ValueError(f"value {value!r:.60}{where}, which is not in {self.space}")
        return cast

    def _native(self, array: Array) -> Any:
        return array[()] if isinstance(self.space, spaces.Discrete) else array


class Layout:
    """The leaves of a space, and how values of the space move into and out of per-leaf arrays."""

    def __init__(self, space: spaces.Space[Any], role: str = "observation") -> None:
        self.space = space
        self.leaves: tuple[Leaf, ...] = tuple(_walk(space, (), role))
        empty = [leaf.path for leaf in self.leaves if not math.prod(leaf.shape)]
        if empty or not self.leaves:
            where = f" at {empty[0]!r}" if empty and empty[0] else ""
            raise UsageError(f"the {role} space {short_repr(space)} has no numbers in it{where}; {_ADVICE[role]}")
        if len(set(self.paths)) < len(self.leaves):
            raise UsageError(
                f"two entries of the {role} space have the same path among {self.paths}; avoid '/' in keys"
            )
        self._plain = len(self.leaves) == 1 and not self.leaves[0].keys
        # Discrete values must be looked at one by one; a Box of the right dtype and shape can be taken as it is.
        self._trusted = tuple(isinstance(leaf.space, spaces.Box) for leaf in self.leaves)

    @property
    def paths(self) -> tuple[str, ...]:
        """The path of every leaf, in order."""
        return tuple(leaf.path for leaf in self.leaves)

    def allocate(self, *leading: int) -> Leaves:
        """New poisoned arrays, each of shape ``[*leading, *leaf.shape]``."""
        return {leaf.path: poisoned((*leading, *leaf.shape), leaf.dtype) for leaf in self.leaves}

    def write(self, arrays: Leaves, row: int, value: Any) -> None:
        """Copy one value of the space into ``row``; a ValueError says what does not fit."""
        for leaf, trusted in zip(self.leaves, self._trusted, strict=True):
            item = value if self._plain else _descend(value, leaf)
            if not (trusted and type(item) is np.ndarray and item.dtype == leaf.dtype and item.shape == leaf.shape):
                item = leaf.check(item)
            arrays[leaf.path][row] = item

    def writer(self, arrays: Leaves) -> Callable[[int, Any], None]:
        """``write`` into these arrays: the same, with everything looked up that can be."""
        if not (self._plain and self._trusted[0]):
            return lambda row, value: self.write(arrays, row, value)
        leaf, target = self.leaves[0], arrays[self.leaves[0].path]
        dtype, shape = leaf.dtype, leaf.shape

        def write(row: int, value: Any) -> None:
            if not (type(value) is np.ndarray and value.dtype == dtype and value.shape == shape):
                value = leaf.check(value)
            target[row] = value

        return write

    def reader(self, arrays: Leaves) -> Callable[[int], Any]:
        """``read`` from these arrays, with Python's integers for ``Discrete``: what an env is given as an action."""
        readers = [_reader(leaf, arrays[leaf.path]) for leaf in self.leaves]
        return readers[0] if self._plain else lambda row: self.assemble([read(row) for read in readers])

    def read(self, arrays: Leaves, row: int) -> Any:
        """One value of the space, copied out of ``row``."""
        return self.assemble([_own(arrays[leaf.path][row]) for leaf in self.leaves])

    def batch(self, arrays: Leaves, copy: bool = True) -> Any:
        """All rows, shaped as Gymnasium's batched space: arrays in Dicts and Tuples."""
        return self.assemble([arrays[leaf.path].copy() if copy else arrays[leaf.path] for leaf in self.leaves])

    def unbatch(self, value: Any) -> Leaves:
        """The per-leaf arrays of a batched value (what Gymnasium calls ``actions`` in ``VectorEnv.step``)."""
        return {leaf.path: np.asarray(value if self._plain else _descend(value, leaf)) for leaf in self.leaves}

    def assemble(self, items: Sequence[Any]) -> Any:
        """The nested structure of the space, with ``items`` (one for each leaf, in order) at its leaves."""
        if self._plain:
            return items[0]
        return _nest(self.space, iter(items))


def limits_of(space: spaces.Space[Any]) -> tuple[Any, Any] | None:
    """The lowest and the highest value of a space of choices; None for any other space."""
    if isinstance(space, spaces.Discrete):
        return space.start, space.start + space.n - 1
    if isinstance(space, spaces.MultiDiscrete):
        return space.start, space.start + space.nvec - 1
    return (0, 1) if isinstance(space, spaces.MultiBinary) else None


def _walk(space: spaces.Space[Any], keys: tuple[str | int, ...], role: str) -> list[Leaf]:
    path = "/".join(map(str, keys))
    if isinstance(space, spaces.Dict):
        return [leaf for key, sub in space.spaces.items() for leaf in _walk(sub, (*keys, key), role)]
    if isinstance(space, spaces.Tuple):
        return [leaf for i, sub in enumerate(space.spaces) for leaf in _walk(sub, (*keys, i), role)]
    if not isinstance(space, SUPPORTED) or np.dtype(space.dtype).kind not in "biuf":
        where = f" at {path!r}" if path else ""
        raise UsageError(
            f"the {role} space has {space}{where}; Corral takes Box, Discrete, MultiDiscrete and MultiBinary, "
            f"and Dict and Tuple of them; {_ADVICE[role]}"
        )
    return [Leaf(path, keys, space, tuple(space.shape or ()), np.dtype(space.dtype))]


def _descend(value: Any, leaf: Leaf) -> Any:
    try:
        for key in leaf.keys:
            value = value[key]
    except (KeyError, IndexError, TypeError) as error:
        raise ValueError(f"no entry {leaf.path!r} in {value!r:.80} ({type(error).__name__})") from None
    return value


def _nest(space: spaces.Space[Any], items: Any) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: _nest(sub, items) for key, sub in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_nest(sub, items) for sub in space.spaces)
    return next(items)


def _reader(leaf: Leaf, rows: Array) -> Callable[[int], Any]:
    """Reads one row of a leaf; a Python integer can be a key, JSON or an ``int``, where numpy's cannot."""
    if isinstance(leaf.space, spaces.Discrete):
        return rows.item
    return lambda row: _own(rows[row])


def _own(item: Any) -> Any:
    # A row of a shared array changes under its reader; numpy scalars are copies already.
    return item.copy() if isinstance(item, np.ndarray) else item


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
