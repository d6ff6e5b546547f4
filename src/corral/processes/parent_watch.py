"""End a worker when the process that started it ends, however that ends and whatever the worker is doing.

There are two mechanisms, because each has a gap. A thread that waits for the parent's sentinel works on every platform,
but cannot run while C code holds the GIL. Linux's parent-death signal (``PR_SET_PDEATHSIG``) interrupts anything, but
it is sent when the thread that forked ends, and under ``forkserver`` that is a thread of the fork server.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from multiprocessing import connection

__all__ = ["name_process", "tie_to_parent"]

_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15


def tie_to_parent(parent_pid: int, use_death_signal: bool) -> None:
    """Make this worker end with its parent. Call this before anything else, in the worker's main thread."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the worker too, but the parent decides when it ends
    if sys.platform != "win32":
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT, signal.SIGTERM])  # for processes that an env starts
    is_forkserver = _leave_fork_server()
    if use_death_signal and sys.platform == "linux":
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if not is_forkserver and os.getppid() != parent_pid:
            os._exit(1)  # the parent ended before the signal was set
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_exit_with, args=(parent.sentinel,), name="parent-watch", daemon=True).start()


def name_process(name: str) -> None:
    """Set the name that ``top`` shows for this process (Linux; 15 bytes at most). Call this in the main thread."""
    if sys.platform == "linux":
        _prctl(_PR_SET_NAME, name.encode()[:15])


def _exit_with(sentinel: int) -> None:
    """Wait until the process of this sentinel has ended, then end this process."""
    connection.wait([sentinel])
    os._exit(1)


def _leave_fork_server() -> bool:
    """Close the inherited write end of the fork server's "alive" pipe; return whether there is a fork server.

    The server ends when no process has that end open. If workers kept it open, the server would outlive a killed
    trainer, and so would workers whose parent-death signal is sent when the server ends.
    """
    try:
        from multiprocessing.forkserver import _forkserver
    except ImportError:  # no forkserver on this platform
        return False
    fd = getattr(_forkserver, "_forkserver_alive_fd", None)
    if fd is None or getattr(_forkserver, "_forkserver_pid", None) is not None:
        return False
    with contextlib.suppress(OSError):
        os.close(fd)
    _forkserver._forkserver_alive_fd = None  # type: ignore[attr-defined]
    return True


def _prctl(option: int, value: int | bytes) -> None:
    """Call Linux's ``prctl``; ignore errors."""
    import ctypes

    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)
