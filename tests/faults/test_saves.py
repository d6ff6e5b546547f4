"""A checkpoint is saved completely or not at all: after kills at any system call, on a full disk, without permission."""

import os
import re
import resource
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from corral.core.errors import CheckpointError
from corral.storage.checkpoint import list_checkpoints, newest_checkpoint, prune, save_checkpoint
from tests.faults.harness import ROOT, environment
from tests.faults.save_kills import DISK_CALLS, NEW, OLD, STEPS, checkpoints_equal, make_checkpoint
from tests.faults.system import attach_strace, can_mount, can_trace

needs_strace = pytest.mark.skipif(not can_trace(), reason="strace is missing or may not attach to processes")


def value_of(verified):
    """Return the value in a checkpoint, after a check that all of it is as it was saved."""
    value = verified.checkpoint.state["value"]
    assert checkpoints_equal(verified.checkpoint, make_checkpoint(verified.checkpoint.timesteps, value))
    return value


@needs_strace
@pytest.mark.parametrize("calls", ["that change something", pytest.param("all", marks=pytest.mark.deep)])
def test_a_save_killed_at_any_system_call_leaves_the_old_or_the_new_checkpoint(tmp_path, calls):
    """The remaining checkpoint loads, and the next save removes partial ones."""
    traced_calls = DISK_CALLS if calls != "all" else "%file,%desc"
    command = [sys.executable, "-m", "tests.faults.save_kills", str(tmp_path), traced_calls]
    subprocess.run(command, env=environment(), cwd=ROOT, check=True)
    for case in STEPS:
        check_order((tmp_path / case / "calls").read_text().splitlines())
        directories = sorted(path for path in (tmp_path / case).iterdir() if path.is_dir())
        killed_calls = {path.name.partition("-")[2] for path in directories}
        assert {"mkdir", "openat", "write", "fsync", "rename", "unlinkat", "rmdir"} <= killed_calls
        values = []
        for path in directories:
            newest = newest_checkpoint(path)
            assert newest is not None and newest.problems == (), path
            values.append(value_of(newest))
            save_checkpoint(path, make_checkpoint(30, NEW))
            prune(path, keep=1)
            assert [p.name for p in path.iterdir()] == ["ckpt-000000000030"], path
        assert values == sorted(values) and set(values) == {OLD, NEW}  # it changes once from old to new, and never back


def check_order(calls):
    """Check that files and their directory are synced before the rename, and the parent after it, against power cuts."""
    synced = [match[1] if (match := re.match(r"fsync\(\d+<.*/([^/>]+)>\)", call)) else "" for call in calls]
    rename_to_checkpoint = re.compile(r'rename\("[^"]*/\.saving-[^"]*", "[^"]*/ckpt-')
    renamed = max(i for i, call in enumerate(calls) if rename_to_checkpoint.match(call))
    synced_before = set(synced[:renamed])
    assert {
        "policy.safetensors",
        "optimizer.safetensors",
        "envs.safetensors",
        "state.json",
        "manifest.json",
    } <= synced_before
    assert any(name.startswith(".saving-") for name in synced_before)
    assert synced[renamed + 1 :].count("undisturbed") == 1


def test_partial_checkpoints_of_killed_saves_are_removed(tmp_path, monkeypatch):
    """They are removed before the save, not after: there may be no space for both."""
    save_checkpoint(tmp_path, make_checkpoint(10, OLD))
    for name in (".saving-1", ".saving-99999"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "policy.safetensors").write_bytes(b"half of i")
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(CheckpointError, match="No space left"):
        save_checkpoint(tmp_path, make_checkpoint(20, NEW))
    assert [p.name for p in tmp_path.iterdir()] == ["ckpt-000000000010"]


