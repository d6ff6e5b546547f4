"""Processes and shared memory of a run as the system shows them, and tests for ``strace`` and mount namespaces."""

from __future__ import annotations

import contextlib
import functools
import shutil
import subprocess
from pathlib import Path

import psutil

RUN_ID = "CORRAL_TEST_RUN"
"""Environment variable that marks every process of a run; child processes inherit it."""

SHM = Path("/dev/shm")


def processes_of(run_id: str) -> list[psutil.Process]:
    """Return the live processes of a run."""
    processes = []
    for pid in psutil.pids():  # psutil.process_iter can leave out a process whose pid is used for the second time
        with contextlib.suppress(psutil.Error, OSError):
            process = psutil.Process(pid)
            if process.environ().get(RUN_ID) == run_id and process.status() != psutil.STATUS_ZOMBIE:
                processes.append(process)
    return processes


def shared_memory() -> set[str]:
    """Return the names of all segments of shared memory."""
    return {p.name for p in SHM.iterdir()} if SHM.exists() else set()


def is_mapped(name: str) -> bool:
    """Return whether a process maps the segment, or it is gone by now. Processes of this run have ended: it is of another."""
    path = str(SHM / name).encode()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            if path in maps.read_bytes():
                return True
    return not (SHM / name).exists()


def process_name(process: psutil.Process) -> str:
    """Return the current name of a process, or an empty string if it has ended."""
    with contextlib.suppress(psutil.Error, OSError):
        if process.status() != psutil.STATUS_ZOMBIE:
            return Path(f"/proc/{process.pid}/comm").read_text().strip()
    return ""


def command_line_of(process: psutil.Process) -> list[str]:
    """Return the command line of a process, or an empty list if it has ended."""
    with contextlib.suppress(psutil.Error, OSError):
        return process.cmdline()
    return []


def catches_signal(pid: int, number: int) -> bool:
    """Return whether a process has a handler for a signal; False if it has ended."""
    with contextlib.suppress(OSError):
        fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        return bool(int(fields["SigCgt"], 16) >> (number - 1) & 1)
    return False


def attach_strace(pid: int, *options: str) -> subprocess.Popen[str]:
    """Attach ``strace`` to a running process and return when it is attached; raise PermissionError if it may not."""
    tracer = subprocess.Popen(["strace", *options, "-p", str(pid)], stderr=subprocess.PIPE, text=True)
    assert tracer.stderr is not None
    message = tracer.stderr.readline()
    if "attached" not in message:
        tracer.wait()
        raise PermissionError(message)
    return tracer


@functools.cache
def can_trace() -> bool:
    """Return whether ``strace`` is installed and may attach to a process."""
    if shutil.which("strace") is None:
        return False
    sleeper = subprocess.Popen(["sleep", "60"])
    try:
        tracer = attach_strace(sleeper.pid, "-e", "trace=none")
    except PermissionError:
        return False
    finally:
        sleeper.kill()
        sleeper.wait()
    tracer.communicate()
    return True


@functools.cache
def can_mount() -> bool:
    """Return whether a file system can be mounted in a new mount namespace."""
    command = ["unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    return shutil.which("unshare") is not None and subprocess.run(command, capture_output=True).returncode == 0
