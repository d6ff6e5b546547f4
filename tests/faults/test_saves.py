"""A save is complete or did not happen: killed at any system call, on a full disk, or where it may not write."""

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
from tests.faults.save_kills import CHANGES, NEW, OLD, STEPS, checkpoint, same
from tests.faults.system import attach_strace, can_mount, can_trace

traced = pytest.mark.skipif(not can_trace(), reason="strace is missing or may not attach to processes")


def value_of(found):
    """Which of the two checkpoints it is; it must be all of it."""
    value = found.checkpoint.state["value"]
    assert same(found.checkpoint, checkpoint(found.checkpoint.timesteps, value))
    return value


@traced
@pytest.mark.parametrize("calls", ["that change something", pytest.param("all", marks=pytest.mark.deep)])
def test_a_save_killed_at_any_system_call_leaves_the_old_or_the_new_checkpoint(tmp_path, calls):
    """What is left loads, and the next save clears up."""
    wanted = CHANGES if calls != "all" else "%file,%desc"
    command = [sys.executable, "-m", "tests.faults.save_kills", str(tmp_path), wanted]
    subprocess.run(command, env=environment(), cwd=ROOT, check=True)
    for case in STEPS:
        check_order((tmp_path / case / "calls").read_text().splitlines())
        left = sorted(path for path in (tmp_path / case).iterdir() if path.is_dir())
        calls = {path.name.partition("-")[2] for path in left}
        assert {"mkdir", "openat", "write", "fsync", "rename", "unlinkat", "rmdir"} <= calls
        values = []
        for path in left:
            found = newest_checkpoint(path)
            assert found is not None and found.problems == (), path
            values.append(value_of(found))
            save_checkpoint(path, checkpoint(30, NEW))
            prune(path, keep=1)
            assert [p.name for p in path.iterdir()] == ["ckpt-000000000030"], path
        assert values == sorted(values) and set(values) == {OLD, NEW}  # it changes once, and never back


def check_order(calls):
    """Against power cuts: files and their directory are synced before the rename, the name itself after it."""
    synced = [match[1] if (match := re.match(r"fsync\(\d+<.*/([^/>]+)>\)", call)) else "" for call in calls]
    named = re.compile(r'rename\("[^"]*/\.saving-[^"]*", "[^"]*/ckpt-')
    renamed = max(i for i, call in enumerate(calls) if named.match(call))
    before = set(synced[:renamed])
    assert {"policy.safetensors", "optimizer.safetensors", "envs.safetensors", "state.json", "manifest.json"} <= before
    assert any(name.startswith(".saving-") for name in before)
    assert synced[renamed + 1 :].count("whole") == 1


def test_what_a_killed_save_left_does_not_fill_the_disk(tmp_path, monkeypatch):
    """Left-overs go before the next save, not after: there might be no room for both."""
    save_checkpoint(tmp_path, checkpoint(10, OLD))
    for name in (".saving-1", ".saving-99999"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "policy.safetensors").write_bytes(b"half of i")
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(CheckpointError, match="No space left"):
        save_checkpoint(tmp_path, checkpoint(20, NEW))
    assert [p.name for p in tmp_path.iterdir()] == ["ckpt-000000000010"]


