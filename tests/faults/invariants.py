"""What must hold whenever a trainer has ended, for whatever reason.

No process of the run is left; shared memory is as before; the newest announced checkpoint verifies; steps are counted
exactly; and the exit code and the messages on stderr are those that are documented.
"""

from __future__ import annotations

import contextlib
import re
import signal
import time
from typing import TYPE_CHECKING

import psutil
import yaml

from tests.faults.system import command_line_of, is_mapped, process_name, processes_of, shared_memory

if TYPE_CHECKING:
    from tests.faults.harness import Run, TrainerResult

EXIT_SECONDS = 30.0  # guaranteed are 5; a slow machine may need six times as long
"""How long processes of a run may still exist after its trainer has ended."""
CORRAL_FRAMES = ("/corral/vec/", "/corral/rollout/", "/corral/processes/", "/corral/envs/lifecycle")
"""Parts of file names of Corral, which must not be in the traceback of an env."""
EXIT_CODES = (0, 1, 2, 3, 130, 143, -signal.SIGKILL)


def check_nothing_is_left(run_id: str, shm_before: set[str]) -> None:
    """Check that no process of the run exists, and no segment of shared memory that no process maps."""
    deadline = time.monotonic() + EXIT_SECONDS
    while (remaining := processes_of(run_id)) and time.monotonic() < deadline:
        time.sleep(0.05)
    descriptions = [f"{p.pid} {process_name(p)} {' '.join(command_line_of(p))[:200]}" for p in remaining]
    for process in remaining:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    assert not remaining, f"processes left behind: {descriptions}"
    orphaned = [name for name in shared_memory() - shm_before if not is_mapped(name)]
    assert not orphaned, f"left in shared memory: {orphaned}"


def check_checkpoint(run: Run) -> None:
    """Check that the newest checkpoint loads and is not older than the last one that was announced."""
    newest = run.newest
    if run.announced_step >= 0:
        assert newest is not None, f"a checkpoint at {run.announced_step} steps was announced, but there is none"
        assert not newest.problems, newest.problems
        assert newest.checkpoint.timesteps >= run.announced_step, (newest.path, run.announced_step)


def check_steps(run: Run, since: float) -> None:
    """Check that rows count every step once, and that a summary written after ``since`` agrees with the last row."""
    if not (run.path / "config.yaml").exists():
        return
    config = yaml.safe_load((run.path / "config.yaml").read_text())
    rollout_size, rows = config["n_steps"] * config["n_envs"], run.rows
    steps = [row["time/total_timesteps"] for row in rows]
    assert steps == [rollout_size * (i + 1) for i in range(len(steps))], (
        f"steps of {rollout_size} were counted as {steps}"
    )
    assert [row["time/iterations"] for row in rows] == [i + 1 for i in range(len(rows))]
    summary_file = run.path / "summary.json"
    if summary_file.exists() and summary_file.stat().st_mtime >= since:
        assert run.summary["steps"] == (steps[-1] if steps else 0), (run.summary, steps[-3:])


def check_messages(ended: TrainerResult) -> None:
    """Check that a failure has one line with its cause, and no traceback except that of an env."""
    messages, _, env_traceback = ended.err.partition("The env's own traceback:")
    for unwanted in ("Traceback", "EOFError", "BrokenPipeError", "leaked"):
        assert unwanted not in messages, f"{unwanted} on stderr: {ended}"
    assert not [path for path in CORRAL_FRAMES if path in env_traceback], (
        f"frames of Corral in the env's traceback: {ended}"
    )
    if ended.code in (1, 2, 3):
        causes = re.findall(r"^corral \w+: \S.*", messages, re.MULTILINE)
        assert len(causes) == 1, f"expected one line with the cause: {ended}"
