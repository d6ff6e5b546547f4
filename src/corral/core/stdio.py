"""Standard output and error: printing never fails, even if the stream is closed or its reader has ended.

``command`` returns commands in the form in which the user can paste them into the shell.
"""

from __future__ import annotations

import contextlib
import errno
import io
import operator
import os
import shlex
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

__all__ = ["command", "reserve_standard_descriptors", "tolerate_closed_stdout"]

_TEMPORARY_ERRORS = {errno.EAGAIN, errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)}
_MODULES = {"tensorboard": "tensorboard.main"}
"""Modules to run with ``python -m`` of programs whose module has another name."""


def tolerate_closed_stdout() -> None:
    """Replace ``sys.stdout`` and ``sys.stderr`` by streams whose writes never fail. May be called twice."""
    reserve_standard_descriptors()
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, _TolerantStream):
            continue
        if stream is None:  # it was closed before Python started
            stream = Path(os.devnull).open("w")  # noqa: SIM115 - it stays open until the process ends
        elif isinstance(stream, io.TextIOWrapper):
            with contextlib.suppress(OSError, ValueError):
                stream.reconfigure(errors="replace")  # a terminal whose encoding lacks µ shows a question mark
        setattr(sys, name, _TolerantStream(stream, name))


def reserve_standard_descriptors() -> None:
    """Open those of the file descriptors 0, 1 and 2 that are closed, on the null device.

    Otherwise a pipe of Corral could get one of these numbers, and libraries that print without Python write to it.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            _redirect_to_null(descriptor)


class _TolerantStream:
    """A wrapper around a stream: the same, except that writing does not raise."""

    def __init__(self, stream: Any, name: str) -> None:
        self._stream, self._name = stream, name

    def write(self, text: Any) -> Any:
        """Write ``text``; discard it if the stream fails."""
        try:
            return self._stream.write(text)
        except UnicodeError:
            raise
        except (OSError, ValueError) as error:
            self._handle_failure(error)
            return len(text)

    def writelines(self, lines: Iterable[Any]) -> None:
        """Write all lines; discard them if the stream fails."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Flush the stream; ignore a failure."""
        try:
            self._stream.flush()
        except (OSError, ValueError) as error:
            self._handle_failure(error)

    @property
    def buffer(self) -> Any:
        """The underlying byte stream, whose writes do not raise either."""
        return _TolerantStream(self._stream.buffer, f"{self._name}.buffer")

    def _handle_failure(self, error: Exception) -> None:
        """Redirect the descriptor to the null device, for all later output of the process, unless it may work again."""
        if isinstance(error, OSError) and error.errno not in _TEMPORARY_ERRORS:
            with contextlib.suppress(OSError, ValueError):
                descriptor = self._stream.fileno()
                if descriptor in (1, 2):
                    _redirect_to_null(descriptor)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __reduce__(self) -> Any:
        return _get_stream, (self._name,)


def _get_stream(name: str) -> Any:
    """Return the stream ``name`` of this process: a pickled stream becomes that of the process that unpickles it."""
    return operator.attrgetter(name)(sys)


def _redirect_to_null(descriptor: int) -> None:
    """Make a file descriptor refer to the null device."""
    null = os.open(os.devnull, os.O_RDWR)
    if null == descriptor:
        os.set_inheritable(descriptor, True)
    else:
        os.dup2(null, descriptor)
        os.close(null)


def command(name: str = "corral") -> str:
    """Return ``name`` if the shell finds this program of this Python's environment, else a command that starts it."""
    installed = shutil.which(name, path=str(Path(sys.executable).parent))
    on_path = shutil.which(name)
    if on_path is not None and (installed is None or Path(on_path).samefile(installed)):
        return name
    if installed is None:
        return f"{shlex.quote(sys.executable)} -m {_MODULES.get(name, name)}"
    path = Path(installed).absolute()
    return shlex.quote(str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path))
