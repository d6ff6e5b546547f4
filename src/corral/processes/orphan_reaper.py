"""What an env starts does not outlive its worker, nor the trainer, however that one ends.

A worker dies with its parent (see ``parent_watch``), but an emulator that its env started would not. So every worker
leads a process group, and a tiny shell in a session of its own reads from a pipe which groups there are. The pipe ends
when the trainer does; then the shell kills the groups in the last line it read. Each line is the whole list, so a
number that went back to the system is not in it.

A process may leave its group, as a daemon does. On Linux it is found by a tag in the environment it was started with.
Where there are no process groups all of this does nothing.
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

_FAMILY = "CORRAL_FAMILY"
_STOP_SECONDS = 1.0
_SCRIPT = """
trap '' HUP INT TERM
while read -r line; do list=$line; done
[ -n "$list" ] || exit 0
for group in $list; do kill -9 "-$group"; done
for pass in 1 2 3; do
    found=$(grep -lszF "$1" /proc/[0-9]*/environ)
    [ -n "$found" ] || exit 0
    for file in $found; do file=${file#/proc/}; kill -9 "${file%/environ}"; done
done
"""


def start_process_group() -> None:
    """In a worker, first thing: what is started from here on belongs to a group of this worker's own."""
    if sys.platform == "win32":
        return
    for number in (signal.SIGTTOU, signal.SIGTTIN):
        signal.signal(number, signal.SIG_IGN)  # a group in the background is stopped for using the terminal
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)


def tag_children() -> None:
    """In a worker that was told its ``process_tag``: mark what it starts as its own."""
    if _FAMILY in os.environ:
        os.environ[_FAMILY] += f"-{os.getpid()}"


def process_tag() -> dict[str, str]:
    """The environment variable that makes a worker one of this process's family."""
    return {} if sys.platform == "win32" else {_FAMILY: _own().process_tag}


def watch(pid: int) -> None:
    """The group of this new worker is to end with this process."""
    if sys.platform != "win32":
        assert pid > 1, pid
        _own().watch(pid)


def end(pids: Iterable[int]) -> None:
    """Kill these workers, if they lead their groups by now, and all they started; do so only once for each.

    Best before a worker is reaped: until then nobody else can have its number, nor as long as its group has a member.
    """
    if sys.platform != "win32":
        _own().end(set(pids))


class _OrphanReaper:
    """The groups of this process's workers, and the shell that knows them while there are any."""

    def __init__(self) -> None:
        self.process_tag = os.urandom(8).hex()
        self._lock = threading.RLock()  # a pool may be closed by the garbage collector, at any moment
        self._groups: set[int] = set()
        self._shell: subprocess.Popen[bytes] | None = None
        self._pipe = -1

    def watch(self, group: int) -> None:
        with self._lock:
            self._groups.add(group)
            self._send_groups()

    def end(self, groups: set[int]) -> None:
        with self._lock:
            groups &= self._groups
            if not groups:
                return
            for group in groups:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(group, signal.SIGKILL)
            for pid in _find_tagged([f"{_FAMILY}={self.process_tag}-{group}\0".encode() for group in groups]):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            self._groups -= groups
            self._send_groups()

    def close_pipe(self) -> None:
        """Give up our end of the pipe."""
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1

    def _send_groups(self) -> None:
        """Make the list known; the shell begins with its first group and ends with its last."""
        with contextlib.suppress(OSError):  # neither shell nor descriptors: the workers' lifelines are what there is
            try:
                self._write()
            except BrokenPipeError:  # somebody ended the shell
                self._stop()
                self._write()
        if not self._groups:
            self._stop()

    def _write(self) -> None:
        if self._shell is None and self._groups:
            self._start()
        line = f"{' '.join(map(str, sorted(self._groups)))}\n".encode()
        while line and self._shell is not None:
            line = line[os.write(self._pipe, line) :]

    def _start(self) -> None:
        _hook_forks()
        theirs, self._pipe = os.pipe()
        try:
            self._shell = subprocess.Popen(
                ["/bin/sh", "-c", _SCRIPT, "corral-guardian", f"{_FAMILY}={self.process_tag}"],
                stdin=theirs,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"},  # no tag, of no family
                start_new_session=True,
            )
        except BaseException:
            self.close_pipe()
            raise
        finally:
            os.close(theirs)

    def _stop(self) -> None:
        self.close_pipe()
        shell, self._shell = self._shell, None
        if shell is not None:
            try:
                shell.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                shell.kill()
                shell.wait()


_guardians: dict[int, _OrphanReaper] = {}
"""By process id: a forked process has a copy of its parent's, and must not use it."""


def _own() -> _OrphanReaper:
    return _guardians.setdefault(os.getpid(), _OrphanReaper())


@functools.cache
def _hook_forks() -> None:
    os.register_at_fork(after_in_child=_close_all)


def _close_all() -> None:
    """In a forked process: as long as it held the pipe, the shell would not see the trainer's end."""
    for guardian in _guardians.values():
        guardian.close_pipe()
    _guardians.clear()


def _find_tagged(tags: list[bytes]) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            environ = path.read_bytes()
            if any(tag in environ for tag in tags):
                found.append(int(path.parent.name))
    return found
