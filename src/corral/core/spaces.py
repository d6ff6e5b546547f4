"""Conversion of nested observations and actions to one array per leaf of their space, and back.

A leaf is an elementary space (Box, Discrete, MultiDiscrete, MultiBinary) inside a Dict or Tuple. A ``Layout`` is made
once per space. Each leaf has one array of its own dtype, so that uint8 images stay uint8 and nothing is pickled.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from corral.core.errors import UsageError
from corral.core.suggestions import short_repr
from corral.core.types import Leaves

__all__ = ["Layout", "Leaf", "discrete_bounds", "poisoned", "space_from_data", "space_to_data"]

Array = npt.NDArray[Any]
MAX_SPACE_NUMBERS = 1 << 24
"""Most numbers in one value of a space that is read from a file; an RGB image of 2,000 x 2,000 pixels has fewer."""
_MAX_AXES = 32
_ADVICE = {
    "observation": "wrap the env to translate it (gymnasium.wrappers.TransformObservation)",
    "action": "wrap the env to translate it (gymnasium.wrappers.TransformAction)",
}
SUPPORTED = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


def poisoned(shape: Sequence[int], dtype: npt.DTypeLike) -> Array:
    """Return a new array filled with a value that is unlikely in data, so that a missing write is noticed."""
    array = np.empty(tuple(shape), dtype)
    poison(array)
    return array


def poison(array: Array) -> None:
    """Fill ``array`` with NaN, the lowest signed integer, the byte 0xA5 (unsigned integers) or True."""
    kind = array.dtype.kind
    array.fill(np.nan if kind == "f" else True if kind == "b" else np.iinfo(array.dtype).min if kind == "i" else 0xA5)


@dataclass(frozen=True, slots=True, eq=False)
class Leaf:
    """An elementary space inside a (nested) space."""

    path: str
    """The keys joined by slashes, such as ``map/0``; empty if the whole space is this leaf."""
    keys: tuple[str | int, ...]
    """Keys of the Dicts and indices of the Tuples that lead to the leaf."""
    space: spaces.Box | spaces.Discrete[Any] | spaces.MultiDiscrete[Any] | spaces.MultiBinary
    """The elementary space."""
    shape: tuple[int, ...]
    """Shape of one value of the leaf."""
    dtype: np.dtype[Any]
    """Dtype of the leaf's array."""

    @property
    def is_float(self) -> bool:
        """Whether the leaf holds floating-point numbers, which may be non-finite and may be normalised."""
        return self.dtype.kind == "f"

    def check(self, value: Any) -> Array:
        """Return ``value`` as an array of this leaf's shape and dtype; raise a ValueError if it is no such value."""
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
        item: Any = cast[()] if isinstance(self.space, spaces.Discrete) else cast  # Discrete contains scalars only
        if not isinstance(self.space, spaces.Box) and not self.space.contains(item):
            raise ValueError(f"value {value!r:.60}{where}, which is not in {self.space}")
        return cast


class Layout:
    """The leaves of a space, with methods that copy values of the space into per-leaf arrays and out of them."""

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
        self._is_single_leaf = len(self.leaves) == 1 and not self.leaves[0].keys
        # A Box value of the right dtype and shape needs no check of its numbers; a discrete value may be out of range.
        self._is_box = tuple(isinstance(leaf.space, spaces.Box) for leaf in self.leaves)

    @property
    def paths(self) -> tuple[str, ...]:
        """The path of every leaf, in order."""
        return tuple(leaf.path for leaf in self.leaves)

    def allocate(self, *leading: int) -> Leaves:
        """Return new poisoned arrays by leaf path, each of shape ``[*leading, *leaf.shape]``."""
        return {leaf.path: poisoned((*leading, *leaf.shape), leaf.dtype) for leaf in self.leaves}

    def write(self, arrays: Leaves, row: int, value: Any) -> None:
        """Copy one value into ``row``; raise a ValueError if its type or shape does not fit. Bounds are not checked."""
        for leaf, is_box in zip(self.leaves, self._is_box, strict=True):
            item = value if self._is_single_leaf else _descend(value, leaf)
            if not (is_box and type(item) is np.ndarray and item.dtype == leaf.dtype and item.shape == leaf.shape):
                item = leaf.check(item)
            arrays[leaf.path][row] = item

    def writer(self, arrays: Leaves) -> Callable[[int, Any], None]:
        """Return a faster form of ``write`` for these arrays: a function of the row and the value."""
        if not (self._is_single_leaf and self._is_box[0]):
            return lambda row, value: self.write(arrays, row, value)
        leaf, target = self.leaves[0], arrays[self.leaves[0].path]
        dtype, shape = leaf.dtype, leaf.shape

        def write(row: int, value: Any) -> None:
            if not (type(value) is np.ndarray and value.dtype == dtype and value.shape == shape):
                value = leaf.check(value)
            target[row] = value

        return write

    def reader(self, arrays: Leaves) -> Callable[[int], Any]:
        """Return a function that reads a row of these arrays as an action for an env.

        It differs from ``read`` in that values of ``Discrete`` are Python integers: unlike numpy's, they can be
        serialized as JSON and are instances of ``int``.
        """
        readers = [_reader(leaf, arrays[leaf.path]) for leaf in self.leaves]
        return readers[0] if self._is_single_leaf else lambda row: self.assemble([read(row) for read in readers])

    def read(self, arrays: Leaves, row: int) -> Any:
        """Return a copy of the value in ``row``."""
        return self.assemble([_copy_row(arrays[leaf.path][row]) for leaf in self.leaves])

    def batch(self, arrays: Leaves, copy: bool = True) -> Any:
        """Return all rows as a value of Gymnasium's batched space: arrays in dictionaries and tuples."""
        return self.assemble([arrays[leaf.path].copy() if copy else arrays[leaf.path] for leaf in self.leaves])

    def unbatch(self, value: Any) -> Leaves:
        """Return the per-leaf arrays of a value of the batched space, such as ``actions`` of ``VectorEnv.step``."""
        return {leaf.path: np.asarray(value if self._is_single_leaf else _descend(value, leaf)) for leaf in self.leaves}

    def assemble(self, items: Sequence[Any]) -> Any:
        """Return the nested structure of the space with ``items`` (one per leaf, in order) at its leaves."""
        if self._is_single_leaf:
            return items[0]
        return _nest(self.space, iter(items))


