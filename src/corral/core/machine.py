"""What the machine gives a process: cores, memory, and how many threads its number libraries may start."""

from __future__ import annotations

import math
import os
from pathlib import Path

import psutil
import threadpoolctl

__all__ = ["CORES", "available_cores", "available_memory", "limit_compute_threads"]

CORES = "CORRAL_CORES"
"""The environment variable that tells a process to leave the other cores to somebody else."""
_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
_CGROUPS, _PROC = Path("/sys/fs/cgroup"), Path("/proc")


def available_cores() -> int:
    """Cores that this process may use: those it is bound to, no more than a container's share or ``CORRAL_CORES``."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    told = os.environ.get(CORES, "")
    return max(1, min(bound, math.ceil(_cgroup_cores()), int(told) if told.isdigit() else bound))


def available_memory() -> int:
    """Bytes that could still be used, by this machine and by the container, if there is one."""
    limits = [psutil.virtual_memory().available]
    for group in _own_cgroups():
        try:
            limits.append(int(_read(group / "memory.max")) - int(_read(group / "memory.current")))
        except (OSError, ValueError):  # no such limit, or "max"
            continue
    for group in _own_cgroups("memory"):
        try:  # version 1, where no limit is a number larger than any machine's memory
            limits.append(int(_read(group / "memory.limit_in_bytes")) - int(_read(group / "memory.usage_in_bytes")))
        except (OSError, ValueError):
            continue
    return max(0, min(limits))


def _cgroup_cores() -> float:
    """The share of processor time that control groups allow, in cores."""
    allowed = math.inf
    for group in _own_cgroups():
        try:
            quota, period = _read(group / "cpu.max").split()
            allowed = min(allowed, int(quota) / int(period))
        except (OSError, ValueError):
            continue
    for group in _own_cgroups("cpu"):
        try:  # version 1
            quota_us = int(_read(group / "cpu.cfs_quota_us"))
            if quota_us > 0:
                allowed = min(allowed, quota_us / int(_read(group / "cpu.cfs_period_us")))
        except (OSError, ValueError):
            continue
    return allowed if math.isfinite(allowed) else 1e9


def _own_cgroups(controller: str = "") -> list[Path]:
    """The group of this process and those around it; what a container sees as its root is one of them.

    Version 2, or version 1 of a ``controller``, which has a hierarchy of its own. A container may know its group only
    by a path outside of it; then the root is what there is.
    """
    root = _CGROUPS / controller
    try:
        lines = [line.split(":", 2) for line in _read(_PROC / "self" / "cgroup").splitlines()]
    except OSError:
        lines = []
    own = next((line[2] for line in lines if len(line) == 3 and controller in line[1].split(",")), None)
    if own is None:
        return [root] if controller else []
    group = root / own.strip("/")
    return [group, *(parent for parent in group.parents if parent.is_relative_to(root))]


def _read(path: Path) -> str:
    return path.read_text(encoding="ascii").strip()


def limit_compute_threads() -> None:
    """One thread for BLAS and its kin, or what ``OMP_NUM_THREADS`` says: the same wherever an env is stepped.

    The number of threads changes the last bits of a large product. If it differed between this process and the
    workers, so would a run that uses the one or the other. Libraries that are loaded already are told; those that
    will be loaded find it in the environment.
    """
    threads = os.environ.get("OMP_NUM_THREADS", "1")
    for name in _VARIABLES:
        os.environ.setdefault(name, threads)
    if threads.isdigit():
        threadpoolctl.threadpool_limits(int(threads), user_api="blas")
