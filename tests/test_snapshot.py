"""``tests.snapshot`` compares the run directories of two versions bit for bit and ignores times."""

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
    """Return a finished run and its contents; tests change copies of the run."""
    run = tmp_path_factory.mktemp("snapshot") / "run"
    settings = {"n_envs": 2, "n_steps": 16, "batch_size": 32, "n_epochs": 1, "timesteps": 64, "seed": 1, "quiet": True}
    corral.train("CartPole-v1", **settings, backend="serial", tensorboard=False, eval_freq=0, output_dir=str(run))
    config = run / "config.yaml"
    config.write_text(config.read_text().replace(str(run), "run"))  # copies of the run have another path
    return run, contents_of(run)


def flip_a_bit(path):
    """Flip the last bit of the first weight."""
    tensors = {name: array.copy() for name, array in safetensors.numpy.load_file(path).items()}
    tensors[min(tensors, key=lambda name: (tensors[name].size == 0, name))].reshape(-1).view(np.uint8)[0] ^= 1
    safetensors.numpy.save_file(tensors, path)


def set_value(name, new):
    """Return a function that sets one value of a JSON file."""

    def change(path):
        path.write_text(json.dumps({**json.loads(path.read_text()), name: new}))

    return change


def set_in_last_row(name, new):
    """Return a function that sets one metric in the last row of a metrics file."""

    def change(path):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        rows[-1][name] = new
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))

    return change


NEWEST = "checkpoints/ckpt-000000000064"
# File, change of it, and how many differences are reported (None: at least one).
CHANGES = [
    *((f"{NEWEST}/{name}.safetensors", flip_a_bit, 1) for name in ("policy", "optimizer", "envs")),
    (f"{NEWEST}/state.json", set_value("episodes", 7), 1),
    (f"{NEWEST}/state.json", set_value("more", 1), 2),
    (f"{NEWEST}/state.json", set_value("seconds", 7.0), 0),
    ("metrics.jsonl", set_in_last_row("train/loss", 0.0), 1),
    ("metrics.jsonl", set_in_last_row("time/fps", 0.0), 0),
    ("summary.json", set_value("weights_sha256", "0"), 1),
    ("summary.json", Path.unlink, None),
    ("progress.csv", lambda path: path.write_text(path.read_text().replace("train/loss", "loss")), None),
    ("more.txt", Path.touch, 1),
]


@pytest.mark.parametrize(
    ("file", "change", "n_lines"), CHANGES, ids=[f"{i} {change[0]}" for i, change in enumerate(CHANGES)]
)
def test_every_difference_between_two_runs_is_reported(contents, file, change, n_lines):
    run, before = contents
    copy = shutil.copytree(run, "copy/run")
    assert differences(before, contents_of(Path(copy))) == differences(before, before) == []
    change(Path(copy, file))
    reported = differences(before, contents_of(Path(copy)))
    assert reported and file in reported[0] if n_lines is None else len(reported) == n_lines, reported


def test_case_names_are_unique_and_the_short_form_has_a_few_of_them():
    names = [case.name for case in CASES]
    assert len({*names}) == len(names) and 6 <= sum(case.short for case in CASES) <= 10


@pytest.mark.deep
def test_a_version_of_the_code_equals_itself(capsys):
    assert main(["--base", "HEAD", "--short"]) == 0
    assert "runs are equal" in capsys.readouterr().out
