"""Reading and writing in directories that others may have made.

Only regular files are opened: a link, a named pipe or a device could lead elsewhere, block or never end. A file is read
only up to a size that the caller states, and written only if it has no other name.

Names in files do not follow from names in code: for each class that is saved, a dictionary maps attributes to keys, so
that an attribute can be renamed without changing a file. ``tests/test_file_names.py`` holds every key.
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
    "by_attribute",
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
    "to_data",
]

_FLAGS = sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY"))
_DEEPEST = 20
"""Levels of folders; those of a sweep's runs are five."""
_WRITING = os.O_WRONLY | os.O_RDWR


def open_regular(path: Path, flags: int = os.O_RDONLY) -> int:
    """Open a regular file and return its descriptor; an OSError for anything else, whatever lies under the name."""
    with contextlib.suppress(FileNotFoundError):
        _check_kind(path, os.lstat(path), flags)  # before it is opened: opening a device may already do something
    descriptor = os.open(path, flags | _FLAGS, 0o666)
    try:
        _check_kind(path, os.fstat(descriptor), flags)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def read_regular(path: Path, most: int) -> bytes:
    """The content of a regular file; an OSError if it is none, or if it has more than ``most`` bytes."""
    with os.fdopen(open_regular(path), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise OSError(errno.EFBIG, f"it has {size:,} bytes, and at most {most:,} are read", str(path))
        return file.read(size)


def read_json(path: Path, most: int) -> Any:
    """The JSON in a regular file of at most ``most`` bytes; a ValueError if there is none. NaN is not JSON."""
    return parse_json(read_regular(path, most))


def parse_json(data: bytes) -> Any:
    """The JSON in some bytes; a ValueError if there is none. NaN is not JSON."""
    try:
        return json.loads(data, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("its data are nested too deeply") from None


def inflate(data: bytes, most: int) -> bytes:
    """What zlib made ``data`` of; a ValueError if that is damaged or has more than ``most`` bytes."""
    stream = zlib.decompressobj()
    try:
        found = stream.decompress(data, most + 1)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    if len(found) > most:
        raise ValueError(f"it unpacks to more than the {most:,} bytes that it may have")
    if not stream.eof:
        raise ValueError("it is cut off")
    return found


def replace_file(path: Path, data: bytes) -> None:
    """Write a file whole or not at all: a temporary file, which is created anew, takes its name."""
    temporary = path.with_suffix(".tmp")
    temporary.unlink(missing_ok=True)  # left by a process that was killed
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FLAGS, 0o666), "wb") as file:
            file.write(data)
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def find_link(directory: Path, folders: Collection[str]) -> Path | None:
    """A symbolic link in a directory, or anywhere below those of its ``folders`` that have these names.

    Folders that are nested deeper than any of Corral's are an OSError: Python cannot delete them.
    """
    return next((path for path in _walk(directory, folders) if path.is_symlink()), None)


def _walk(directory: Path, folders: Collection[str]) -> Iterator[Path]:
    left = [(directory, 0)]
    while left:
        here, depth = left.pop()
        if depth > _DEEPEST:
            raise OSError(errno.ELOOP, f"it has folders that are nested more than {_DEEPEST} deep", str(here))
        with os.scandir(here) as entries:
            for entry in entries:
                yield Path(entry.path)
                inside = here != directory or entry.name in folders
                if inside and entry.is_dir(follow_symlinks=False):
                    left.append((Path(entry.path), depth + 1))


def _check_kind(path: Path, status: os.stat_result, flags: int) -> None:
    if stat.S_ISLNK(status.st_mode):
        raise OSError(errno.ELOOP, "it is a link, and no link is followed here", str(path))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    if flags & _WRITING and status.st_nlink > 1:
        raise OSError(errno.EMLINK, "it has a second name elsewhere (a hard link), so it is not written to", str(path))


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"it holds {name}, which is not a number")


def exists(path: str | os.PathLike[str]) -> bool:
    """Whether there is anything; not under a name that is too long, nor in a directory that may not be searched."""
    try:
        return Path(path).exists()
    except (OSError, ValueError):
        return False


def is_file(path: str | os.PathLike[str]) -> bool:
    """Whether there is a file."""
    return exists(path) and Path(path).is_file()


def is_directory(path: str | os.PathLike[str]) -> bool:
    """Whether there is a directory."""
    return exists(path) and Path(path).is_dir()


def to_data(thing: object, keys: Mapping[str, str]) -> dict[str, Any]:
    """Return the attributes of ``thing`` by the names that they have in files."""
    return {key: getattr(thing, attribute) for attribute, key in keys.items()}


def by_attribute(data: Mapping[str, Any], keys: Mapping[str, str]) -> dict[str, Any]:
    """Return what a file holds by the names of attributes; a key that is not known stays as it is."""
    attributes = {key: attribute for attribute, key in keys.items()}
    return {attributes.get(key, key): value for key, value in data.items()}