def discrete_bounds(space: spaces.Space[Any]) -> tuple[Any, Any] | None:
    """Return the lowest and the highest value of a discrete space; None for a Box."""
    if isinstance(space, spaces.Discrete):
        return space.start, space.start + space.n - 1
    if isinstance(space, spaces.MultiDiscrete):
        return space.start, space.start + space.nvec - 1
    return (0, 1) if isinstance(space, spaces.MultiBinary) else None


def _walk(space: spaces.Space[Any], keys: tuple[str | int, ...], role: str) -> list[Leaf]:
    """Return the leaves of a space in order; raise a UsageError if Corral does not support one of them."""
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
    """Return the part of a nested value that belongs to ``leaf``."""
    try:
        for key in leaf.keys:
            value = value[key]
    except (KeyError, IndexError, TypeError) as error:
        raise ValueError(f"no entry {leaf.path!r} in {value!r:.80} ({type(error).__name__})") from None
    return value


def _nest(space: spaces.Space[Any], items: Iterator[Any]) -> Any:
    """Return the nested structure of ``space`` with the next ``items`` at its leaves."""
    if isinstance(space, spaces.Dict):
        return {key: _nest(sub, items) for key, sub in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_nest(sub, items) for sub in space.spaces)
    return next(items)


def _reader(leaf: Leaf, rows: Array) -> Callable[[int], Any]:
    """Return a function that reads one row of a leaf's array."""
    if isinstance(leaf.space, spaces.Discrete):
        return rows.item
    return lambda row: _copy_row(rows[row])


def _copy_row(item: Any) -> Any:
    """Copy a row of an array, because the next step overwrites it; a numpy scalar is a copy already."""
    return item.copy() if isinstance(item, np.ndarray) else item


def space_to_data(space: spaces.Space[Any]) -> dict[str, Any]:
    """Return a space as data that JSON can represent."""
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
    raise TypeError(f"cannot convert {space} to JSON data")


def space_from_data(data: Mapping[str, Any]) -> spaces.Space[Any]:
    """Return the space that ``space_to_data`` described.

    Raise a ValueError, before any array is allocated, if its values have more than ``MAX_SPACE_NUMBERS`` numbers.
    """
    if (numbers := _count_numbers(data)) > MAX_SPACE_NUMBERS:
        raise ValueError(f"a value of it has {numbers:.3g} numbers, expected at most {MAX_SPACE_NUMBERS:,}")
    return _make_space(data)


def _count_numbers(data: Mapping[str, Any]) -> int:
    """Return the number of numbers in a value of the space that ``data`` describe."""
    match data["type"]:
        case "Dict":
            return sum(_count_numbers(sub) for _, sub in data["spaces"])
        case "Tuple":
            return sum(_count_numbers(sub) for sub in data["spaces"])
        case "Box":
            return _product(data["shape"])
        case "MultiBinary":
            return _product([data["n"]] if isinstance(data["n"], int) else data["n"])
    return 1  # a MultiDiscrete has more, but not more than its data have


def _product(shape: Any) -> int:
    if len(shape) > _MAX_AXES or any(type(size) is not int or not 0 <= size <= MAX_SPACE_NUMBERS for size in shape):
        raise ValueError(f"a shape of {shape!r:.80}; expected up to {_MAX_AXES} sizes of at most {MAX_SPACE_NUMBERS:,}")
    return math.prod(shape)


def _make_space(data: Mapping[str, Any]) -> spaces.Space[Any]:
    match data["type"]:
        case "Dict":
            # As a list of pairs, because Gymnasium sorts the keys of a dict.
            return spaces.Dict([(key, _make_space(sub)) for key, sub in data["spaces"]])
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
    """Return bounds of a Box as JSON data: one number if all are equal, infinities as text."""
    flat = values.reshape(-1)
    if flat.size and (flat == flat[0]).all():
        flat = flat[:1]
    items = [str(value) if np.isinf(value) else value.item() for value in flat]
    return items[0] if len(items) == 1 else items


def _array(bound: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    """Return bounds of a Box from the data that ``_bound`` returned."""
    values = np.array([float(v) if isinstance(v, str) else v for v in (bound if isinstance(bound, list) else [bound])])
    return np.broadcast_to(values.reshape(shape) if values.size > 1 else values.reshape(-1)[0], shape).astype(dtype)
