"""Safe reading and writing of files in directories that may come from somebody else.

Only regular files are opened: a symbolic link could lead to another directory, a named pipe could block, a device could
never end. A file is read only up to a size that the caller states, and written only if it has no second hard link.

Keys in files are independent of names in code: for each class that is saved, a dictionary maps attributes to keys, so
that an attribute can be renamed without changing a file. ``tests/test_file_names.py`` lists every key.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
import zlib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

__all__ = [
    "exists",
    "find_link",
    "inflate",
    "is_directory",
    "is_file",
    "open_regular",
    "parse_json",
    "read_json",
    "read_regular",
    "replace_file",
    "to_attributes",
    "to_data",
]

_OPEN_FLAGS = sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY"))
_WRITE_FLAGS = os.O_WRONLY | os.O_RDWR
_MAX_DEPTH = 20
"""Levels of nested directories that are searched; the runs of a sweep have five."""


def open_regular(path: Path, flags: int = os.O_RDONLY) -> int:
    """Open a regular file and return its descriptor; raise an OSError for anything else."""
    with contextlib.suppress(FileNotFoundError):
        _check_regular(path, os.lstat(path), flags)  # before it is opened, because opening a device can have effects
    descriptor = os.open(path, flags | _OPEN_FLAGS, 0o666)
    try:
        _check_regular(path, os.fstat(descriptor), flags)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def read_regular(path: Path, max_bytes: int) -> bytes:
    """Return the content of a regular file; raise an OSError if it is not one or has more than ``max_bytes`` bytes."""
    with os.fdopen(open_regular(path), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > max_bytes:
            raise OSError(errno.EFBIG, f"it has {size:,} bytes, and at most {max_bytes:,} are read", str(path))
        return file.read(size)


def read_json(path: Path, max_bytes: int) -> Any:
    """Return the data in a JSON file; raise as ``read_regular`` and ``parse_json`` do."""
    return parse_json(read_regular(path, max_bytes))


def parse_json(data: bytes) -> Any:
    """Return the data of a JSON text; raise a ValueError if it is not JSON. NaN and Infinity are not JSON."""
    try:
        return json.loads(data, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("its data are nested too deeply") from None


def inflate(data: bytes, max_bytes: int) -> bytes:
    """Decompress zlib data; raise a ValueError if they are damaged or decompress to more than ``max_bytes`` bytes."""
    stream = zlib.decompressobj()
    try:
        decompressed = stream.decompress(data, max_bytes + 1)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    if len(decompressed) > max_bytes:
        raise ValueError(f"it unpacks to more than the {max_bytes:,} bytes that it may have")
    if not stream.eof:
        raise ValueError("it is cut off")
    return decompressed


def replace_file(path: Path, data: bytes) -> None:
    """Replace a file atomically: write a new temporary file, then rename it to ``path``."""
    temporary = path.with_suffix(".tmp")
    temporary.unlink(missing_ok=True)  # it may be left from a process that was killed
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _OPEN_FLAGS, 0o666), "wb") as file:
            file.write(data)
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def find_link(directory: Path, folders: Collection[str]) -> Path | None:
    """Return a symbolic link in ``directory``, or anywhere below its subdirectories ``folders``; None without one.

    Raise an OSError if directories are nested more than 20 deep, because Python cannot delete very deep trees.
    """
    return next((path for path in _walk(directory, folders) if path.is_symlink()), None)


def _walk(directory: Path, folders: Collection[str]) -> Iterator[Path]:
    """Yield every entry of ``directory`` and, recursively, of its subdirectories ``folders``."""
    pending = [(directory, 0)]
    while pending:
        parent, depth = pending.pop()
        if depth > _MAX_DEPTH:
            raise OSError(errno.ELOOP, f"it has folders that are nested more than {_MAX_DEPTH} deep", str(parent))
        with os.scandir(parent) as entries:
            for entry in entries:
                yield Path(entry.path)
                is_searched = parent != directory or entry.name in folders
                if is_searched and entry.is_dir(follow_symlinks=False):
                    pending.append((Path(entry.path), depth + 1))


def _check_regular(path: Path, status: os.stat_result, flags: int) -> None:
    """Raise an OSError unless the file is regular and, if it is to be written, has no second hard link."""
    if stat.S_ISLNK(status.st_mode):
        raise OSError(errno.ELOOP, "it is a link, and no link is followed here", str(path))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    if flags & _WRITE_FLAGS and status.st_nlink > 1:
        raise OSError(errno.EMLINK, "it has a second name elsewhere (a hard link), so it is not written to", str(path))


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"it holds {name}, which is not a number")


def exists(path: str | os.PathLike[str]) -> bool:
    """Return whether the path exists; False also for invalid names and in directories that cannot be searched."""
    try:
        return Path(path).exists()
    except (OSError, ValueError):
        return False


def is_file(path: str | os.PathLike[str]) -> bool:
    """Return whether the path is a file; False where ``exists`` is False."""
    return exists(path) and Path(path).is_file()


def is_directory(path: str | os.PathLike[str]) -> bool:
    """Return whether the path is a directory; False where ``exists`` is False."""
    return exists(path) and Path(path).is_dir()


def to_data(thing: object, keys: Mapping[str, str]) -> dict[str, Any]:
    """Return the attributes of ``thing`` under their keys in files; ``keys`` maps attributes to keys."""
    return {key: getattr(thing, attribute) for attribute, key in keys.items()}


def to_attributes(data: Mapping[str, Any], keys: Mapping[str, str]) -> dict[str, Any]:
    """Return the data of a file under the names of attributes.

    Unknown keys are kept. A key that equals an attribute's name, but is no key of the file, is dropped.
    """
    attributes = {key: attribute for attribute, key in keys.items()}
    return {attributes.get(key, key): value for key, value in data.items() if key in attributes or key not in keys}
