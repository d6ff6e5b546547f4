"""Two versions of Corral are compared by what they leave, to the last bit, and times do not count."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

import corral
from tests.snapshot.__main__ import main
from tests.snapshot.cases import CASES
from tests.snapshot.contents import contents_of, differences


@pytest.fixture(scope="module")
def contents(tmp_path_factory):
    """A run and what it holds; tests change copies of it."""
    run = tmp_path_factory.mktemp("snapshot") / "run"
    settings = {"n_envs": 2, "n_steps": 16, "batch_size": 32, "n_epochs": 1, "timesteps": 64, "seed": 1, "quiet": True}
    corral.train("CartPole-v1", **settings, backend="serial", tensorboard=False, eval_freq=0, output_dir=str(run))
    config = run / "config.yaml"
    config.write_text(config.read_text().replace(str(run), "run"))  # copies lie elsewhere
    return run, contents_of(run)


def one_bit(path):
    """Flip the last bit of the first weight."""
    tensors = {name: array.copy() for name, array in safetensors.numpy.load_file(path).items()}
    tensors[min(tensors, key=lambda name: (tensors[name].size == 0, name))].reshape(-1).view(np.uint8)[0] ^= 1
    safetensors.numpy.save_file(tensors, path)


def value(name, new):
    def change(path):
        path.write_text(json.dumps({**json.loads(path.read_text()), name: new}))

    return change


def row(name, new):
    def change(path):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        rows[-1][name] = new
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))

    return change


NEWEST = "checkpoints/ckpt-000000000064"
CHANGES = [
    *((f"{NEWEST}/{name}.safetensors", one_bit, 1) for name in ("policy", "optimizer", "envs")),
    (f"{NEWEST}/state.json", value("episodes", 7), 1),
    (f"{NEWEST}/state.json", value("more", 1), 2),
    (f"{NEWEST}/state.json", value("seconds", 7.0), 0),
    ("metrics.jsonl", row("train/loss", 0.0), 1),
    ("metrics.jsonl", row("time/fps", 0.0), 0),
    ("summary.json", value("weights_sha256", "0"), 1),
    ("summary.json", Path.unlink, None),
    ("progress.csv", lambda path: path.write_text(path.read_text().replace("train/loss", "loss")), None),
    ("more.txt", Path.touch, 1),
]


@pytest.mark.parametrize(
    ("file", "change", "lines"), CHANGES, ids=[f"{i} {change[0]}" for i, change in enumerate(CHANGES)]
)
def test_whatever_differs_is_told(contents, file, change, lines):
    run, before = contents
    copy = shutil.copytree(run, "copy/run")
    assert differences(before, contents_of(Path(copy))) == differences(before, before) == []
    change(Path(copy, file))
    told = differences(before, contents_of(Path(copy)))
    assert told and file in told[0] if lines is None else len(told) == lines, told


def test_names_of_runs_are_unique():
    names = [case.name for case in CASES]
    assert len({*names}) == len(names) and 6 <= sum(case.short for case in CASES) <= 10


@pytest.mark.deep
def test_a_version_equals_itself(capsys):
    assert main(["--base", "HEAD", "--short"]) == 0
    assert "runs are equal" in capsys.readouterr().out
