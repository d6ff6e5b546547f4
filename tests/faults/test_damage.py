"""What a checkpoint or a config holds is data: damage is noticed, and nothing in it is ever executed."""

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
from tests.faults.save_kills import NEW, OLD, checkpoint, same

TENSORS = ("policy.safetensors", "optimizer.safetensors", "envs.safetensors", "behind.safetensors")
FILES = (*TENSORS, "state.json", "manifest.json")
SMALL = {"n_envs": 2, "n_steps": 32, "batch_size": 32, "n_epochs": 1, "eval_freq": 0, "seed": 1, "backend": "serial"}


def load_damaged(good, bad, name, data):
    """Load a copy in which one file holds something else; None if it was refused, as it should be."""
    shutil.copytree(good, bad, dirs_exist_ok=True)
    (bad / name).write_bytes(data)
    try:
        return load_checkpoint(bad)
    except CheckpointError as error:
        assert str(bad) in str(error)
        return None


@pytest.mark.parametrize("name", FILES)
def test_a_file_cut_off_at_any_length_is_refused(tmp_path, name):
    good = save_checkpoint(tmp_path / "good", checkpoint(10, OLD))
    data = (good / name).read_bytes()
    lengths = {len(data) * i // 50 for i in range(50)}
    assert len(lengths) == 50
    for length in lengths:
        assert load_damaged(good, tmp_path / "bad", name, data[:length]) is None, length


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit_is_refused_or_harmless(tmp_path, name):
    good = save_checkpoint(tmp_path / "good", checkpoint(10, OLD))
    data, rng = (good / name).read_bytes(), random.Random(name)
    for bit in rng.sample(range(8 * len(data)), 200):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        loaded = load_damaged(good, tmp_path / "bad", name, bytes(flipped))
        # White space in the manifest may become other white space; nothing else may change and still be taken.
        assert loaded is None or (name == "manifest.json" and same(loaded, checkpoint(10, OLD))), bit


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_missing_or_something_else_is_refused(tmp_path, name):
    good = save_checkpoint(tmp_path / "good", checkpoint(10, OLD))
    other = (save_checkpoint(tmp_path / "other", checkpoint(10, NEW)) / name).read_bytes()
    for data in (other, b"", b"null", b"[]", b"{}", b"\0" * 100):
        assert load_damaged(good, tmp_path / "bad", name, data) is None, data[:20]
    (good / name).unlink()
    with pytest.raises(CheckpointError, match="incomplete"):
        load_checkpoint(good)
    (good / name).mkdir()
    with pytest.raises(CheckpointError):
        load_checkpoint(good)


@pytest.mark.parametrize("state", [b"[]", b"{}", b'{"timesteps": "many"}', b"[" * 100_000, b'"\xff"', b"7"])
def test_a_state_that_its_manifest_vouches_for_must_still_be_one(tmp_path, state):
    path = save_checkpoint(tmp_path, checkpoint(10, OLD))
    (path / "state.json").write_bytes(state)
    vouch_for(path, "state.json")
    with pytest.raises(CheckpointError):
        load_checkpoint(path)


def test_the_newest_that_is_whole_is_used_whatever_happened_to_newer_ones(tmp_path):
    for steps in (10, 20, 30, 40):
        save_checkpoint(tmp_path, checkpoint(steps, OLD))
    (tmp_path / "ckpt-000000000040" / "policy.safetensors").write_bytes(b"")
    shutil.rmtree(tmp_path / "ckpt-000000000030")
    (tmp_path / "ckpt-000000000030").write_text("a file")
    (tmp_path / "ckpt-000000000099").mkdir()
    (tmp_path / ".saving-123").mkdir()
    found = newest_checkpoint(tmp_path)
    assert found.checkpoint.timesteps == 20
    assert len(found.problems) == 2 and "99" in found.problems[0] and "40" in found.problems[1]


# ---- code where data should be ------------------------------------------------------------------------------------------


@pytest.fixture
def evil(tmp_path):
    """A pickle, and an archive of torch, that leave a mark if anybody opens them; checked after the test."""
    mark = tmp_path / "owned"

    class Evil:
        def __reduce__(self):
            return os.system, (f"touch {mark}",)

    archive = io.BytesIO()
    torch.save(Evil(), archive)
    data = {"pickle": pickle.dumps(Evil()), "torch": archive.getvalue()}
    pickle.loads(data["pickle"])
    assert mark.exists()  # it works
    mark.unlink()
    yield data
    assert not mark.exists(), "code from a file was executed"


def vouch_for(path, name):
    """Make the manifest confirm a file that somebody changed."""
    manifest = json.loads((path / "manifest.json").read_bytes())
    manifest["sha256"][name] = hashlib.sha256((path / name).read_bytes()).hexdigest()
    (path / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", ["pickle", "torch"])
def test_a_pickle_under_any_name_is_refused_and_not_executed(tmp_path, evil, name, kind):
    path = save_checkpoint(tmp_path, checkpoint(10, OLD))
    (path / name).write_bytes(evil[kind])
    if name != "manifest.json":
        vouch_for(path, name)
    with pytest.raises(CheckpointError):
        load_checkpoint(path)


def test_a_run_directory_full_of_pickles_is_resumed_without_opening_one(tmp_path, evil, capsys):
    run = corral.train("CartPole-v1", **SMALL, timesteps=64, output_dir="run", quiet=True).run_dir
    extras = ("model.pt", "policy.pkl", "policy.pth", "data.pkl", "optimizer.pt", "env.pickle", "vecnormalize.pkl")
    for place in (run, run / "checkpoints", *(run / "checkpoints").iterdir()):
        for name in extras:
            (place / name).write_bytes(evil["torch" if "pt" in name else "pickle"])
    (run / "checkpoints" / "ckpt-000000000999").write_bytes(evil["pickle"])
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
def test_code_in_a_config_is_refused_and_not_executed(evil, capsys, text, verb):
    run = corral.train("CartPole-v1", **SMALL, timesteps=64, output_dir="run", quiet=True).run_dir
    (run / "config.yaml").write_bytes(evil["pickle"] if text is None else text.encode())
    assert main([verb, "run"]) == 2
    assert "cannot read config" in capsys.readouterr().err and not Path("owned").exists()
