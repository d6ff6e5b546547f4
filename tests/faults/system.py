"""What the system shows of a run and can do to it: processes, shared memory, system calls, namespaces."""

from __future__ import annotations

import contextlib
import functools
import shutil
import subprocess
from pathlib import Path

import psutil

RUN_ID = "CORRAL_TEST_RUN"
"""Environment variable that marks every process of a run: what a process starts inherits it."""

SHM = Path("/dev/shm")


def processes_of(run_id: str) -> list[psutil.Process]:
    """Live processes that carry the run's mark."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(RUN_ID) == run_id and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def shared_memory() -> set[str]:
    """What lies in shared memory, by name."""
    return {p.name for p in SHM.iterdir()} if SHM.exists() else set()


def is_held(name: str) -> bool:
    """Whether some process has it mapped: then it belongs to another test, because ours are gone."""
    path = str(SHM / name).encode()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            if path in maps.read_bytes():
                return True
    return not (SHM / name).exists()


def name_of(process: psutil.Process) -> str:
    """The name that the process goes by now, empty if it is gone."""
    with contextlib.suppress(psutil.Error, OSError):
        if process.status() != psutil.STATUS_ZOMBIE:
            return Path(f"/proc/{process.pid}/comm").read_text().strip()
    return ""


def words_of(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.Error, OSError):
        return process.cmdline()
    return []


def attach_strace(pid: int, *options: str) -> subprocess.Popen[str]:
    """``strace`` on a process that runs already; returns when it is attached, raises if it may not."""
    tracer = subprocess.Popen(["strace", *options, "-p", str(pid)], stderr=subprocess.PIPE, text=True)
    assert tracer.stderr is not None
    said = tracer.stderr.readline()
    if "attached" not in said:
        tracer.wait()
        raise PermissionError(said)
    return tracer


@functools.cache
def can_trace() -> bool:
    """Whether ``strace`` is there and may attach to a process."""
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
@functools.cache
def can_mount() -> bool:
    """Whether a file system can be mounted in a namespace of one's own."""
    test = ["unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    return shutil.which("unshare") is not None and subprocess.run(test, capture_output=True).returncode == 0
