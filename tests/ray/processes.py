"""Finds the processes of a cluster by their log files: Ray's actors hide their environment variables and arguments."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from tests.faults.system import command_line_of, process_name

LEFT_SECONDS = 30.0
"""How long processes of a run may still exist after its trainer has ended: 10 s, and more on a slow machine."""


def processes_in(directory: Path) -> list[psutil.Process]:
    """Return the live processes that write their output into a file below this directory."""
    prefix, processes = f"{directory}/", []
    for pid in psutil.pids():
        with contextlib.suppress(psutil.Error, OSError):
            outputs = [os.readlink(f"/proc/{pid}/fd/{number}") for number in (1, 2)]  # noqa: PTH115 - of a socket, too
            process = psutil.Process(pid)
            if any(output.startswith(prefix) for output in outputs) and process_name(process):
                processes.append(process)
    return processes


def is_actor(process: psutil.Process) -> bool:
    """Return whether a process is a Ray actor that hosts an env group."""
    return "ray::GroupHost" in " ".join(command_line_of(process))


def is_of_run(process: psutil.Process) -> bool:
    """Return whether a process of a cluster is an actor of a run or was started by one. Ray's own have other names."""
    name, line = process_name(process), " ".join(command_line_of(process))
    return is_actor(process) or name.startswith("corral") or "multiprocessing" in line or "corral." in line


def descendants(pid: int) -> list[psutil.Process]:
    """Return the live child processes, and theirs."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return [p for p in psutil.Process(pid).children(recursive=True) if process_name(p)]
    return []


def check_no_process_is_left(processes: Callable[[], list[psutil.Process]]) -> float:
    """Wait until there are no such processes and return for how many seconds; fail, and kill them, if they stay."""
    start = time.monotonic()
    while (remaining := processes()) and time.monotonic() - start < LEFT_SECONDS:
        time.sleep(0.1)
    descriptions = [f"{p.pid} {process_name(p)} {' '.join(command_line_of(p))[:150]}" for p in remaining]
    for process in remaining:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    assert not remaining, f"processes left behind: {descriptions}"
    return time.monotonic() - start
