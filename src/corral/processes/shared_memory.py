"""Numpy arrays in memory that several processes share, without a name that could be left behind.

On POSIX this is a memfd where it exists, otherwise a file that is unlinked as soon as it is open. Its descriptor is
sent through the worker's socket. On Windows it is a tagged mapping, which the system frees with its last handle. So
nothing is left in ``/dev/shm``, however a process ends, and no resource tracker is needed.
"""

from __future__ import annotations

import errno
import mmap
import os
import pickle
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from multiprocessing import reduction
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from corral.core.errors import UsageError
from corral.core.machine import available_memory
from corral.core.spaces import poison

__all__ = ["ArraySpec", "SharedArrays", "attach", "create", "send"]

_ALIGN = 64  # bytes of a cache line, which arrays of different writers must not share
_WINDOWS = sys.platform == "win32"


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """Name, shape and dtype of one array in a segment."""

    name: str
    shape: tuple[int, ...]
    dtype: str


class SharedArrays:
    """Named numpy arrays in one shared segment."""

    def __init__(self, specs: Iterable[ArraySpec], memory: mmap.mmap, handle: int | str) -> None:
        self.specs = tuple(specs)
        self.handle = handle
        self._memory = memory
        self.arrays: dict[str, npt.NDArray[Any]] = {}
        offset = 0
        for spec in self.specs:
            array: npt.NDArray[Any] = np.ndarray(spec.shape, spec.dtype, buffer=memory, offset=offset)
            self.arrays[spec.name] = array
            offset += _padded(array.nbytes)

    def close(self) -> None:
        """Close the descriptor; the memory itself is freed with the last array in it."""
        if isinstance(self.handle, int) and self.handle >= 0:
            os.close(self.handle)
        self.handle = -1
        self.arrays = {}


def create(specs: Iterable[ArraySpec]) -> SharedArrays:
    """Return a new segment with these arrays, filled with values that make a missed write show."""
    specs = tuple(specs)
    size = max(_size(specs), mmap.PAGESIZE)
    try:
        if size > available_memory():
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        memory, handle = _create_tagged(size) if _WINDOWS else _create_unnamed(size)
    except OSError as error:
        raise UsageError(
            f"cannot allocate {size / 2**20:.1f} MB of shared memory: {error.strerror or error}; "
            "use fewer envs (--n-envs), smaller observations, or --backend serial"
        ) from None
    shared = SharedArrays(specs, memory, handle)
    for array in shared.arrays.values():
        poison(array)
    return shared


def send(shared: SharedArrays, connection: Connection, pid: int) -> None:
    """Send the segment to the process with this pid, at the other end of ``connection``."""
    if isinstance(shared.handle, str):
        connection.send(shared.handle)
    else:
        reduction.send_handle(connection, shared.handle, pid)
    connection.send(shared.specs)


def attach(connection: Connection) -> SharedArrays:
    """Receive a segment that ``send`` sent, and return its arrays."""
    try:
        handle: int | str = connection.recv() if _WINDOWS else reduction.recv_handle(connection)
    except (RuntimeError, pickle.UnpicklingError):  # another message arrived: the parent is closing
        raise EOFError from None
    specs: tuple[ArraySpec, ...] = connection.recv()
    size = max(_size(specs), mmap.PAGESIZE)
    memory = mmap.mmap(handle, size) if isinstance(handle, int) else _map_tagged(size, handle)
    return SharedArrays(specs, memory, handle)


def _size(specs: tuple[ArraySpec, ...]) -> int:
    """Return the number of bytes that these arrays take in a segment."""
    return sum(_padded(np.dtype(s.dtype).itemsize * int(np.prod(s.shape))) for s in specs)


def _padded(size: int) -> int:
    """Return ``size`` rounded up to whole cache lines."""
    return -(-size // _ALIGN) * _ALIGN


def _create_unnamed(size: int) -> tuple[mmap.mmap, int]:
    """Return new shared memory and its descriptor (POSIX)."""
    on_disk = not hasattr(os, "memfd_create")
    if not on_disk:
        handle = os.memfd_create("corral")
    else:
        handle, path = tempfile.mkstemp(prefix="corral-")
        Path(path).unlink()
    try:
        os.truncate(handle, size)
        if on_disk and hasattr(os, "posix_fallocate"):
            os.posix_fallocate(handle, 0, size)  # a full disk raises here, and causes no SIGBUS later
        return mmap.mmap(handle, size), handle
    except OSError:
        os.close(handle)
        raise


def _create_tagged(size: int) -> tuple[mmap.mmap, str]:
    """Return new shared memory and its tag (Windows)."""
    tag = f"corral-{os.getpid()}-{os.urandom(8).hex()}"
    return _map_tagged(size, tag), tag


def _map_tagged(size: int, tag: str) -> mmap.mmap:
    return mmap.mmap(-1, size, tagname=tag)  # type: ignore[call-arg, unused-ignore]  # Windows only
