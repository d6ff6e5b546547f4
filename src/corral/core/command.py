"""How commands are printed, so that they work when they are pasted into the shell that started this process."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path

__all__ = ["command"]

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
