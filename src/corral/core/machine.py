"""What the machine gives a process: cores, and how many threads its number libraries may start."""

from __future__ import annotations

import os

import threadpoolctl

__all__ = ["available_cores", "limit_compute_threads"]

_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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