@pytest.mark.parametrize("case", list(STEPS))
def test_a_save_that_fails_at_any_length_is_reported_and_keeps_the_old_checkpoint(tmp_path, case):
    old_step, new_step = STEPS[case]
    save_checkpoint(tmp_path, make_checkpoint(old_step, OLD))
    largest_file = max(p.stat().st_size for p in next(tmp_path.iterdir()).iterdir())
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for limit in range(0, largest_file, max(1, largest_file // 40)):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        try:
            with pytest.raises(CheckpointError, match="not saved"):
                save_checkpoint(tmp_path, make_checkpoint(new_step, NEW))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert value_of(newest_checkpoint(tmp_path)) == OLD
        assert len(list(tmp_path.iterdir())) == 1
    save_checkpoint(tmp_path, make_checkpoint(new_step, NEW))
    assert value_of(newest_checkpoint(tmp_path)) == NEW


def test_a_save_without_permission_is_reported_and_keeps_the_old_checkpoint(tmp_path):
    directory = tmp_path / "checkpoints"
    save_checkpoint(directory, make_checkpoint(10, OLD))
    directory.chmod(0o555)
    if os.geteuid() == 0:  # root may write anywhere, so change the user
        os.seteuid(65534)
    try:
        with pytest.raises(CheckpointError, match=r"not saved .*Permission denied"):
            save_checkpoint(directory, make_checkpoint(20, NEW))
    finally:
        if os.getuid() == 0:
            os.seteuid(0)
        directory.chmod(0o755)
    assert value_of(newest_checkpoint(directory)) == OLD and len(list_checkpoints(directory)) == 1


# ---- in a run -----------------------------------------------------------------------------------------------------------


def test_a_run_continues_while_checkpoints_cannot_be_written(make_run):
    """For a while, a limit on the size of files is too small for a checkpoint, but not for metrics."""
    run = make_run(timesteps=1280, env_kwargs={"pause": 0.003}, net_arch=[128, 128])
    trainer = run.train()
    trainer.wait_for_rows(2)
    process = psutil.Process(trainer.pid)
    process.rlimit(resource.RLIMIT_FSIZE, (40_000, resource.RLIM_INFINITY))
    trainer.wait_for(lambda: trainer.err.count("not saved") >= 2, "two saves that fail")
    assert run.newest is not None
    process.rlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    ended = trainer.wait()
    assert "WARNING: checkpoint not saved" in ended.err and "the previous checkpoint is untouched" in ended.err
    assert run.newest.checkpoint.timesteps == run.summary["steps"] == 1280
    assert run.summary["weights_sha256"] == run.undisturbed_hash(env_kwargs={})


def test_a_run_continues_without_a_free_file_descriptor(make_run):
    """For a while, it can open no file: neither to save nor to read its memory use."""
    run = make_run(timesteps=1280, env_kwargs={"pause": 0.003}, backend="serial", num_workers=None)
    trainer = run.train()
    trainer.wait_for_rows(2)
    process = psutil.Process(trainer.pid)
    before = process.rlimit(resource.RLIMIT_NOFILE)
    process.rlimit(resource.RLIMIT_NOFILE, (3, before[1]))
    trainer.wait_for(lambda: trainer.err.count("not saved") >= 2, "two saves that fail")
    process.rlimit(resource.RLIMIT_NOFILE, before)
    trainer.wait()
    assert run.newest.checkpoint.timesteps == run.summary["steps"] == 1280
    assert run.summary["weights_sha256"] == run.undisturbed_hash(env_kwargs={})


@pytest.mark.deep
@pytest.mark.skipif(not can_mount(), reason="unshare is missing or mounting is not permitted")
def test_a_run_continues_on_a_full_disk(make_run):
    """The run has a disk of its own, which is filled; saves succeed again when there is space."""
    run = make_run(timesteps=1280, env_kwargs={"pause": 0.003}, net_arch=[128, 128])
    disk, copy = run.path, run.path.with_name("copy")
    disk.mkdir()
    script = f'mount -t tmpfs -o size=4m tmpfs "{disk}"; "$@"; code=$?; cp -a "{disk}" "{copy}"; exit $code'
    trainer = run.train(wrap=("unshare", "-m", "sh", "-c", script, "sh"), check_rows=False)
    trainer.wait_for(lambda: list_checkpoints(run_dir_seen_by(trainer) / "checkpoints"), "a first checkpoint")
    fill_disk(run_dir_seen_by(trainer) / "filler")
    trainer.wait_for(lambda: "not saved" in trainer.err, "a save that fails")
    assert newest_checkpoint(run_dir_seen_by(trainer) / "checkpoints") is not None
    (run_dir_seen_by(trainer) / "filler").unlink()
    n_failed = trainer.err.count("not saved")
    run.path = copy  # the shell copies the run there
    trainer.wait()
    assert run.newest.checkpoint.timesteps == run.summary["steps"] == 1280
    assert trainer.err.count("not saved") <= n_failed + 1  # one save may have been in progress
    assert run.summary["weights_sha256"] == run.undisturbed_hash(env_kwargs={})


def run_dir_seen_by(trainer):
    """Return the run directory as the trainer sees it, in its mount namespace."""
    return Path(f"/proc/{trainer.pid}/root{trainer.run.path}")


def fill_disk(path):
    """Write until the disk is full."""
    with path.open("wb", buffering=0) as file:
        for size in (65536, 4096, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue


@pytest.mark.deep
@pytest.mark.skipif(not can_mount(), reason="unshare is missing or mounting is not permitted")
def test_a_run_works_without_dev_shm(make_run):
    run = make_run()
    script = 'mount -t tmpfs -o size=4k,ro tmpfs /dev/shm && exec "$@"'
    run.train(wrap=("unshare", "-m", "sh", "-c", script, "sh")).wait()
    assert run.summary["weights_sha256"] == run.undisturbed_hash()


@needs_strace
@pytest.mark.deep
def test_a_run_killed_during_a_save_has_the_checkpoint_that_it_announced(make_run):
    """The trainer is killed when it syncs a file in the middle of a save."""
    run = make_run(timesteps=1280, env_kwargs={"pause": 0.003})
    trainer = run.train()
    trainer.wait_for_rows(2)
    tracer = attach_strace(trainer.pid, "-o", "/dev/null", "-e", "inject=fsync:signal=KILL:when=9")
    trainer.wait(-signal.SIGKILL)
    tracer.communicate()
    assert list((run.path / "checkpoints").glob(".saving-[0-9]*"))  # the save was not complete
    run.resume().wait()
    assert not list((run.path / "checkpoints").glob(".*"))
    assert run.summary["steps"] == 1280
