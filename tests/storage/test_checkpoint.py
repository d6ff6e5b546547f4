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


def make_checkpoint(steps=10, value=1.0, lagged=False):
    weights = {"w": torch.full((3, 2), value), "b": torch.arange(4.0).double()}
    return Checkpoint(
        weights,
        {"exp_avg.w": torch.ones(3, 2)},
        {"timesteps": steps, "recent": [[1.5, 2]], "third": 1 / 3},
        {"episode": torch.arange(2), "actions/0": torch.zeros(0, 1)},
        weights if lagged else None,
    )


def test_a_loaded_checkpoint_equals_the_saved_one(tmp_path):
    path = save_checkpoint(tmp_path, make_checkpoint())
    loaded = load_checkpoint(path)
    assert {p.name for p in path.iterdir()} == {
        "policy.safetensors",
        "optimizer.safetensors",
        "envs.safetensors",
        "state.json",
        "manifest.json",
    }
    assert all(
        torch.equal(loaded.policy[name], tensor) and loaded.policy[name].dtype == tensor.dtype
        for name, tensor in make_checkpoint().policy.items()
    )
    assert loaded.state == make_checkpoint().state and loaded.lagged_weights is None
    assert torch.equal(loaded.envs["episode"], torch.arange(2)) and loaded.envs["actions/0"].shape == (0, 1)


def test_lagged_weights_are_saved_and_a_manifest_without_a_required_file_is_refused(tmp_path):
    path = save_checkpoint(tmp_path, make_checkpoint(lagged=True))
    assert torch.equal(load_checkpoint(path).lagged_weights["w"], torch.ones(3, 2))
    manifest = json.loads((path / "manifest.json").read_text())
    del manifest["sha256"]["envs.safetensors"]
    (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match="its manifest names"):
        load_checkpoint(path)


def test_a_manifest_has_file_sizes_that_are_checked_and_an_older_one_without_them_loads(tmp_path):
    path = save_checkpoint(tmp_path, make_checkpoint())
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


def test_the_newest_undamaged_checkpoint_is_used_and_damaged_ones_are_reported(tmp_path):
    for steps in (10, 20, 30):
        save_checkpoint(tmp_path, make_checkpoint(steps))
    newest = list_checkpoints(tmp_path)[-1]
    (newest / "policy.safetensors").write_bytes(b"x")
    newest_valid = newest_checkpoint(tmp_path)
    assert newest_valid.checkpoint.timesteps == 20 and newest_valid.path.name.endswith("20")
    assert "is damaged" in newest_valid.problems[0]
    assert newest_checkpoint(tmp_path / "nowhere") is None
    for path in list_checkpoints(tmp_path):
        (path / "state.json").unlink()
    with pytest.raises(CheckpointError, match="no checkpoint can be used"):
        newest_checkpoint(tmp_path)


def test_a_failed_save_keeps_the_checkpoint_before(tmp_path, monkeypatch):
    save_checkpoint(tmp_path, make_checkpoint(10))
    real_fsync = os.fsync
    calls = iter(range(100))

    def fail_in_third_call(descriptor):
        if next(calls) == 2:
            raise OSError(28, "No space left on device")
        real_fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fail_in_third_call)
    with pytest.raises(CheckpointError, match=r"not saved .*No space left"):
        save_checkpoint(tmp_path, make_checkpoint(20))
    monkeypatch.undo()
    newest_valid = newest_checkpoint(tmp_path)
    assert newest_valid.checkpoint.timesteps == 10 and newest_valid.problems == ()
    assert [p.name for p in tmp_path.iterdir()] == ["ckpt-000000000010"]


def test_weights_that_are_not_finite_are_never_saved(tmp_path):
    with pytest.raises(CheckpointError, match="not finite"):
        save_checkpoint(tmp_path, make_checkpoint(20, float("nan")))
    assert list(tmp_path.iterdir()) == []


def test_pruning_deletes_old_checkpoints_and_temporary_directories(tmp_path):
    for steps in (5, 10, 20, 1_000_000):
        save_checkpoint(tmp_path, make_checkpoint(steps))
    (tmp_path / ".saving-123").mkdir()
    prune(tmp_path, keep=2)
    assert [p.name for p in sorted(tmp_path.iterdir())] == ["ckpt-000000000020", "ckpt-000001000000"]


