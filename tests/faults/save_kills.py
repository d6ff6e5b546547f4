"""Kills the save of a checkpoint at its first system call, at its second, and so on to its last.

Everything is imported once. Each save runs in a fork of its own, to which ``strace`` attaches; it kills the fork at the
start of one of its system calls. The files that are left are for test_saves.py to check.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import sys
from collections import Counter
from pathlib import Path

import torch

from corral.storage.checkpoint import Checkpoint, prune, save_checkpoint
from tests.faults.system import attach_strace

DISK_CALLS = (
    "?mkdir,mkdirat,?open,openat,?creat,write,writev,pwrite64,ftruncate,fallocate,fsync,fdatasync,"
    "?rename,renameat,renameat2,?link,linkat,?symlink,symlinkat,?unlink,unlinkat,?rmdir"
)
"""System calls that may change the disk (``?``: only where the machine has the call)."""
OLD, NEW = 1.0, 2.0
STEPS = {"next": (10, 20), "again": (10, 10)}
"""By case: the step of the existing checkpoint, and of the one that is being saved."""
_ANY_PROCESS = ctypes.c_ulong(-1)
_PR_SET_PTRACER = 0x59616D61


def make_checkpoint(steps: int, value: float) -> Checkpoint:
    """Return a small checkpoint whose weights are ``value``."""
    weights = {"w": torch.full((30, 20), value), "b": torch.arange(4.0).double()}
    state = {"timesteps": steps, "recent": [[1.5, 2]], "third": 1 / 3, "value": value}
    moments, lagged_weights = torch.full((30, 20), -value), torch.full((30, 20), value / 2)
    envs = torch.arange(9) * int(value)
    return Checkpoint(weights, {"exp_avg.w": moments}, state, {"at": envs}, {"w": lagged_weights})


def checkpoints_equal(a: Checkpoint, b: Checkpoint) -> bool:
    """Return whether two checkpoints are equal bit for bit."""
    parts = [
        (a.policy, b.policy),
        (a.optimizer, b.optimizer),
        (a.envs, b.envs),
        (a.lagged_weights or {}, b.lagged_weights or {}),
    ]
    return a.state == b.state and all(
        tensors.keys() == others.keys() and all(torch.equal(tensors[name], others[name]) for name in tensors)
        for tensors, others in parts
    )


def save(directory: Path, case: str) -> None:
    """Save a new checkpoint and remove the old one, as training does."""
    save_checkpoint(directory, make_checkpoint(STEPS[case][1], NEW))
    prune(directory, keep=1)


def _traced_save(directory: Path, case: str, *options: str) -> bool:
    """Save in a fork under strace with these options; return whether it was not killed."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    pid = os.fork()
    if pid == 0:
        try:
            # Allow strace to attach where only parents may trace.
            ctypes.CDLL(None).prctl(_PR_SET_PTRACER, _ANY_PROCESS, 0, 0, 0)
            signal.sigwait({signal.SIGUSR1})
            save(directory, case)
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        os._exit(0)
    tracer = attach_strace(pid, *options)
    os.kill(pid, signal.SIGUSR1)
    _, status = os.waitpid(pid, 0)
    tracer.communicate()
    code = os.waitstatus_to_exitcode(status)
    assert code in (0, -signal.SIGKILL), f"a save under {options} ended with {code}"
    return code == 0


def main(directory: Path, traced_calls: str) -> None:
    """Write ``<case>/<N>-<call>`` for every kill, and ``<case>/calls``, the system calls of an undisturbed save."""
    torch.set_num_threads(1)
    for case, (old_step, _) in STEPS.items():
        checkpoints, calls = directory / case / "undisturbed", directory / case / "calls"
        save_checkpoint(checkpoints, make_checkpoint(old_step, OLD))
        assert _traced_save(checkpoints, case, "-y", "-o", str(calls), "-e", f"trace={traced_calls}")
        shutil.rmtree(checkpoints)
        counts: Counter[str] = Counter()
        for n, call in enumerate(re.findall(r"^(\w+)\(", calls.read_text(), re.MULTILINE)):
            counts[call] += 1
            checkpoints = directory / case / f"{n:03d}-{call}"
            save_checkpoint(checkpoints, make_checkpoint(old_step, OLD))
            inject = f"inject={call}:signal=KILL:when={counts[call]}"
            assert not _traced_save(checkpoints, case, "-o", "/dev/null", "-e", inject), f"{inject} did not kill"


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
