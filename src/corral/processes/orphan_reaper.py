"""Kill the processes that envs started, when their worker or the trainer ends, however it ends.

A worker ends with its parent (see ``parent_watch``), but an emulator that its env started would not. So every worker
leads a process group, and a small shell, in a session of its own, reads the list of groups from a pipe. The pipe closes
when the trainer ends. Then the shell kills the groups in the last line that it read. Each line is a complete list,
without groups that have ended: the system may have given their numbers to other processes.

A process may leave its group, as daemons do. On Linux it is found by a tag in its environment variables. On platforms
without process groups, the functions of this module do nothing.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable
from pathlib import Path

__all__ = ["end", "process_tag", "start_process_group", "tag_children", "watch"]

_TAG_VARIABLE = "CORRAL_PROCESS_TAG"
_STOP_SECONDS = 1.0  # how long the shell may take to end, before it is killed
_SCRIPT = """
trap '' HUP INT TERM
while read -r line; do list=$line; done
[ -n "$list" ] || exit 0
for group in $list; do kill -9 "-$group" "$group"; done
for pass in 1 2 3; do
    files=$(grep -lszF "$1" /proc/[0-9]*/environ)
    [ -n "$files" ] || exit 0
    for file in $files; do file=${file#/proc/}; kill -9 "${file%/environ}"; done
done
"""


def start_process_group() -> None:
    """Make this worker the leader of a new process group, before it starts any other process."""
    if sys.platform == "win32":
        return
    for number in (signal.SIGTTOU, signal.SIGTTIN):
        signal.signal(number, signal.SIG_IGN)  # they stop a background group that uses the terminal
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)


def tag_children() -> None:
    """Add this worker's pid to the tag in its environment, which the processes that it starts inherit."""
    if _TAG_VARIABLE in os.environ:
        os.environ[_TAG_VARIABLE] += f"-{os.getpid()}"


def process_tag() -> dict[str, str]:
    """Return the environment variable that tags a worker, and what it starts, as started by this process."""
    return {} if sys.platform == "win32" else {_TAG_VARIABLE: _reaper().process_tag}


def watch(pid: int) -> None:
    """Have a process, and its process group if it leads one, killed when this process ends."""
    if sys.platform != "win32":
        assert pid > 1, pid
        _reaper().watch(pid)


def end(pids: Iterable[int]) -> None:
    """Kill the process groups of these workers and all tagged processes that they started; each group only once.

    A worker that does not lead a group yet is not killed.
    Call this before a worker is joined, if possible. Until then, and as long as its group has a member, the system
    gives its pid to no other process.
    """
    if sys.platform != "win32":
        _reaper().end(set(pids))


class _OrphanReaper:
    """Holds the process groups of this process's workers, and runs the shell while there are any."""

    def __init__(self) -> None:
        self.process_tag = os.urandom(8).hex()
        self._lock = threading.RLock()  # reentrant: the garbage collector may close a pool at any moment
        self._groups: set[int] = set()
        self._shell: subprocess.Popen[bytes] | None = None
        self._pipe = -1

    def watch(self, group: int) -> None:
        """Add a group, and send the new list to the shell."""
        with self._lock:
            self._groups.add(group)
            self._send_groups()

    def end(self, groups: set[int]) -> None:
        """Kill groups that are in the list, remove them from it, and send the new list to the shell."""
        with self._lock:
            groups &= self._groups
            if not groups:
                return
            for group in groups:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(group, signal.SIGKILL)
            for pid in _find_tagged([f"{_TAG_VARIABLE}={self.process_tag}-{group}\0".encode() for group in groups]):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            self._groups -= groups
            self._send_groups()

    def close_pipe(self) -> None:
        """Close this process's end of the pipe."""
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1

    def _send_groups(self) -> None:
        """Send the list of groups to the shell; start the shell for the first group, and stop it after the last."""
        with contextlib.suppress(OSError):  # no shell or no descriptors: workers still end with their parent
            try:
                self._write()
            except BrokenPipeError:  # another process killed the shell
                self._stop_shell()
                self._write()
        if not self._groups:
            self._stop_shell()

    def _write(self) -> None:
        """Write the list of groups into the pipe, as one line."""
        if self._shell is None and self._groups:
            self._start_shell()
        line = f"{' '.join(map(str, sorted(self._groups)))}\n".encode()
        while line and self._shell is not None:
            line = line[os.write(self._pipe, line) :]

    def _start_shell(self) -> None:
        _close_pipes_after_fork()
        read_end, self._pipe = os.pipe()
        try:
            self._shell = subprocess.Popen(
                ["/bin/sh", "-c", _SCRIPT, "corral-orphan-reaper", f"{_TAG_VARIABLE}={self.process_tag}"],
                stdin=read_end,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"},  # without the tag
                start_new_session=True,
            )
        except BaseException:
            self.close_pipe()
            raise
        finally:
            os.close(read_end)

    def _stop_shell(self) -> None:
        """Close the pipe, at which the shell ends by itself, and wait for it."""
        self.close_pipe()
        shell, self._shell = self._shell, None
        if shell is not None:
            try:
                shell.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                shell.kill()
                shell.wait()


_reapers: dict[int, _OrphanReaper] = {}
"""By process id: a forked process has a copy of its parent's reaper, which it must not use."""


def _reaper() -> _OrphanReaper:
    """Return the reaper of this process."""
    return _reapers.setdefault(os.getpid(), _OrphanReaper())


@functools.cache
def _close_pipes_after_fork() -> None:
    """Have forked processes close their copies of the pipes; register that only once."""
    os.register_at_fork(after_in_child=_close_all)


def _close_all() -> None:
    """Close the pipes that a forked process inherited: while one is open, its shell does not see the trainer's end."""
    for reaper in _reapers.values():
        reaper.close_pipe()
    _reapers.clear()


def _find_tagged(tags: list[bytes]) -> list[int]:
    """Return the pids of processes that have one of these tags in their environment (on Linux)."""
    pids = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            environ = path.read_bytes()
            if any(tag in environ for tag in tags):
                pids.append(int(path.parent.name))
    return pids
