"""The cores and the memory that this process may use, and the number of threads of numerical libraries."""

from __future__ import annotations

import math
import os
from pathlib import Path

import psutil
import threadpoolctl

__all__ = ["CORES_VARIABLE", "available_cores", "available_memory", "limit_compute_threads"]

CORES_VARIABLE = "CORRAL_CORES"
"""Environment variable that limits the number of cores that a process uses."""
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
_CGROUPS, _PROC = Path("/sys/fs/cgroup"), Path("/proc")


def available_cores() -> int:
    """Return the number of cores that this process may use.

    It is the least of the CPU affinity, the CPU quota of the container (cgroup) and ``CORRAL_CORES``.
    """
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    variable = os.environ.get(CORES_VARIABLE, "")
    return max(1, min(affinity, math.ceil(_cgroup_cores()), int(variable) if variable.isdigit() else affinity))


def available_memory() -> int:
    """Return the bytes of memory that are free, on the machine and within the limit of the container (cgroup)."""
    limits = [psutil.virtual_memory().available]
    for group in _cgroup_directories():
        try:
            limits.append(int(_read(group / "memory.max")) - int(_read(group / "memory.current")))
        except (OSError, ValueError):  # there is no limit, or it is "max"
            continue
    for group in _cgroup_directories("memory"):
        try:  # cgroup version 1, where "no limit" is a number larger than the memory of any machine
            limits.append(int(_read(group / "memory.limit_in_bytes")) - int(_read(group / "memory.usage_in_bytes")))
        except (OSError, ValueError):
            continue
    return max(0, min(limits))


def _cgroup_cores() -> float:
    """Return the CPU quota of this process's cgroups in cores; 1e9 without a quota."""
    quota_cores = math.inf
    for group in _cgroup_directories():
        try:
            quota, period = _read(group / "cpu.max").split()
            quota_cores = min(quota_cores, int(quota) / int(period))
        except (OSError, ValueError):
            continue
    for group in _cgroup_directories("cpu"):
        try:  # cgroup version 1
            quota_us = int(_read(group / "cpu.cfs_quota_us"))
            if quota_us > 0:
                quota_cores = min(quota_cores, quota_us / int(_read(group / "cpu.cfs_period_us")))
        except (OSError, ValueError):
            continue
    return quota_cores if math.isfinite(quota_cores) else 1e9


def _cgroup_directories(controller: str = "") -> list[Path]:
    """Return the directories of this process's cgroup and its parents.

    Without a ``controller`` they are those of cgroup version 2. In version 1 each controller (``cpu``, ``memory``) has
    its own hierarchy. In a container the path of the cgroup may be one outside of the container; its limits are then in
    the root directory, which is one of the parents.
    """
    root = _CGROUPS / controller
    try:
        lines = [line.split(":", 2) for line in _read(_PROC / "self" / "cgroup").splitlines()]
    except OSError:
        lines = []
    path = next((line[2] for line in lines if len(line) == 3 and controller in line[1].split(",")), None)
    if path is None:
        return [root] if controller else []
    group = root / path.strip("/")
    return [group, *(parent for parent in group.parents if parent.is_relative_to(root))]


def _read(path: Path) -> str:
    return path.read_text(encoding="ascii").strip()


def limit_compute_threads() -> None:
    """Limit BLAS and OpenMP libraries to one thread, or to ``OMP_NUM_THREADS`` threads.

    The number of threads changes the last bits of a large matrix product. The limit is the same in this process and in
    workers, so that the result of a run does not depend on which of them steps the envs. It is set in libraries that
    are loaded already, and in the environment for those that are loaded later.
    """
    threads = os.environ.get("OMP_NUM_THREADS", "1")
    for name in _THREAD_VARIABLES:
        os.environ.setdefault(name, threads)
    if threads.isdigit():
        threadpoolctl.threadpool_limits(int(threads), user_api="blas")
