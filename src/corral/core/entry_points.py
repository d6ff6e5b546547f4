"""Import of objects by name: the user's ``package.module:callable`` or ``file.py:callable``, or Corral's own."""

from __future__ import annotations

import hashlib
import importlib
import importlib.machinery
import importlib.util
import linecache
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
    "import_callable",
    "import_file",
    "import_internal",
    "import_module",
    "pickle_code",
    "python_name",
    "user_file_of",
]

_FILE_MODULE_PREFIX = "corral_file_"
"""Prefix of the module names of files that ``import_file`` imported."""
PYTHON_PREFIX = "python:"
"""Prefix of the name of an env, policy or hook that was passed as a Python object and cannot be imported by name."""


def import_internal(spec: str) -> Callable[..., Any]:
    """Return the object ``module:callable`` of Corral itself; the current directory is not searched."""
    module, _, attribute = spec.partition(":")
    imported: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    return imported


def import_callable(spec: str, what: str, content: bytes | None = None) -> Callable[..., Any]:
    """Return the user's object ``package.module:callable`` or ``file.py:callable``.

    Raise a UsageError that begins with ``what`` if there is no such object or it is not callable. For ``content`` see
    ``import_file``.
    """
    source, _, attribute = spec.rpartition(":") if isinstance(spec, str) else ("", "", "")
    if not source or not attribute or (not source.endswith(".py") and "" in source.split(".")):
        raise UsageError(f"{what} {short_repr(spec)} should look like package.module:callable or file.py:callable")
    module = import_file(source, what, content) if source.endswith(".py") else import_module(source, what)
    imported: Any = module
    for name in attribute.split("."):
        if not hasattr(imported, name):
            public_names = [name for name in vars(module) if not name.startswith("_")]
            raise UsageError(f"{what} {spec!r}: no {attribute!r} in {source}{did_you_mean(attribute, public_names)}")
        imported = getattr(imported, name)
    if not callable(imported):
        raise UsageError(f"{what} {spec!r} is a {type(imported).__name__}, expected something callable")
    return imported  # type: ignore[no-any-return]


def absolute_spec(spec: str) -> str:
    """Return ``file.py:callable`` with the absolute path of the file, because an env may change the directory.

    A name of the form ``package.module:callable`` is returned unchanged.
    """
    source, _, attribute = spec.rpartition(":")
    return f"{Path(source).absolute()}:{attribute}" if source.endswith(".py") else spec


def import_module(name: str, what: str) -> Any:
    """Import a module that the user named, also from the current directory; an error begins with ``what``."""
    _make_importable_from_cwd(name)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise UsageError(f"{what}: no module named {name!r} (looked in the current directory too)") from None
        raise _import_failed(name, what, error) from error
    except Exception as error:
        raise _import_failed(name, what, error) from error


def _make_importable_from_cwd(name: str) -> None:
    """Put the current directory on the import path if it contains the module, and only then."""
    cwd, top_level_name = str(Path.cwd()), name.partition(".")[0]
    if "" in sys.path or cwd in sys.path:
        return
    spec = importlib.machinery.PathFinder.find_spec(top_level_name, [cwd])
    if spec is None or (spec.origin is None and importlib.util.find_spec(top_level_name) is not None):
        return  # an installed package has priority over a directory without __init__.py
    sys.path.insert(0, cwd)


def user_file_of(thing: Any) -> str | None:
    """Return the file that ``import_file`` imported ``thing`` from, else None.

    A process has to import that file before it can unpickle the object.
    """
    module = sys.modules.get(getattr(thing, "__module__", None) or "")
    return str(module.__file__) if module is not None and module.__name__.startswith(_FILE_MODULE_PREFIX) else None


def import_file(source: str, what: str, content: bytes | None = None) -> Any:
    """Import a Python file once per process and return the module; an error begins with ``what``.

    With ``content``, the module is made from it if the file is missing, because this is another machine, or has changed
    since the run started.
    """
    if not is_file(source) and content is None:
        raise UsageError(f"{what}: no file {source!r}")
    path = Path(source).resolve()
    name = f"{_FILE_MODULE_PREFIX}{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))  # the file can import its neighbours, as a script can
    try:
        if content is None or (is_file(source) and path.read_bytes() == content):
            spec.loader.exec_module(module)
        else:
            lines = content.decode(errors="replace").splitlines(keepends=True)
            linecache.cache[str(path)] = len(content), None, lines, str(path)  # for tracebacks
            exec(compile(content, str(path), "exec"), module.__dict__)
    except BaseException as error:
        del sys.modules[name]
        if not isinstance(error, Exception):
            raise
        raise _import_failed(source, what, error) from error
    return module


def pickle_code(thing: Any, what: str) -> bytes:
    """Pickle a callable for another process; raise a UsageError if it refers to something that cannot be pickled."""
    try:
        return bytes(cloudpickle.dumps(thing))
    except Exception as error:  # cloudpickle passes on what the object's __reduce__ raises
        raise UsageError(
            f"the {what} {thing!r:.80} cannot be sent to a worker: {type(error).__name__}: {error}. "
            "Create files, sockets, locks and the like inside it instead of closing over them."
        ) from error


def _import_failed(name: str, what: str, error: Exception) -> UsageError:
    return code_error(f"{what}: importing {name} failed", error)


def code_error(what: str, error: Exception) -> UsageError:
    """Return a UsageError that begins with ``what`` and contains the traceback of the user's code."""
    text = "".join(traceback.format_exception(error))
    return UsageError(f"{what}: {type(error).__name__}: {error}\n\n{text.rstrip()}")


def python_name(thing: Any) -> str:
    """Return the name under which a config refers to an object that was passed from Python."""
    named = thing if hasattr(thing, "__qualname__") else type(thing)
    return f"{PYTHON_PREFIX}{named.__module__}.{named.__qualname__}"
