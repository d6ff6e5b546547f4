"""Run directories that earlier versions wrote are loaded, evaluated and resumed.

``tests/old_runs`` has them; ``make snapshot`` compares what resuming them gives with what another version gives.
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
    """A copy, because a resumed run writes to its directory."""
    return shutil.copytree(OLD_RUNS / request.param, request.param)


def test_there_is_one_of_each_kind():
    assert {"cartpole", "overlap", "recurrent", "self-play"} <= {*NAMES}


def test_an_old_run_is_evaluated(old_run, capsys):
    recorded = json.loads(Path(old_run, "summary.json").read_text())
    assert main(["eval", old_run, "--episodes", "2", "--checkpoint", "latest"]) == 0
    assert "mean reward" in capsys.readouterr().out
    model = corral.load(old_run, checkpoint="latest")
    assert model.timesteps == recorded["steps"] == 192
    assert weights_hash(model.policy.state_dict()) == recorded["weights_sha256"]


def test_an_old_run_is_restored_to_the_last_bit(old_run):
    """What a checkpoint of it saves at once, before the first rollout, is what it was restored from."""
    before = newest_checkpoint(Path(old_run, "checkpoints")).checkpoint

    class SaveAgain(corral.Hook):
        def on_start(self, start):
            saved.append(capture(start.run))
            start.stop("saved")

    saved = []
    corral.resume(old_run, timesteps=320, quiet=True, hooks=[SaveAgain()])
    (again,) = saved
    assert again.state == before.state
    for name in ("policy", "optimizer", "envs", "lagged_weights", "opponents", "reference"):
        one, other = getattr(before, name) or {}, getattr(again, name) or {}
        assert one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one), name


def test_an_old_run_is_resumed(old_run):
    rows = Path(old_run, "metrics.jsonl").read_text().splitlines()
    resumed = corral.resume(old_run, timesteps=320, quiet=True)
    assert resumed.summary.steps == 320
    longer = Path(old_run, "metrics.jsonl").read_text().splitlines()
    assert longer[: len(rows)] == rows and len(longer) == len(rows) + 2
    assert json.loads(longer[-1]).keys() >= json.loads(rows[-1]).keys() - {"eval/mean_reward", "eval/std_reward"}
