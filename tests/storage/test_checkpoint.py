import contextlib
import gc
import json
import os
import tracemalloc
from pathlib import Path

import pytest
import torch

from corral.core.errors import CheckpointError
from corral.storage.checkpoint import (
    Checkpoint,
    list_checkpoints,
    load_checkpoint,
    newest_checkpoint,
    prune,
    save_checkpoint,
    set_aside,
)


def checkpoint(steps=10, value=1.0, behind=False):
    weights = {"w": torch.full((3, 2), value), "b": torch.arange(4.0).double()}
    return Checkpoint(
        weights,
        {"exp_avg.w": torch.ones(3, 2)},
        {"timesteps": steps, "recent": [[1.5, 2]], "third": 1 / 3},
        {"episode": torch.arange(2), "actions/0": torch.zeros(0, 1)},
        weights if behind else None,
    )


def test_what_is_saved_is_loaded(tmp_path):
    path = save_checkpoint(tmp_path, checkpoint())
    loaded = load_checkpoint(path)
    assert {p.name for p in path.iterdir()} == {
        "policy.safetensors",
        "optimizer.safetensors",
        "envs.safetensors",
        "state.json",
        "manifest.json",
    }
    assert all(
        torch.equal(loaded.policy[k], v) and loaded.policy[k].dtype == v.dtype for k, v in checkpoint().policy.items()
    )
    assert loaded.state == checkpoint().state and loaded.lagged_weights is None
    assert torch.equal(loaded.envs["episode"], torch.arange(2)) and loaded.envs["actions/0"].shape == (0, 1)


def test_weights_that_lag_behind_are_saved_with_the_rest(tmp_path):
    path = save_checkpoint(tmp_path, checkpoint(behind=True))
    assert torch.equal(load_checkpoint(path).lagged_weights["w"], torch.ones(3, 2))
    manifest = json.loads((path / "manifest.json").read_text())
    del manifest["sha256"]["envs.safetensors"]
    (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match="its manifest names"):
        load_checkpoint(path)


def test_a_manifest_states_sizes_and_one_of_before_that_loads_too(tmp_path):
    path = save_checkpoint(tmp_path, checkpoint())
    manifest = json.loads((path / "manifest.json").read_text())
    assert manifest["format"] == 3
    assert manifest["bytes"] == {name: (path / name).stat().st_size for name in manifest["sha256"]}
    manifest["bytes"]["state.json"] += 1
    (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match="not what the manifest says"):
        load_checkpoint(path)
    del manifest["bytes"]
    (path / "manifest.json").write_text(json.dumps(manifest))
    assert load_checkpoint(path).timesteps == 10


def test_the_newest_valid_one_wins_loudly(tmp_path):
    for steps in (10, 20, 30):
        save_checkpoint(tmp_path, checkpoint(steps))
    newest = list_checkpoints(tmp_path)[-1]
    (newest / "policy.safetensors").write_bytes(b"x")
    found = newest_checkpoint(tmp_path)
    assert found.checkpoint.timesteps == 20 and found.path.name.endswith("20") and "is damaged" in found.problems[0]
    assert newest_checkpoint(tmp_path / "nowhere") is None
    for path in list_checkpoints(tmp_path):
        (path / "state.json").unlink()
    with pytest.raises(CheckpointError, match="no checkpoint can be used"):
        newest_checkpoint(tmp_path)


def test_a_failing_save_leaves_the_last_one_alone(tmp_path, monkeypatch):
    save_checkpoint(tmp_path, checkpoint(10))
    real = os.fsync
    calls = iter(range(100))

    def full(descriptor):
        if next(calls) == 2:
            raise OSError(28, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match=r"not saved .*No space left"):
        save_checkpoint(tmp_path, checkpoint(20))
    monkeypatch.undo()
    found = newest_checkpoint(tmp_path)
    assert found.checkpoint.timesteps == 10 and found.problems == ()
    assert [p.name for p in tmp_path.iterdir()] == ["ckpt-000000000010"]


def test_weights_that_are_not_finite_are_never_saved(tmp_path):
    with pytest.raises(CheckpointError, match="not finite"):
        save_checkpoint(tmp_path, checkpoint(20, float("nan")))
    assert list(tmp_path.iterdir()) == []


