"""What is printed. Output that fails, because its reader left or it was closed, never fails the code that prints.

``command`` is how commands are printed, so that they work when they are pasted into the shell.
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

_MAY_PASS = {errno.EAGAIN, errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)}


def tolerate_closed_stdout() -> None:
    """From now on this process's ``print`` succeeds, whoever reads it. May be called twice."""
    reserve_standard_descriptors()
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, _Forgiving):
            continue
        if stream is None:  # closed before we were started
            stream = Path(os.devnull).open("w")  # noqa: SIM115 - for good
        elif isinstance(stream, io.TextIOWrapper):
            with contextlib.suppress(OSError, ValueError):
                stream.reconfigure(errors="replace")  # a terminal that cannot show µ shows something else
        setattr(sys, name, _Forgiving(stream, name))


def reserve_standard_descriptors() -> None:
    """Let no pipe of ours become descriptor 0, 1 or 2: what prints without asking Python would write to it."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            _point_at_nothing(descriptor)


class _Forgiving:
    """A stream, except that writing to it succeeds."""

    def __init__(self, stream: Any, name: str) -> None:
        self._stream, self._name = stream, name

    def write(self, text: Any) -> Any:
        """Write, if anybody is there."""
        try:
            return self._stream.write(text)
        except UnicodeError:
            raise
        except (OSError, ValueError) as error:
            self._forgive(error)
            return len(text)

    def writelines(self, lines: Iterable[Any]) -> None:
        """Write them all."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Flush, if anybody is there."""
        try:
            self._stream.flush()
        except (OSError, ValueError) as error:
            self._forgive(error)

    @property
    def buffer(self) -> Any:
        """The stream of bytes below."""
        return _Forgiving(self._stream.buffer, f"{self._name}.buffer")

    def _forgive(self, error: Exception) -> None:
        """What is printed from now on goes nowhere, by other means than this stream too, unless this may pass."""
        if isinstance(error, OSError) and error.errno not in _MAY_PASS:
            with contextlib.suppress(OSError, ValueError):
                descriptor = self._stream.fileno()
                if descriptor in (1, 2):
                    _point_at_nothing(descriptor)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __reduce__(self) -> Any:
        return _find, (self._name,)


def _find(name: str) -> Any:
    """The stream of that name, in whatever process this is."""
    return operator.attrgetter(name)(sys)


def _point_at_nothing(descriptor: int) -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    if nothing == descriptor:
        os.set_inheritable(descriptor, True)
    else:
        os.dup2(nothing, descriptor)
        os.close(nothing)


_MODULES = {"tensorboard": "tensorboard.main"}
"""Programs whose module has another name."""


def command(name: str = "corral") -> str:
    """``name`` if the shell finds it, else the path of that program beside this Python."""
    installed = shutil.which(name, path=str(Path(sys.executable).parent))
    found = shutil.which(name)
    if found is not None and (installed is None or Path(found).samefile(installed)):
        return name
    if installed is None:
        return f"{shlex.quote(sys.executable)} -m {_MODULES.get(name, name)}"
    path = Path(installed).absolute()
    return shlex.quote(str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path))
