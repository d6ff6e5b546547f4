"""Damaged checkpoints and configs are refused, and code in them is never executed."""

import hashlib
import io
import json
import os
import pickle
import random
import shutil
from pathlib import Path

import pytest
import torch

import corral
from corral.cli.main import main
from corral.core.errors import CheckpointError
from corral.storage.checkpoint import load_checkpoint, newest_checkpoint, save_checkpoint
from tests.faults.save_kills import NEW, OLD, checkpoints_equal, make_checkpoint

TENSORS = ("policy.safetensors", "optimizer.safetensors", "envs.safetensors", "behind.safetensors")
FILES = (*TENSORS, "state.json", "manifest.json")
SMALL = {"n_envs": 2, "n_steps": 32, "batch_size": 32, "n_epochs": 1, "eval_freq": 0, "seed": 1, "backend": "serial"}


def load_damaged(original, copy, name, data):
    """Load a copy of a checkpoint in which one file holds ``data``; return None if it is refused."""
    shutil.copytree(original, copy, dirs_exist_ok=True)
    (copy / name).write_bytes(data)
    try:
        return load_checkpoint(copy)
    except CheckpointError as error:
        assert str(copy) in str(error)
        return None


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_a_checkpoint_truncated_at_any_length_is_refused(tmp_path, name):
    good = save_checkpoint(tmp_path / "good", make_checkpoint(10, OLD))
    data = (good / name).read_bytes()
    lengths = {len(data) * i // 50 for i in range(50)}
    assert len(lengths) == 50
    for length in lengths:
        assert load_damaged(good, tmp_path / "bad", name, data[:length]) is None, length


@pytest.mark.parametrize("name", FILES)
def test_a_checkpoint_with_a_flipped_bit_is_refused_or_unchanged(tmp_path, name):
    good = save_checkpoint(tmp_path / "good", make_checkpoint(10, OLD))
    data, rng = (good / name).read_bytes(), random.Random(name)
    for bit in rng.sample(range(8 * len(data)), 200):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        loaded = load_damaged(good, tmp_path / "bad", name, bytes(flipped))
        # In the manifest, white space may become other white space; any other change must be refused.
        assert loaded is None or (name == "manifest.json" and checkpoints_equal(loaded, make_checkpoint(10, OLD))), bit


@pytest.mark.parametrize("name", FILES)
def test_a_checkpoint_with_a_missing_or_replaced_file_is_refused(tmp_path, name):
    good = save_checkpoint(tmp_path / "good", make_checkpoint(10, OLD))
    other = (save_checkpoint(tmp_path / "other", make_checkpoint(10, NEW)) / name).read_bytes()
    for data in (other, b"", b"null", b"[]", b"{}", b"\0" * 100):
        assert load_damaged(good, tmp_path / "bad", name, data) is None, data[:20]
    (good / name).unlink()
    with pytest.raises(CheckpointError, match="incomplete"):
        load_checkpoint(good)
    (good / name).mkdir()
    with pytest.raises(CheckpointError):
        load_checkpoint(good)


@pytest.mark.parametrize("state", [b"[]", b"{}", b'{"timesteps": "many"}', b"[" * 100_000, b'"\xff"', b"7"])
def test_an_invalid_state_with_a_matching_hash_is_refused(tmp_path, state):
    path = save_checkpoint(tmp_path, make_checkpoint(10, OLD))
    (path / "state.json").write_bytes(state)
    confirm_in_manifest(path, "state.json")
    with pytest.raises(CheckpointError):
        load_checkpoint(path)


def test_the_newest_intact_checkpoint_is_used_if_newer_ones_are_damaged(tmp_path):
    for steps in (10, 20, 30, 40):
        save_checkpoint(tmp_path, make_checkpoint(steps, OLD))
    (tmp_path / "ckpt-000000000040" / "policy.safetensors").write_bytes(b"")
    shutil.rmtree(tmp_path / "ckpt-000000000030")
    (tmp_path / "ckpt-000000000030").write_text("a file")
    (tmp_path / "ckpt-000000000099").mkdir()
    (tmp_path / ".saving-123").mkdir()
    newest = newest_checkpoint(tmp_path)
    assert newest.checkpoint.timesteps == 20
    assert len(newest.problems) == 2 and "99" in newest.problems[0] and "40" in newest.problems[1]


# ---- code instead of data ------------------------------------------------------------------------------------------------


@pytest.fixture
def malicious(tmp_path):
    """Return a pickle and a torch archive that create a file when they are loaded; check after the test that it is missing."""
    created = tmp_path / "owned"

    class CreatesFile:
        def __reduce__(self):
            return os.system, (f"touch {created}",)

    archive = io.BytesIO()
    torch.save(CreatesFile(), archive)
    data = {"pickle": pickle.dumps(CreatesFile()), "torch": archive.getvalue()}
    pickle.loads(data["pickle"])
    assert created.exists()  # the pickle works
    created.unlink()
    yield data
    assert not created.exists(), "code from a file was executed"


def confirm_in_manifest(path, name):
    """Write the hash of a changed file into the manifest."""
    manifest = json.loads((path / "manifest.json").read_bytes())
    manifest["sha256"][name] = hashlib.sha256((path / name).read_bytes()).hexdigest()
    (path / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", ["pickle", "torch"])
def test_a_pickle_under_any_name_is_refused_and_not_executed(tmp_path, malicious, name, kind):
    path = save_checkpoint(tmp_path, make_checkpoint(10, OLD))
    (path / name).write_bytes(malicious[kind])
    if name != "manifest.json":
        confirm_in_manifest(path, name)
    with pytest.raises(CheckpointError):
        load_checkpoint(path)


def test_a_run_directory_full_of_pickles_is_resumed_without_loading_them(tmp_path, malicious, capsys):
    run = corral.train("CartPole-v1", **SMALL, timesteps=64, output_dir="run", quiet=True).run_dir
    names = ("model.pt", "policy.pkl", "policy.pth", "data.pkl", "optimizer.pt", "env.pickle", "vecnormalize.pkl")
    for directory in (run, run / "checkpoints", *(run / "checkpoints").iterdir()):
        for name in names:
            (directory / name).write_bytes(malicious["torch" if "pt" in name else "pickle"])
    (run / "checkpoints" / "ckpt-000000000999").write_bytes(malicious["pickle"])
    for name in ("sitecustomize.py", "conftest.py", "CartPole-v1.py"):
        (run / name).write_text("raise SystemExit('imported')")
    assert main(["resume", "run", "--timesteps", "128"]) == 0
    assert main(["eval", "run", "--episodes", "1"]) == 0
    assert corral.load(run).timesteps == 128


@pytest.mark.parametrize(
    "text",
    [
        "!!python/object/apply:os.system ['touch owned']",
        "env: !!python/object/apply:os.system ['touch owned']\n",
        "env: CartPole-v1\nseed: !!python/name:os.system\n",
        "env: CartPole-v1\nenv_kwargs: {a: !!python/module:os }\n",
        None,
    ],
)
@pytest.mark.parametrize("verb", ["resume", "eval"])
def test_code_in_a_config_is_refused_and_not_executed(malicious, capsys, text, verb):
    run = corral.train("CartPole-v1", **SMALL, timesteps=64, output_dir="run", quiet=True).run_dir
    (run / "config.yaml").write_bytes(malicious["pickle"] if text is None else text.encode())
    assert main([verb, "run"]) == 2
    assert "cannot read config" in capsys.readouterr().err and not Path("owned").exists()
