"""Imports what a name stands for: the user's ``package.module:callable`` or ``file.py:callable``, or Corral's own."""

from __future__ import annotations

import hashlib
import importlib
import importlib.machinery
import importlib.util
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle

from corral.core.errors import UsageError
from corral.core.files import is_file
from corral.core.suggestions import did_you_mean, short_repr

__all__ = [
    "absolute_spec",
    "code_error",
    "file_of",
    "import_callable",
    "import_file",
    "import_module",
    "import_own",
    "pickle_code",
    "python_name",
]

_FILE = "corral_file_"
"""How the names of modules begin that are files the user named."""


def import_own(spec: str) -> Callable[..., Any]:
    """The object behind ``module:callable`` of Corral itself; the current directory has no part in it."""
    module, _, attribute = spec.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    return found


def import_callable(spec: str, what: str) -> Callable[..., Any]:
    """The object behind ``package.module:callable`` or ``file.py:callable``, which the user named."""
    source, _, attribute = spec.rpartition(":") if isinstance(spec, str) else ("", "", "")
    if not source or not attribute or (not source.endswith(".py") and "" in source.split(".")):
        raise UsageError(f"{what} {short_repr(spec)} should look like package.module:callable or file.py:callable")
    module = import_file(source, what) if source.endswith(".py") else import_module(source, what)
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            names = [name for name in vars(module) if not name.startswith("_")]
            raise UsageError(f"{what} {spec!r}: no {attribute!r} in {source}{did_you_mean(attribute, names)}")
        found = getattr(found, part)
    if not callable(found):
        raise UsageError(f"{what} {spec!r} is a {type(found).__name__}, expected something callable")
    return found  # type: ignore[no-any-return]


def absolute_spec(spec: str) -> str:
    """``file.py:callable`` with the absolute path of the file, for an env may change the working directory."""
    source, _, attribute = spec.rpartition(":")
    return f"{Path(source).absolute()}:{attribute}" if source.endswith(".py") else spec


def import_module(name: str, what: str) -> Any:
    """A module that the user named, from the current directory too; ``what`` begins the error."""
    _serve_from_here(name)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise UsageError(f"{what}: no module named {name!r} (looked in the current directory too)") from None
        raise _import_failed(name, what, error) from error
    except Exception as error:
        raise _import_failed(name, what, error) from error


def _serve_from_here(name: str) -> None:
    """Let a module that the user named be found in the current directory, if it lies there; else nothing is."""
    here, top = str(Path.cwd()), name.partition(".")[0]
    if "" in sys.path or here in sys.path:
        return
    found = importlib.machinery.PathFinder.find_spec(top, [here])
    if found is None or (found.origin is None and importlib.util.find_spec(top) is not None):
        return  # a mere folder of that name gives way to a package that is installed
    sys.path.insert(0, here)


def file_of(thing: Any) -> str | None:
    """The file that ``thing`` was imported from, if a process has to call ``import_file`` before it can unpickle it."""
    module = sys.modules.get(getattr(thing, "__module__", None) or "")
    return str(module.__file__) if module is not None and module.__name__.startswith(_FILE) else None


def import_file(source: str, what: str) -> Any:
    """The module in a Python file, once for each process; ``what`` begins the error."""
    if not is_file(source):
        raise UsageError(f"{what}: no file {source!r}")
    path = Path(source).resolve()
    name = f"{_FILE}{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))  # so that the file finds its neighbours, as when run as a script
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if not isinstance(error, Exception):
            raise
        raise _import_failed(source, what, error) from error
    return module


def pickle_code(thing: Any, what: str) -> bytes:
    """A callable as bytes for another process; a UsageError if it holds something that stays in this one."""
    try:
        return bytes(cloudpickle.dumps(thing))
    except Exception as error:  # cloudpickle raises whatever the object's own reduction raises
        raise UsageError(
            f"the {what} {thing!r:.80} cannot be sent to a worker: {type(error).__name__}: {error}. "
            "Create files, sockets, locks and the like inside it instead of closing over them."
        ) from error


def _import_failed(name: str, what: str, error: Exception) -> UsageError:
    return code_error(f"{what}: importing {name} failed", error)


def code_error(what: str, error: Exception) -> UsageError:
    """Return the error to raise for what the user's code raised, with its traceback."""
    text = "".join(traceback.format_exception(error))
    return UsageError(f"{what}: {type(error).__name__}: {error}\n\n{text.rstrip()}")


PYTHON = "python:"
"""How the name of an env or policy begins that only Python can give."""


def python_name(thing: Any) -> str:
    """How a config refers to an object that only Python can give."""
    named = thing if hasattr(thing, "__qualname__") else type(thing)
    return f"{PYTHON}{named.__module__}.{named.__qualname__}"
