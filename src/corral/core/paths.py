"""Looking at paths that a user typed: what the system refuses to look at is not there."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["exists", "is_directory", "is_file"]


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