def test_old_ones_and_left_overs_are_cleared_away(tmp_path):
    for steps in (5, 10, 20, 1_000_000):
        save_checkpoint(tmp_path, checkpoint(steps))
    (tmp_path / ".saving-123").mkdir()
    prune(tmp_path, keep=2)
    assert [p.name for p in sorted(tmp_path.iterdir())] == ["ckpt-000000000020", "ckpt-000001000000"]


def test_checkpoints_of_a_lost_future_are_set_aside(tmp_path):
    for steps in (10, 20, 30):
        save_checkpoint(tmp_path, checkpoint(steps))
    set_aside(tmp_path, newer_than=10)
    save_checkpoint(tmp_path, checkpoint(15))
    prune(tmp_path, keep=1)
    assert newest_checkpoint(tmp_path).checkpoint.timesteps == 15  # not pruned in favour of what was damaged or lost
    assert len(list(tmp_path.glob("set-aside-*"))) == 2


def test_saving_a_step_again_replaces_it(tmp_path):
    save_checkpoint(tmp_path, checkpoint(10, value=1.0))
    save_checkpoint(tmp_path, checkpoint(10, value=2.0))
    assert float(newest_checkpoint(tmp_path).checkpoint.policy["w"][0, 0]) == 2.0
    assert len(list(tmp_path.iterdir())) == 1


def nest(path, levels=1500):
    """Make folders in folders; a full path to the last of them would be too long to make at once."""
    path.mkdir(parents=True)
    with contextlib.chdir(path):
        for _ in range(levels):
            Path("d").mkdir()
            os.chdir("d")


def flatten(path):
    """Delete what ``nest`` made, which pytest could not."""
    while (path / "d").exists():
        deeper = path / "d" / "d"
        if deeper.exists():
            deeper.rename(path / "e")
        (path / "d").rmdir()
        if (path / "e").exists():
            (path / "e").rename(path / "d")


@pytest.mark.parametrize("where", [".saving-1", "ckpt-000000000010", "ckpt-000000000020"])
def test_folders_too_deep_to_delete_do_not_end_a_run(tmp_path, where):
    nest(tmp_path / where / "x")
    try:
        save_checkpoint(tmp_path, checkpoint(20))
        prune(tmp_path, keep=1)
        save_checkpoint(tmp_path, checkpoint(30))
        assert newest_checkpoint(tmp_path).checkpoint.timesteps == 30
    finally:
        for path in tmp_path.glob("*/x"):
            flatten(path)


@pytest.mark.parametrize("usable", [0, 1])
def test_a_message_names_the_first_of_many_damaged_checkpoints(tmp_path, usable):
    if usable:
        save_checkpoint(tmp_path, checkpoint(1))
    for steps in range(1000, 1100):
        (tmp_path / f"ckpt-{steps:012d}").mkdir()
    if usable:
        told = newest_checkpoint(tmp_path).problems
    else:
        with pytest.raises(CheckpointError) as raised:
            newest_checkpoint(tmp_path)
        told = str(raised.value).split("; ")
    assert len(told) == 4 and "ckpt-000000001099" in told[0] and told[3] == "97 more cannot be used either"


def test_of_the_files_of_a_checkpoint_one_at_a_time_is_in_memory(tmp_path):
    size = 4 << 20
    part = {"x": torch.zeros(size, dtype=torch.uint8)}
    path = save_checkpoint(tmp_path, Checkpoint(part, part, {"timesteps": 1}, part))
    gc.collect()
    tracemalloc.start()
    try:
        loaded = load_checkpoint(path)
        now, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert loaded.timesteps == 1 and most - now < 2.5 * size  # the bytes of one file, and what parsing takes


def test_a_state_that_is_too_large_to_be_read_again_is_not_saved(tmp_path):
    first = save_checkpoint(tmp_path, checkpoint())
    larger = checkpoint(20)
    larger.state["text"] = "x" * (1 << 26)
    with pytest.raises(CheckpointError, match=r"not saved: state.json would have 67,108,\d+ bytes, of at most"):
        save_checkpoint(tmp_path, larger)
    assert [*tmp_path.iterdir()] == [first]
