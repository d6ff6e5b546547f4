"""Environment variables and secrets with which Corral starts Ray, or connects to it. Nothing here imports ray.

Ray listens on all network interfaces. So every Ray that Corral starts accepts only connections with a secret token, in
a file that only its owner can read.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import secrets
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TextIO

from corral.core.errors import UsageError

__all__ = ["NODE", "TOKEN_FILE", "environment", "make_token", "private_directory", "replaced", "token_environment"]

NODE = {
    "RAY_ENABLE_AUTO_CONNECT": "0",  # a call after the end must not start another Ray
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # by default, Ray runs actors at low priority
}
"""Environment variables for a Ray that Corral starts."""
TOKEN_FILE = Path("~/.corral/ray-token")
"""The file with the token of the user's clusters."""
_DIRECTORY_PREFIX = "corral-ray-"
_MAX_PARENT = 20
"""Characters of the path of the directory for temporary files. Ray makes sockets below, whose paths have a limit."""
_locks: list[TextIO] = []  # open as long as this process lives


def token_environment(file: Path | None = None) -> dict[str, str]:
    """Return the environment variables with which Ray uses the token in ``file``.

    Without a file, they are empty if the user has set them or has no ``TOKEN_FILE``. Raise a UsageError for a file that
    other users of the machine can read.
    """
    if file is None:
        file = TOKEN_FILE.expanduser()
        if "RAY_AUTH_MODE" in os.environ or not file.is_file():
            return {}
    if not file.is_file():
        raise UsageError(f"token {file}: there is no such file; copy it from the head of the cluster")
    if os.name == "posix" and stat.S_IMODE(file.stat().st_mode) & 0o077:
        raise UsageError(f"token {file}: others can read it; make it private with: chmod 600 {file}")
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(file.absolute())}


def make_token(file: Path) -> None:
    """Write a new token into a file that only its owner can read; do nothing if there is one."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    complete = file.with_name(f"{file.name}-{os.getpid()}")
    complete.touch(mode=0o600)
    complete.write_text(secrets.token_hex(32))
    with contextlib.suppress(FileExistsError):
        file.hardlink_to(complete)  # nobody ever sees a part of it
    complete.unlink()


@functools.cache
def private_directory() -> Path:
    """Return a directory that only this user can read, and that is deleted when this process ends.

    Let Ray use a directory inside it: Ray makes the one that it gets readable for all.

    If this process is killed, the next one of the same user deletes it.
    """
    parent = Path(tempfile.gettempdir())
    if os.name == "posix" and len(str(parent)) > _MAX_PARENT:
        parent = Path("/tmp")
    _delete_left_over(parent)
    directory = Path(tempfile.mkdtemp(prefix=_DIRECTORY_PREFIX, dir=parent))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    _locks.append((directory / "lock").open("w"))
    _lock(_locks[-1])
    return directory


def _delete_left_over(parent: Path) -> None:
    """Delete the directories of processes of this user that were killed, whose locks are therefore free."""
    for old in parent.glob(f"{_DIRECTORY_PREFIX}*"):
        with contextlib.suppress(OSError), (old / "lock").open("r+") as lock:  # not those of other users
            if not old.is_symlink() and _lock(lock):
                shutil.rmtree(old, ignore_errors=True)


def _lock(file: TextIO) -> bool:
    """Lock a file until it is closed or this process ends; return whether that worked (on Windows, it never does)."""
    if sys.platform == "win32":
        return False
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


@contextlib.contextmanager
def replaced(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables of this process in the block, whatever they were before."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ |= variables
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for processes that are started in the block, unless the user has set them."""
    added = {name: value for name, value in variables.items() if name not in os.environ}
    os.environ |= added
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]
