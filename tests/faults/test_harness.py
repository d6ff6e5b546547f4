"""The checks after every fault test find what they are meant to find."""

import mmap
import os
import signal
import subprocess
import sys

import pytest

from corral.reporting.writers import JsonLinesWriter
from tests.faults import invariants, system
from tests.faults.harness import Run, TrainerResult
from tests.faults.system import RUN_ID, shared_memory


def test_a_process_that_is_left_is_found_and_killed(monkeypatch):
    child = [sys.executable, "-c", "import time; print('started', flush=True); time.sleep(60)"]
    script = f"import subprocess as s; s.Popen({child}, stdout=s.PIPE, start_new_session=True).stdout.readline()"
    subprocess.run([sys.executable, "-c", script], env={**os.environ, RUN_ID: "mine"}, check=True)
    with monkeypatch.context() as patch, pytest.raises(AssertionError, match=r"processes left behind: .*sleep"):
        patch.setattr(invariants, "EXIT_SECONDS", 0.2)
        invariants.check_nothing_is_left("mine", shared_memory())
    invariants.check_nothing_is_left("mine", shared_memory())


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows which processes map memory")
def test_shared_memory_that_no_process_maps_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(system, "SHM", tmp_path)  # other tests use the real directory
    before = shared_memory()
    (tmp_path / "segment").write_bytes(bytes(4096))
    with (tmp_path / "segment").open("r+b") as file, mmap.mmap(file.fileno(), 4096):
        invariants.check_nothing_is_left("none", before)  # a process maps it, so it may be of another test
    with pytest.raises(AssertionError, match="left in shared memory"):
        invariants.check_nothing_is_left("none", before)


@pytest.mark.parametrize("steps", [[128, 256, 256], [128, 384], [256, 384], [256, 128]])
def test_steps_that_are_lost_or_counted_twice_are_found(tmp_path, steps):
    run = Run(tmp_path / "run")
    run.path.mkdir()
    (run.path / "config.yaml").write_text("n_steps: 32\nn_envs: 4\n")
    writer = JsonLinesWriter(run.path / "metrics.jsonl")
    for i, count in enumerate(steps):
        writer.write({"time/total_timesteps": count, "time/iterations": i + 1})
    writer.close()
    with pytest.raises(AssertionError, match="were counted as"):
        invariants.check_steps(run, since=0)


@pytest.mark.parametrize(
    ("code", "err"),
    [
        (1, "Traceback (most recent call last):\n  File ...\nEOFError\n"),
        (1, "EOFError"),
        (1, ""),
        (0, "Exception in thread parent-watch:\nTraceback (most recent call last):\n"),
        (1, "corral train: it went wrong\ncorral train: it went wrong\n"),
    ],
)
def test_messages_without_one_line_of_cause_are_found(code, err):
    with pytest.raises(AssertionError):
        invariants.check_messages(TrainerResult(code, "", err, 0.0))


def test_the_traceback_of_an_env_is_allowed():
    err = "corral train: step() raised ValueError\n\nThe env's own traceback:\nTraceback (most recent call last):\n"
    invariants.check_messages(TrainerResult(1, "", err, 0.0))


@pytest.mark.parametrize("file", ["vec/env_stepper", "rollout/worker", "processes/pool", "envs/lifecycle"])
def test_frames_of_corral_in_the_traceback_of_an_env_are_found(file):
    err = "corral train: step() raised ValueError\n\nThe env's own traceback:\nTraceback (most recent call last):\n"
    with pytest.raises(AssertionError, match="frames of Corral"):
        invariants.check_messages(
            TrainerResult(1, "", f'{err}  File "/site-packages/corral/{file}.py", line 1, in f\n', 0.0)
        )
    game_traceback = f'{err}  File "/site-packages/corral_games/territory/env.py", line 1, in step\n'
    invariants.check_messages(TrainerResult(1, "", game_traceback, 0.0))


def test_an_announced_checkpoint_that_is_missing_is_found(tmp_path):
    run = Run(tmp_path / "run")
    invariants.check_checkpoint(run)
    run.announced_step = 128
    with pytest.raises(AssertionError, match="128 steps was announced"):
        invariants.check_checkpoint(run)


@pytest.mark.deep
def test_workers_are_told_from_other_processes(make_run):
    trainer = make_run(env_kwargs={"pause": 0.002}).train()
    trainer.wait_for_rows(2)
    assert len(trainer.workers()) == 2 and trainer.pid not in {w.pid for w in trainer.workers()}
    trainer.signal(signal.SIGTERM)
    trainer.wait(143)
