"""A worker must not outlive the process that started it, however that process ends and whatever the worker is doing.

Two mechanisms, because each alone has a hole: a thread that waits on the parent's sentinel works on every platform
but cannot run while C code holds the GIL; Linux's parent-death signal interrupts anything, but follows the thread
that forked, which under ``forkserver`` is the server's.
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
    """Make this worker end with its parent. Call first thing, in the worker's main thread."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    if sys.platform != "win32":
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT, signal.SIGTERM])  # what an env starts should hear
    server = _leave_fork_server()
    if use_death_signal and sys.platform == "linux":
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if not server and os.getppid() != parent_pid:
            os._exit(1)  # the parent ended before the signal was set
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_exit_with, args=(parent.sentinel,), name="lifeline", daemon=True).start()


def name_process(name: str) -> None:
    """What ``top`` calls this process, where it can be told; 15 letters are shown. Call in the main thread."""
    if sys.platform == "linux":
        _prctl(_PR_SET_NAME, name.encode()[:15])


def _exit_with(sentinel: int) -> None:
    connection.wait([sentinel])
    os._exit(1)


def _leave_fork_server() -> bool:
    """Drop the inherited write end of the fork server's alive pipe; True under ``forkserver``.

    The server ends when nobody holds that end any more. As long as its workers did, it outlived a killed trainer,
    and so did any worker that waits for the server's death to get its own signal.
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
    import ctypes

    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)