def test_checkpoints_newer_than_the_resumed_step_are_set_aside(tmp_path):
    for steps in (10, 20, 30):
        save_checkpoint(tmp_path, make_checkpoint(steps))
    set_aside(tmp_path, newer_than=10)
    save_checkpoint(tmp_path, make_checkpoint(15))
    prune(tmp_path, keep=1)
    # The checkpoint of step 15 is not pruned in favour of those that have more steps but are set aside.
    assert newest_checkpoint(tmp_path).checkpoint.timesteps == 15
    assert len(list(tmp_path.glob("set-aside-*"))) == 2


def test_saving_the_same_step_again_replaces_its_checkpoint(tmp_path):
    save_checkpoint(tmp_path, make_checkpoint(10, value=1.0))
    save_checkpoint(tmp_path, make_checkpoint(10, value=2.0))
    assert float(newest_checkpoint(tmp_path).checkpoint.policy["w"][0, 0]) == 2.0
    assert len(list(tmp_path.iterdir())) == 1


def make_nested_directories(path, levels=1500):
    """Make directories inside each other; the path of the innermost one is too long for a single call."""
    path.mkdir(parents=True)
    with contextlib.chdir(path):
        for _ in range(levels):
            Path("d").mkdir()
            os.chdir("d")


def delete_nested_directories(path):
    """Delete what ``make_nested_directories`` made; pytest cannot delete such long paths."""
    while (path / "d").exists():
        deeper = path / "d" / "d"
        if deeper.exists():
            deeper.rename(path / "e")
        (path / "d").rmdir()
        if (path / "e").exists():
            (path / "e").rename(path / "d")


@pytest.mark.parametrize("where", [".saving-1", "ckpt-000000000010", "ckpt-000000000020"])
def test_directories_too_deep_to_delete_do_not_fail_a_save(tmp_path, where):
    make_nested_directories(tmp_path / where / "x")
    try:
        save_checkpoint(tmp_path, make_checkpoint(20))
        prune(tmp_path, keep=1)
        save_checkpoint(tmp_path, make_checkpoint(30))
        assert newest_checkpoint(tmp_path).checkpoint.timesteps == 30
    finally:
        for path in tmp_path.glob("*/x"):
            delete_nested_directories(path)


@pytest.mark.parametrize("usable", [0, 1])
def test_a_message_names_only_the_first_three_of_many_damaged_checkpoints(tmp_path, usable):
    if usable:
        save_checkpoint(tmp_path, make_checkpoint(1))
    for steps in range(1000, 1100):
        (tmp_path / f"ckpt-{steps:012d}").mkdir()
    if usable:
        problems = newest_checkpoint(tmp_path).problems
    else:
        with pytest.raises(CheckpointError) as raised:
            newest_checkpoint(tmp_path)
        problems = str(raised.value).split("; ")
    assert len(problems) == 4 and "ckpt-000000001099" in problems[0] and problems[3] == "97 more cannot be used either"


def test_loading_a_checkpoint_holds_the_bytes_of_only_one_file_in_memory(tmp_path):
    size = 4 << 20
    tensors = {"x": torch.zeros(size, dtype=torch.uint8)}
    path = save_checkpoint(tmp_path, Checkpoint(tensors, tensors, {"timesteps": 1}, tensors))
    gc.collect()
    tracemalloc.start()
    try:
        loaded = load_checkpoint(path)
        allocated, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # Beyond the loaded tensors, there are the bytes of one file and a copy while it is parsed.
    assert loaded.timesteps == 1 and peak - allocated < 2.5 * size


def test_a_state_larger_than_the_limit_for_reading_is_not_saved(tmp_path):
    first = save_checkpoint(tmp_path, make_checkpoint())
    larger = make_checkpoint(20)
    larger.state["text"] = "x" * (1 << 26)
    with pytest.raises(CheckpointError, match=r"not saved: state.json would have 67,108,\d+ bytes, of at most"):
        save_checkpoint(tmp_path, larger)
    assert [*tmp_path.iterdir()] == [first]
