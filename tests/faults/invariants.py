"""What must hold after every end of a trainer, however it came.

No process of the run is left; shared memory is as before; the newest announced checkpoint verifies; steps are counted
exactly; and the exit code and the words on stderr are what users were promised.
"""

from __future__ import annotations

import contextlib
import re
import signal
import time
from typing import TYPE_CHECKING

import psutil
import yaml

from tests.faults.system import is_held, name_of, processes_of, shared_memory, words_of

if TYPE_CHECKING:
    from tests.faults.harness import Ended, Run

GONE_SECONDS = 30.0  # the promise is 5; a slow machine may need six times as long
"""How long after a trainer's end processes of its own may still be there."""
OUR_FRAMES = ("/corral/vec/", "/corral/rollout/", "/corral/processes/", "/corral/envs/lifecycle")
"""Parts of file names that must not be in a traceback that is called the env's own."""
EXIT_CODES = (0, 1, 2, 3, 130, 143, -signal.SIGKILL)


def check_nothing_is_left(run_id: str, shm_before: set[str]) -> None:
    """No process of the run, and no shared memory that nobody holds, a few seconds after its end."""
    deadline = time.monotonic() + GONE_SECONDS
    while (left := processes_of(run_id)) and time.monotonic() < deadline:
        time.sleep(0.05)
    described = [f"{p.pid} {name_of(p)} {' '.join(words_of(p))[:200]}" for p in left]
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    assert not left, f"processes left behind: {described}"
    orphaned = [name for name in shared_memory() - shm_before if not is_held(name)]
    assert not orphaned, f"left in shared memory: {orphaned}"


def check_checkpoint(run: Run) -> None:
    """The newest checkpoint loads, and is no older than the last one that was announced."""
    found = run.newest
    if run.announced >= 0:
        assert found is not None, f"a checkpoint at {run.announced} steps was announced, but there is none"
        assert not found.problems, found.problems
        assert found.checkpoint.timesteps >= run.announced, (found.path, run.announced)


def check_steps(run: Run, since: float) -> None:
    """Rows count every step once, and a summary that was written since then agrees with the last of them."""
    if not (run.path / "config.yaml").exists():
        return
    config = yaml.safe_load((run.path / "config.yaml").read_text())
    size, rows = config["n_steps"] * config["n_envs"], run.rows
    steps = [row["time/total_timesteps"] for row in rows]
    assert steps == [size * (i + 1) for i in range(len(steps))], f"steps of {size} were counted as {steps}"
    assert [row["time/iterations"] for row in rows] == [i + 1 for i in range(len(rows))]
    summary = run.path / "summary.json"
    if summary.exists() and summary.stat().st_mtime >= since:
        assert run.summary["steps"] == (steps[-1] if steps else 0), (run.summary, steps[-3:])


def check_words(ended: Ended) -> None:
    """A failure has one line that says why; no traceback but an env's own, and nothing bare."""
    ours, _, envs = ended.err.partition("The env's own traceback:")
    for bare in ("Traceback", "EOFError", "BrokenPipeError", "leaked"):
        assert bare not in ours, f"{bare} on stderr: {ended}"
    assert not [path for path in OUR_FRAMES if path in envs], f"our frames in the env's traceback: {ended}"
    if ended.code in (1, 2, 3):
        causes = re.findall(r"^corral \w+: \S.*", ours, re.MULTILINE)
        assert len(causes) == 1, f"expected one line that says why: {ended}"
