"""Run directories that earlier versions wrote are loaded, evaluated and resumed.

The run directories are in ``tests/old_runs``. ``make snapshot`` also resumes them with two versions of the code and
compares the results.
"""

import json
import shutil
from pathlib import Path

import pytest
import torch

import corral
from corral.cli.main import main
from corral.storage.checkpoint import newest_checkpoint
from corral.training.run import capture, weights_hash

OLD_RUNS = Path(__file__).with_name("old_runs")
NAMES = sorted(path.name for path in OLD_RUNS.iterdir())


@pytest.fixture(params=NAMES)
def old_run(request):
    """Return a copy of an old run, because a resumed run writes to its directory."""
    return shutil.copytree(OLD_RUNS / request.param, request.param)


def test_there_is_an_old_run_of_each_kind():
    assert {"cartpole", "overlap", "recurrent", "self-play"} <= {*NAMES}


def test_an_old_run_is_loaded_and_evaluated(old_run, capsys):
    summary = json.loads(Path(old_run, "summary.json").read_text())
    assert main(["eval", old_run, "--episodes", "2", "--checkpoint", "latest"]) == 0
    assert "mean reward" in capsys.readouterr().out
    model = corral.load(old_run, checkpoint="latest")
    assert model.timesteps == summary["steps"] == 192
    assert weights_hash(model.policy.state_dict()) == summary["weights_sha256"]


def test_an_old_run_is_restored_bit_for_bit(old_run):
    """A checkpoint that is captured after the restore, before the first rollout, equals the one that was loaded."""
    loaded = newest_checkpoint(Path(old_run, "checkpoints")).checkpoint

    class CaptureAtStart(corral.Hook):
        def on_start(self, start):
            captured.append(capture(start.run))
            start.stop("captured")

    captured = []
    corral.resume(old_run, timesteps=320, quiet=True, hooks=[CaptureAtStart()])
    (recaptured,) = captured
    assert recaptured.state == loaded.state
    for name in ("policy", "optimizer", "envs", "lagged_weights", "opponents", "reference"):
        loaded_tensors, recaptured_tensors = getattr(loaded, name) or {}, getattr(recaptured, name) or {}
        assert loaded_tensors.keys() == recaptured_tensors.keys() and all(
            torch.equal(loaded_tensors[key], recaptured_tensors[key]) for key in loaded_tensors
        ), name


def test_a_resumed_old_run_continues_its_metrics(old_run):
    rows_before = Path(old_run, "metrics.jsonl").read_text().splitlines()
    resumed = corral.resume(old_run, timesteps=320, quiet=True)
    assert resumed.summary.steps == 320
    rows_after = Path(old_run, "metrics.jsonl").read_text().splitlines()
    assert rows_after[: len(rows_before)] == rows_before and len(rows_after) == len(rows_before) + 2
    assert json.loads(rows_after[-1]).keys() >= json.loads(rows_before[-1]).keys() - {
        "eval/mean_reward",
        "eval/std_reward",
    }
