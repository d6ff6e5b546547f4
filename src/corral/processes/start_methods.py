"""How worker processes are started."""

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

__all__ = ["StartMethod", "bare_main", "usable_start_method"]

StartMethod = Literal["auto", "spawn", "forkserver", "fork"]


def usable_start_method(wanted: StartMethod) -> str:
    """The start method that was asked for, or the best that this platform has; refuse one that it does not have."""
    available = multiprocessing.get_all_start_methods()
    if wanted == "auto":
        return "forkserver" if "forkserver" in available else "spawn"
    if wanted not in available:
        raise UsageError(f"start method {wanted!r} does not exist on this platform; there are {', '.join(available)}")
    return wanted


@contextlib.contextmanager
def bare_main(context: Any, preload: str) -> Iterator[None]:
    """Start workers without the user's ``__main__``.

    The factory travels by value, so no worker needs to import the script that started it: scripts without a
    ``__main__`` guard and notebooks just work. The fork server is told to load what every worker needs. A Ctrl-C, which
    goes to all of them, must not catch it or a worker while Python starts, nor may SIGTERM leave one half told what to
    do: both wait, and then they are ours alone.
    """
    if context.get_start_method() == "forkserver":
        context.set_forkserver_preload([preload])
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    if sys.platform != "win32":
        resource_tracker.ensure_running()  # else it is started in there, and lets Ctrl-C in again
        waiting = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGTERM])
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        if sys.platform != "win32":
            signal.pthread_sigmask(signal.SIG_SETMASK, waiting)
