"""Territory as it is trained and shown: phases, flags, pictures."""

import importlib.util
import sys
from pathlib import Path

import pytest

from corral.cli.main import main
from corral.storage.metrics_file import read_metrics
from corral.storage.run_dir import find_run
from corral_games.territory.env import Territory

TINY = [
    "--n-envs",
    "2",
    "--n-steps",
    "8",
    "--batch-size",
    "16",
    "--n-epochs",
    "1",
    "--eval-freq",
    "0",
    "--device",
    "cpu",
]
SMALL = ["--env-kwargs", "size=32", "max_steps=16"]


def asked_of(name):
    config = find_run(name).read_config()
    stages = [(stage.name, stage.options["num_bots"], stage.timesteps) for stage in config.stages]
    return config.timesteps, stages, config.env_kwargs


def test_the_phases_are_the_ones_promised():
    phases = [(stage["name"], stage["options"]["num_bots"], stage["timesteps"]) for stage in Territory.curriculum]
    assert phases == [("10-bots", 10, 100_000), ("25-bots", 25, 300_000), ("50-bots", 50, 500_000)]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--num-bots", "3"], (900_000, [], {"num_bots": 3})),
        (["--no-curriculum"], (900_000, [], {})),
        (["--no-curriculum", "--num-bots", "5", "--total-timesteps", "64"], (64, [], {"num_bots": 5})),
        ([], (900_000, [("10-bots", 10, 100_000), ("25-bots", 25, 300_000), ("50-bots", 50, None)], {})),
        (
            ["--total-timesteps", "90000"],
            (90_000, [("10-bots", 10, 10_000), ("25-bots", 25, 30_000), ("50-bots", 50, None)], {}),
        ),
    ],
    ids=lambda value: " ".join(value) or "plain" if isinstance(value, list) else "",
)
def test_every_flag_is_honoured_by_itself(words, expected, monkeypatch):
    """What the verb asks of training; that stages are gone through is tested below, and elsewhere."""
    asked = {}
    monkeypatch.setattr("corral.recipes.curriculum.train", lambda env, **settings: asked.update(settings, env=env))
    monkeypatch.setattr("corral.cli.recipes._closing_games", lambda *_: None)
    assert main(["curriculum", "territory", *words]) == 0
    stages = [(stage.name, stage.options["num_bots"], stage.timesteps) for stage in asked.get("stages", ())]
    assert (asked["timesteps"], stages, asked.get("env_kwargs", {})) == expected


def test_what_stages_and_flags_both_say_is_refused(capsys):
    Path("own.yaml").write_text("stages: [{name: a, options: {num_bots: 7}, timesteps: 32}]\n")
    assert main(["curriculum", "territory", "--config", "own.yaml", "--num-bots", "5"]) == 2
    assert "env_kwargs num_bots: the options of the stages set it too" in capsys.readouterr().err
    assert main(["curriculum", "territory", "--fast", "--timesteps", "90"]) == 2
    assert "a budget is given; leave one of them out" in capsys.readouterr().err
    assert main(["train", "territory", "--num-bots", "5", "--env-kwargs", "num_bots=6"]) == 2
    assert "num_bots is given twice" in capsys.readouterr().err
    assert main(["train", "territory", "--num-bots", ""]) == 2


def test_flags_come_before_the_file(monkeypatch):
    asked = {}
    monkeypatch.setattr("corral.cli.train.train", lambda env, **settings: asked.update(settings))
    monkeypatch.setattr("corral.cli.recipes._closing_games", lambda *_: None)
    Path("own.yaml").write_text("env: territory\nenv_kwargs: {num_bots: 10, size: 32}\n")
    assert main(["train", "--config", "own.yaml", "--num-bots", "5"]) == 0
    assert asked["env_kwargs"] == {"num_bots": 5, "size": 32}


def test_the_script_trains_through_the_phases(monkeypatch):
    examples = Path(__file__).parents[2] / "examples"
    monkeypatch.syspath_prepend(str(examples))
    words = ["--total-timesteps", "144", *TINY, *SMALL, "--save-path", "run"]
    monkeypatch.setattr(sys, "argv", ["train_territory", *words])
    spec = importlib.util.spec_from_file_location("__main__", examples / "train_territory.py")
    with pytest.raises(SystemExit) as ended:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
    assert ended.value.code == 0
    assert asked_of("run")[:2] == (144, [("10-bots", 10, 16), ("25-bots", 25, 48), ("50-bots", 50, None)])
    bots = [row["info/bots_alive"] for row in read_metrics(Path("run/metrics.jsonl"))]
    assert max(bots[:1]) <= 10 < max(bots[2:4]) <= 25 < bots[-1] <= 50
    for name in ("10-bots", "25-bots", "50-bots"):
        assert Path("run/phases", name, "progress.csv").exists() and any(
            Path("run/phases", name, "checkpoints").iterdir()
        )


def test_a_run_can_be_evaluated_played_and_drawn(capsys):
    assert (
        main(["train", "territory", "--timesteps", "32", *TINY, *SMALL, "--num-bots", "3", "--output-dir", "run"]) == 0
    )
    assert asked_of("run")[2] == {"size": 32, "max_steps": 16, "num_bots": 3}
    assert main(["eval", "run", "--num-bots", "5", "--episodes", "2"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "land_share, at the end" in said and "bots_alive, at the end │ 5 ±" in said
    for name in ("game.gif", "game.png"):
        assert main(["play", "run", "--save", name]) == 0 and Path(name).stat().st_size > 5_000
    assert main(["play", "run", "--watch", "--max-steps", "2"]) == 0
    assert "▀" in capsys.readouterr().out
    for words in (["--fps", "5"], ["--every", "2"]):
        assert main(["play", "run", "--save", "game.png", *words]) == 2
    assert main(["play", "run", "--env-kwargs", "size=48"]) == 2
    assert "other observations or actions" in capsys.readouterr().err
