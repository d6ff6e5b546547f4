"""Kills a save at its first system call, at its second, and so on to its last.

Everything is imported once. Each save happens in a fork of its own, which waits to be attached to by ``strace``; that
kills it as it enters one of its calls. What is on disk then is left for others to look at.
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

CHANGES = (
    "?mkdir,mkdirat,?open,openat,?creat,write,writev,pwrite64,ftruncate,fallocate,fsync,fdatasync,"
    "?rename,renameat,renameat2,?link,linkat,?symlink,symlinkat,?unlink,unlinkat,?rmdir"
)
"""System calls after which something else may be on the disk (``?``: where the machine has them)."""
OLD, NEW = 1.0, 2.0
STEPS = {"next": (10, 20), "again": (10, 10)}
"""The step of the checkpoint that is there, and of the one that is being saved."""
_ANY = ctypes.c_ulong(-1)
_PR_SET_PTRACER = 0x59616D61


def checkpoint(steps: int, value: float) -> Checkpoint:
    """A small checkpoint that is told from others by its weights."""
    weights = {"w": torch.full((30, 20), value), "b": torch.arange(4.0).double()}
    state = {"timesteps": steps, "recent": [[1.5, 2]], "third": 1 / 3, "value": value}
    moments, envs, behind = torch.full((30, 20), -value), torch.arange(9) * int(value), torch.full((30, 20), value / 2)
    return Checkpoint(weights, {"exp_avg.w": moments}, state, {"at": envs}, {"w": behind})


def same(a: Checkpoint, b: Checkpoint) -> bool:
    """Whether two are the same to the last bit."""
    parts = [
        (a.policy, b.policy),
        (a.optimizer, b.optimizer),
        (a.envs, b.envs),
        (a.lagged_weights or {}, b.lagged_weights or {}),
    ]
    return a.state == b.state and all(
        x.keys() == y.keys() and all(torch.equal(x[name], y[name]) for name in x) for x, y in parts
    )


def save(directory: Path, case: str) -> None:
    """What training does to save: a new checkpoint, and what is too old goes."""
    save_checkpoint(directory, checkpoint(STEPS[case][1], NEW))
    prune(directory, keep=1)


def _traced_save(directory: Path, case: str, *options: str) -> bool:
    """Save in a fork, under strace with these options; whether it survived."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    pid = os.fork()
    if pid == 0:
        try:
            ctypes.CDLL(None).prctl(_PR_SET_PTRACER, _ANY, 0, 0, 0)  # where only parents may trace
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


def main(directory: Path, wanted: str) -> None:
    """Leaves ``<case>/<N>-<call>`` for every kill, and ``<case>/calls``, those of a save that nobody disturbed."""
    torch.set_num_threads(1)
    for case, (before, _) in STEPS.items():
        place, calls = directory / case / "whole", directory / case / "calls"
        save_checkpoint(place, checkpoint(before, OLD))
        assert _traced_save(place, case, "-y", "-o", str(calls), "-e", f"trace={wanted}")
        shutil.rmtree(place)
        counts: Counter[str] = Counter()
        for n, call in enumerate(re.findall(r"^(\w+)\(", calls.read_text(), re.MULTILINE)):
            counts[call] += 1
            place = directory / case / f"{n:03d}-{call}"
            save_checkpoint(place, checkpoint(before, OLD))
            inject = f"inject={call}:signal=KILL:when={counts[call]}"
            assert not _traced_save(place, case, "-o", "/dev/null", "-e", inject), f"{inject} did not kill"


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
