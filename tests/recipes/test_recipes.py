"""The recipes do what they say: whom they play against, for how long, and what they leave behind."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from corral.cli.main import main
from corral.core.errors import UsageError
from corral.monitor.writers import read_metrics
from corral.recipes.curriculum import curriculum_stages
from corral.recipes.hybrid import hybrid
from corral.recipes.selfplay import selfplay
from corral.training.roles import Roles, roles_of, roles_of_names
from corral.training.run_directory import find_run
from tests.envs import Counter, HighCard

ENV = "tests.envs:HighCard"
SMALL = {"n_envs": 4, "n_steps": 32, "batch_size": 64, "n_epochs": 2, "eval_freq": 0, "tensorboard": False, "seed": 1}
FLAGS = ["--n-envs", "4", "--n-steps", "32", "--batch-size", "64", "--eval-freq", "0", "--seed", "1"]


def test_self_play_has_the_mix_that_it_promises():
    roles = Roles("random", "greedy")
    assert roles.selfplay(0.2, 0.2) == "mixed:checkpoint=0.3,greedy=0.3,current=0.2,random=0.2"
    assert roles.selfplay(0.5, 0.1) == "mixed:checkpoint=0.2,greedy=0.2,current=0.5,random=0.1"
    for weights in ((0.8, 0.3), (-0.1, 0.2)):
        with pytest.raises(UsageError, match="shares of the episodes"):
            roles.selfplay(*weights)
    result = selfplay(HighCard, timesteps=1024, checkpoint_freq=256, quiet=True, output_dir="run", **SMALL)
    assert {"random", "miser", "current", "checkpoint"} == result.summary.win_rates.keys()
    config = find_run("run").read_config()
    assert config.snapshot_freq == config.checkpoint_freq == 256
    assert read_metrics(Path("run/metrics.jsonl"))[-1]["opponents/pool_size"] == 3


def test_the_number_of_envs_does_not_change_when_past_selves_are_kept():
    for n in (2, 8):
        settings = {**SMALL, "n_envs": n, "n_steps": 128 // n}
        selfplay(HighCard, timesteps=1024, checkpoint_freq=256, quiet=True, output_dir=f"run{n}", **settings)
        sizes = [row.get("opponents/pool_size", 0) for row in read_metrics(Path(f"run{n}/metrics.jsonl"))]
        assert sizes == [0, 0, 1, 1, 2, 2, 3, 3]


def test_the_curricula_have_the_stages_that_they_promise():
    roles = Roles("random", "greedy")
    stages = [(s.name, s.opponent, s.timesteps, s.win_rate) for s in curriculum_stages(roles)]
    assert stages == [("random", "random", 50_000, 0.85), ("greedy", "greedy", 200_000, 0.55)]
    stages = [(s.opponent, s.timesteps, s.win_rate) for s in curriculum_stages(roles, "v2", fast=True)]
    assert stages == [("random", 20_000, 0.9), ("mixed:random=1,greedy=1", 20_000, 0.7), ("greedy", 40_000, 0.55)]


def test_hybrid_warms_up_against_the_teacher_and_then_plays_itself():
    result = hybrid(HighCard, timesteps=1280, checkpoint_freq=256, quiet=True, output_dir="run", **SMALL)
    warmup, mix = result.summary.stages
    assert (warmup["opponent"], warmup["steps"]) == ("miser", 256)
    assert mix["name"] == "mix" and result.summary.steps == 1280
    assert read_metrics(Path("run/phases/warmup/metrics.jsonl"))[-1]["opponents/win_rate/miser"] > 0
    with pytest.raises(UsageError, match="should be part of the 1,000 timesteps"):
        hybrid(HighCard, timesteps=1000, warmup=1000, **SMALL)


def test_parts_are_played_by_whom_an_env_has():
    assert roles_of_names(("random", "greedy", "mcts")) == Roles("random", "greedy")
    assert roles_of(HighCard, {}) == Roles("random", "miser")
    with pytest.raises(UsageError, match="has no opponents"):
        selfplay(Counter, timesteps=100, **SMALL)
    with pytest.raises(UsageError, match="says who the opponents are"):
        selfplay(HighCard, timesteps=100, opponent="random", **SMALL)


def test_the_verbs_train_and_end_with_games(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    verbs = {
        "selfplay": ["--timesteps", "256", "--current-weight", "0.4"],
        "curriculum": ["--preset", "v2", "--quick", "--timesteps", "256"],
        "hybrid": ["--timesteps", "640", "--net-arch", "16"],
        "train": ["--timesteps", "128", "--opponent", "mixed:miser=1,random=1"],
    }
    for verb, words in verbs.items():
        assert main([verb, ENV, *words, *FLAGS, "--eval-games", "10", "--output-dir", verb]) == 0
        out = capsys.readouterr().out
        assert "games of the final policy" in out and "95% interval" in out and "miser" in out, verb
        matches = json.loads(Path(verb, "matches.json").read_text())
        assert [match["games"] for match in matches] == [10, 10]
    assert main(["eval", "selfplay", "--env", ENV, "--opponent", "miser", "--vs", "train", "--games", "10"]) == 0
    out = capsys.readouterr().out
    assert "miser" in out and "train" in out and "10" in out
    assert main(["resume", "curriculum", "--env", ENV, "--timesteps", "512"]) == 0
    assert "stage random" in capsys.readouterr().out


def test_what_is_wrong_with_games_is_said_before_anything_runs(capsys):
    assert main(["selfplay", ENV, *FLAGS, "--eval-games", "7"]) == 2
    assert "--eval-games 7" in capsys.readouterr().err
    assert main(["train", ENV, *FLAGS, "--timesteps", "128", "--eval-games", "0", "--output-dir", "run"]) == 0
    assert main(["eval", "run", "--env", ENV, "--opponent", "greedy"]) == 2
    assert "unknown opponent 'greedy'" in capsys.readouterr().err
    assert main(["eval", "run", "--env", ENV, "--opponent", "miser", "--games", "5"]) == 2
    assert "even number" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("train_selfplay", ["--timesteps", "128"]),
        ("train_curriculum", ["--fast", "--timesteps", "128"]),
        ("train_curriculum_v2", ["--quick", "--timesteps", "128"]),
        ("train_hybrid_selfplay", ["--timesteps", "640", "--net-arch", "16", "16"]),
    ],
)
def test_the_scripts_are_thin(name, words, monkeypatch, capsys):
    examples = Path(__file__).parents[2] / "examples"
    monkeypatch.syspath_prepend(str(examples))
    monkeypatch.setattr(sys, "argv", [name, "--env", ENV, *words, *FLAGS, "--eval-games", "2", "--save-path", "out"])
    spec = importlib.util.spec_from_file_location("__main__", examples / f"{name}.py")
    with pytest.raises(SystemExit) as ended:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
    assert ended.value.code == 0
    assert Path("out/summary.json").exists() and "games of the final policy" in capsys.readouterr().out
