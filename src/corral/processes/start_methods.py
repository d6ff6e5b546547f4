"""Start methods of worker processes: ``fork``, ``forkserver`` and ``spawn``."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import sys
import types
from collections.abc import Iterator
from multiprocessing import resource_tracker
from typing import Any, Literal

from corral.core.errors import UsageError

__all__ = ["StartMethod", "hide_main_module", "usable_start_method"]

StartMethod = Literal["auto", "spawn", "forkserver", "fork"]


def usable_start_method(requested: StartMethod) -> str:
    """Return the requested start method, or for ``auto`` the best of this platform; raise if it is not available."""
    available = multiprocessing.get_all_start_methods()
    if requested == "auto":
        return "forkserver" if "forkserver" in available else "spawn"
    if requested not in available:
        choices = ", ".join(available)
        raise UsageError(f"start method {requested!r} does not exist on this platform; use one of {choices}")
    return requested


@contextlib.contextmanager
def hide_main_module(context: Any, preload: str) -> Iterator[None]:
    """Hide the user's ``__main__`` module, and block SIGINT and SIGTERM, while worker processes are started.

    The env factory is pickled by value, so that workers need not import the script that started them: scripts without a
    ``__main__`` guard and notebooks work. A fork server imports ``preload``, which every worker needs.

    Ctrl-C goes to all processes of the terminal, and must not reach the fork server or a worker while Python starts.
    SIGTERM must not end this process while it sends a worker its arguments. Both signals are delivered to this process
    afterwards.
    """
    if context.get_start_method() == "forkserver":
        context.set_forkserver_preload([preload])
    user_main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    if sys.platform != "win32":
        resource_tracker.ensure_running()  # otherwise it starts in the block and unblocks SIGINT
        old_mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGTERM])
    try:
        yield
    finally:
        sys.modules["__main__"] = user_main
        if sys.platform != "win32":
            signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)
