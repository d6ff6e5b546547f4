"""Territory on the command line: curriculum stages, flags, evaluation and rendered games."""

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
SMALL_MAP = ["--env-kwargs", "size=32", "max_steps=16"]


def recorded_settings(name):
    """Return the budget, the stages and the env kwargs in the config of a run."""
    config = find_run(name).read_config()
    stages = [(stage.name, stage.options["num_bots"], stage.timesteps) for stage in config.stages]
    return config.timesteps, stages, config.env_kwargs


def test_the_curriculum_has_the_documented_stages():
    stages = [(stage["name"], stage["options"]["num_bots"], stage["timesteps"]) for stage in Territory.curriculum]
    assert stages == [("10-bots", 10, 100_000), ("25-bots", 25, 300_000), ("50-bots", 50, 500_000)]


@pytest.mark.parametrize(
    ("arguments", "expected"),
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
    ids=lambda value: " ".join(value) or "no arguments" if isinstance(value, list) else "",
)
def test_flags_of_the_curriculum_verb_set_budget_stages_and_env_kwargs(arguments, expected, monkeypatch):
    """Checks only the settings that the verb passes to training; another test below trains through the stages."""
    train_settings = {}
    monkeypatch.setattr(
        "corral.recipes.curriculum.train", lambda env, **settings: train_settings.update(settings, env=env)
    )
    monkeypatch.setattr("corral.cli.recipes._play_final_games", lambda *_: None)
    assert main(["curriculum", "territory", *arguments]) == 0
    stages = [(stage.name, stage.options["num_bots"], stage.timesteps) for stage in train_settings.get("stages", ())]
    assert (train_settings["timesteps"], stages, train_settings.get("env_kwargs", {})) == expected


def test_settings_given_twice_by_stages_flags_or_budgets_are_refused(capsys):
    Path("own.yaml").write_text("stages: [{name: a, options: {num_bots: 7}, timesteps: 32}]\n")
    assert main(["curriculum", "territory", "--config", "own.yaml", "--num-bots", "5"]) == 2
    assert "env_kwargs num_bots: the options of the stages set it too" in capsys.readouterr().err
    assert main(["curriculum", "territory", "--fast", "--timesteps", "90"]) == 2
    assert "a budget is given; leave one of them out" in capsys.readouterr().err
    assert main(["train", "territory", "--num-bots", "5", "--env-kwargs", "num_bots=6"]) == 2
    assert "num_bots is given twice" in capsys.readouterr().err
    assert main(["train", "territory", "--num-bots", ""]) == 2


def test_flags_override_the_config_file(monkeypatch):
    train_settings = {}
    monkeypatch.setattr("corral.cli.train.train", lambda env, **settings: train_settings.update(settings))
    monkeypatch.setattr("corral.cli.recipes._play_final_games", lambda *_: None)
    Path("own.yaml").write_text("env: territory\nenv_kwargs: {num_bots: 10, size: 32}\n")
    assert main(["train", "--config", "own.yaml", "--num-bots", "5"]) == 0
    assert train_settings["env_kwargs"] == {"num_bots": 5, "size": 32}


def test_the_example_script_trains_through_the_stages(run_script):
    arguments = ["--total-timesteps", "144", *TINY, *SMALL_MAP, "--save-path", "run"]
    assert run_script("train_territory", *arguments) == 0
    assert recorded_settings("run")[:2] == (144, [("10-bots", 10, 16), ("25-bots", 25, 48), ("50-bots", 50, None)])
    bots_alive = [row["info/bots_alive"] for row in read_metrics(Path("run/metrics.jsonl"))]
    assert max(bots_alive[:1]) <= 10 < max(bots_alive[2:4]) <= 25 < bots_alive[-1] <= 50
    for name in ("10-bots", "25-bots", "50-bots"):
        assert Path("run/phases", name, "progress.csv").exists() and any(
            Path("run/phases", name, "checkpoints").iterdir()
        )


def test_a_run_can_be_evaluated_watched_and_saved_as_an_image_or_a_clip(capsys):
    arguments = ["--timesteps", "32", *TINY, *SMALL_MAP, "--num-bots", "3", "--output-dir", "run"]
    assert main(["train", "territory", *arguments]) == 0
    assert recorded_settings("run")[2] == {"size": 32, "max_steps": 16, "num_bots": 3}
    assert main(["eval", "run", "--num-bots", "5", "--episodes", "2"]) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert "land_share, at the end" in output and "bots_alive, at the end │ 5 ±" in output
    for name in ("game.gif", "game.png"):
        assert main(["play", "run", "--save", name]) == 0 and Path(name).stat().st_size > 5_000
    assert main(["play", "run", "--watch", "--max-steps", "2"]) == 0
    assert "▀" in capsys.readouterr().out
    for arguments in (["--fps", "5"], ["--every", "2"]):
        assert main(["play", "run", "--save", "game.png", *arguments]) == 2
    assert main(["play", "run", "--env-kwargs", "size=48"]) == 2
    assert "other observations or actions" in capsys.readouterr().err