@pytest.mark.parametrize("case", list(STEPS))
def test_a_save_cut_off_at_any_length_is_reported_and_harms_nothing(tmp_path, case):
    before, after = STEPS[case]
    save_checkpoint(tmp_path, checkpoint(before, OLD))
    most = max(p.stat().st_size for p in next(tmp_path.iterdir()).iterdir())
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for limit in range(0, most, max(1, most // 40)):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        try:
            with pytest.raises(CheckpointError, match="not saved"):
                save_checkpoint(tmp_path, checkpoint(after, NEW))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert value_of(newest_checkpoint(tmp_path)) == OLD
        assert len(list(tmp_path.iterdir())) == 1
    save_checkpoint(tmp_path, checkpoint(after, NEW))
    assert value_of(newest_checkpoint(tmp_path)) == NEW


def test_a_save_without_permission_is_reported_and_harms_nothing(tmp_path):
    place = tmp_path / "checkpoints"
    save_checkpoint(place, checkpoint(10, OLD))
    place.chmod(0o555)
    if os.geteuid() == 0:  # who may do anything: be somebody else meanwhile
        os.seteuid(65534)
    try:
        with pytest.raises(CheckpointError, match=r"not saved .*Permission denied"):
            save_checkpoint(place, checkpoint(20, NEW))
    finally:
        if os.getuid() == 0:
            os.seteuid(0)
        place.chmod(0o755)
    assert value_of(newest_checkpoint(place)) == OLD and len(list_checkpoints(place)) == 1


# ---- in a run -----------------------------------------------------------------------------------------------------------


def test_a_run_goes_on_while_its_checkpoints_cannot_be_written(make_run):
    """Files may not grow as large as a checkpoint for a while; metrics still fit."""
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
    assert run.summary["weights_sha256"] == run.undisturbed(env_kwargs={})


def test_a_run_goes_on_without_a_free_descriptor(make_run):
    """It can open no file for a while: neither to save nor to look at its own memory."""
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
    assert run.summary["weights_sha256"] == run.undisturbed(env_kwargs={})


@pytest.mark.deep
@pytest.mark.skipif(not can_mount(), reason="mounting in a namespace of one's own is not permitted")
def test_a_run_goes_on_on_a_full_disk(make_run):
    """A disk of its own that another fills up; when there is room again, saves succeed again."""
    run = make_run(timesteps=1280, env_kwargs={"pause": 0.003}, net_arch=[128, 128])
    disk, kept = run.path, run.path.with_name("kept")
    disk.mkdir()
    script = f'mount -t tmpfs -o size=4m tmpfs "{disk}"; "$@"; code=$?; cp -a "{disk}" "{kept}"; exit $code'
    trainer = run.train(wrap=("unshare", "-m", "sh", "-c", script, "sh"), counted=False)
    trainer.wait_for(lambda: list_checkpoints(seen(trainer) / "checkpoints"), "a first checkpoint")
    fill(seen(trainer) / "filler")
    trainer.wait_for(lambda: "not saved" in trainer.err, "a save that fails")
    assert newest_checkpoint(seen(trainer) / "checkpoints") is not None
    (seen(trainer) / "filler").unlink()
    failed = trainer.err.count("not saved")
    run.path = kept  # where the shell leaves it
    trainer.wait()
    assert run.newest.checkpoint.timesteps == run.summary["steps"] == 1280
    assert trainer.err.count("not saved") <= failed + 1  # one may have been under way
    assert run.summary["weights_sha256"] == run.undisturbed(env_kwargs={})


def seen(trainer):
    """The run's directory as the trainer sees it."""
    return Path(f"/proc/{trainer.pid}/root{trainer.run.path}")


def fill(path):
    """Write until nothing more fits."""
    with path.open("wb", buffering=0) as file:
        for size in (65536, 4096, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue


@pytest.mark.deep
@pytest.mark.skipif(not can_mount(), reason="mounting in a namespace of one's own is not permitted")
def test_a_run_does_without_dev_shm(make_run):
    run = make_run()
    script = 'mount -t tmpfs -o size=4k,ro tmpfs /dev/shm && exec "$@"'
    run.train(wrap=("unshare", "-m", "sh", "-c", script, "sh")).wait()
    assert run.summary["weights_sha256"] == run.undisturbed()


@traced
@pytest.mark.deep
def test_a_run_killed_in_a_save_has_what_it_announced(make_run):
    """The trainer itself, as it syncs a file in the middle of a save."""
    run = make_run(timesteps=1280, env_kwargs={"pause": 0.003})
    trainer = run.train()
    trainer.wait_for_rows(2)
    tracer = attach_strace(trainer.pid, "-o", "/dev/null", "-e", "inject=fsync:signal=KILL:when=9")
    trainer.wait(-signal.SIGKILL)
    tracer.communicate()
    assert list((run.path / "checkpoints").glob(".saving-[0-9]*"))  # it was cut short, indeed
    run.resume().wait()
    assert not list((run.path / "checkpoints").glob(".*"))
    assert run.summary["steps"] == 1280
