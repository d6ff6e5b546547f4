"""The recipes for self-play and curricula: their opponents, stages and budgets, and the files that they write."""

import json
import signal
from pathlib import Path

import pytest
import yaml

import corral
from corral.cli.main import main
from corral.core.errors import UsageError
from corral.opponents.presets import ReferenceOpponents, reference_opponents_of_names
from corral.recipes.curriculum import curriculum, curriculum_stages
from corral.recipes.hybrid import hybrid
from corral.recipes.recipe_settings import reference_opponents
from corral.recipes.selfplay import selfplay
from corral.storage.metrics_file import read_metrics
from corral.storage.run_dir import find_run
from corral.training.closing import summarize
from tests.toy_envs import Counter, HighCard

ENV = "tests.toy_envs:HighCard"
SMALL = {"n_envs": 4, "n_steps": 32, "batch_size": 64, "n_epochs": 2, "eval_freq": 0, "tensorboard": False, "seed": 1}
FLAGS = [
    "--n-envs",
    "4",
    "--n-steps",
    "32",
    "--batch-size",
    "64",
    "--eval-freq",
    "0",
    "--seed",
    "1",
    "--backend",
    "serial",
]


def test_self_play_trains_against_the_documented_mix_of_opponents():
    references = ReferenceOpponents("random", "greedy")
    assert references.selfplay(0.2, 0.2) == "mixed:checkpoint=0.3,greedy=0.3,current=0.2,random=0.2"
    assert references.selfplay(0.5, 0.1) == "mixed:checkpoint=0.2,greedy=0.2,current=0.5,random=0.1"
    for weights in ((0.8, 0.3), (-0.1, 0.2)):
        with pytest.raises(UsageError, match="shares of the episodes"):
            references.selfplay(*weights)
    result = selfplay(HighCard, timesteps=1024, checkpoint_freq=256, quiet=True, output_dir="run", **SMALL)
    assert {"random", "miser", "current", "checkpoint"} == result.summary.win_rates.keys()
    config = find_run("run").read_config()
    assert config.snapshot_freq == config.checkpoint_freq == 256
    assert read_metrics(Path("run/metrics.jsonl"))[-1]["opponents/pool_size"] == 3


def test_snapshots_are_taken_at_the_same_steps_for_any_number_of_envs():
    for n_envs in (2, 8):
        settings = {**SMALL, "n_envs": n_envs, "n_steps": 128 // n_envs}
        selfplay(HighCard, timesteps=1024, checkpoint_freq=256, quiet=True, output_dir=f"run{n_envs}", **settings)
        pool_sizes = [row.get("opponents/pool_size", 0) for row in read_metrics(Path(f"run{n_envs}/metrics.jsonl"))]
        assert pool_sizes == [0, 0, 1, 1, 2, 2, 3, 3]


def test_curriculum_presets_have_the_documented_stages():
    references = ReferenceOpponents("random", "greedy")
    stages = [(stage.name, stage.opponent, stage.timesteps, stage.win_rate) for stage in curriculum_stages(references)]
    assert stages == [("random", "random", 50_000, 0.85), ("greedy", "greedy", 200_000, 0.55)]
    stages = [
        (stage.opponent, stage.timesteps, stage.win_rate) for stage in curriculum_stages(references, "v2", fast=True)
    ]
    assert stages == [("random", 20_000, 0.9), ("mixed:random=1,greedy=1", 20_000, 0.7), ("greedy", 40_000, 0.55)]


def test_hybrid_warms_up_against_the_strongest_scripted_opponent_before_self_play():
    result = hybrid(HighCard, timesteps=1280, checkpoint_freq=256, quiet=True, output_dir="run", **SMALL)
    warmup_stage, mix_stage = result.summary.stages
    assert (warmup_stage["played"], warmup_stage["steps"]) == ("against miser", 256)
    assert mix_stage["name"] == "mix" and result.summary.steps == 1280
    assert read_metrics(Path("run/phases/warmup/metrics.jsonl"))[-1]["opponents/win_rate/miser"] > 0
    with pytest.raises(UsageError, match="should be part of the 1,000 timesteps"):
        hybrid(HighCard, timesteps=1000, warmup=1000, **SMALL)


def test_hybrid_ends_with_its_budget_of_steps_episodes_or_hours():
    settings = {**SMALL, "checkpoint_freq": 256, "quiet": True}
    hybrid(HighCard, timesteps=640, output_dir="run", **settings)
    assert corral.resume("run", env=HighCard, timesteps=1024, quiet=True).summary.steps == 1024
    result = hybrid(HighCard, num_episodes=60, warmup=128, output_dir="episodes", **settings)
    assert result.summary.exit_reason == "num_episodes" and result.summary.stages[0]["steps"] == 128
    config = find_run("episodes").read_config()
    assert config.timesteps is None and config.stages[1].timesteps is None
    result = hybrid(HighCard, duration=1e-9, output_dir="hours", **settings)
    assert result.summary.exit_reason == "duration"
    assert find_run("hours").read_config().stages[0].timesteps == 200_000
    with pytest.raises(UsageError, match="warmup 0: should be at least 1"):
        hybrid(HighCard, num_episodes=5, warmup=0, **SMALL)


def test_settings_of_a_config_file_are_used_or_refused_like_keyword_arguments():
    Path("own.yaml").write_text(yaml.safe_dump({"env": "x", "env_kwargs": {"rounds": 3}, "checkpoint_freq": 128}))
    settings = {**SMALL, "timesteps": 256, "quiet": True, "config": "own.yaml"}
    for recipe in (selfplay, hybrid, curriculum):
        recipe(HighCard, output_dir=recipe.__name__, **settings)
        config = find_run(recipe.__name__).read_config()
        assert config.env_kwargs == {"rounds": 3} and config.checkpoint_freq == 128
    Path("stages.yaml").write_text("stages: [{name: one, opponent: random, timesteps: 128}]\n")
    Path("opponent.yaml").write_text("opponent: random\n")
    for file, recipes in {"stages.yaml": (selfplay, hybrid), "opponent.yaml": (selfplay, hybrid, curriculum)}.items():
        for recipe in recipes:
            with pytest.raises(UsageError, match=f"{Path(file).stem}: .* the opponents"):
                recipe(HighCard, config=file, **SMALL)
    with pytest.raises(UsageError, match="stages: this recipe chooses"):
        hybrid(HighCard, stages=[{"name": "a", "opponent": "random"}], **SMALL)


def test_a_preset_is_refused_if_the_config_defines_stages(capsys):
    Path("stages.yaml").write_text("stages: [{name: one, opponent: random, timesteps: 128}]\n")
    for arguments in (["--preset", "v1"], ["--fast"]):
        assert main(["curriculum", ENV, *FLAGS, "--config", "stages.yaml", *arguments]) == 2
        assert "but stages are given" in capsys.readouterr().err
    arguments = ["--eval-games", "0", "--output-dir", "run"]
    assert main(["curriculum", ENV, *FLAGS, "--config", "stages.yaml", *arguments]) == 0
    assert [stage.name for stage in find_run("run").read_config().stages] == ["one"]


def test_stage_names_are_unique_and_valid_directory_names():
    names = [stage.name for stage in curriculum_stages(ReferenceOpponents("very weak", "../mixed"), "v2")]
    assert names == ["very-weak", "mixed", "mixed-3"]
    assert [stage.name for stage in curriculum_stages(ReferenceOpponents("only", "only"))] == ["only", "only-2"]
    with pytest.raises(UsageError, match="stages"):
        corral.train(HighCard, stages=[{"name": ".", "opponent": "random"}], **SMALL)


def test_without_checkpoints_snapshots_for_self_play_are_taken_every_25_000_steps():
    selfplay(HighCard, timesteps=128, checkpoint_freq=0, quiet=True, output_dir="run", **SMALL)
    config = find_run("run").read_config()
    assert (config.snapshot_freq, config.checkpoint_freq) == (25_000, 0)


@pytest.mark.parametrize("verb", ["selfplay", "curriculum", "hybrid", "warmstart", "play"])
def test_an_env_that_cannot_be_constructed_is_a_usage_error(verb, capsys):
    assert main([verb, "tests.toy_envs:Broken", "--env-kwargs", "how=constructor"]) == 2
    assert "making the env failed: RuntimeError: no rom found" in capsys.readouterr().err


def test_sigterm_while_the_summary_is_written_ends_the_run_before_the_final_games(monkeypatch):
    def send_sigterm(run, reason):
        signal.raise_signal(signal.SIGTERM)
        return summarize(run, reason)

    monkeypatch.setattr("corral.training.run_session.summarize", send_sigterm)
    assert main(["train", ENV, *FLAGS, "--timesteps", "128", "--output-dir", "run"]) == 143
    assert json.loads(Path("run/summary.json").read_text())["exit_reason"] == "timesteps"
    assert not Path("run/matches.json").exists() and corral.load("run").timesteps == 128


def test_a_resumed_run_ends_with_evaluation_games_too(capsys):
    arguments = ["--timesteps", "128", "--eval-games", "2", "--output-dir", "run"]
    assert main(["train", ENV, *FLAGS, *arguments]) == 0
    resume = ["resume", "run", "--env", ENV, "--timesteps"]
    assert main([*resume, "256", "--eval-games", "7"]) == 2
    assert main([*resume, "256", "--eval-games", "4"]) == 0
    assert [match["games"] for match in json.loads(Path("run/matches.json").read_text())] == [4, 4]
    assert main([*resume, "384", "--eval-games", "0"]) == 0
    assert not Path("run/matches.json").exists(), "these games were played by an earlier policy"


def test_recipes_refer_to_opponents_of_the_env_and_refuse_an_env_without_any():
    assert reference_opponents_of_names(("random", "greedy", "mcts")) == ReferenceOpponents("random", "greedy")
    assert reference_opponents(HighCard, {}) == ReferenceOpponents("random", "miser")
    with pytest.raises(UsageError, match="has no opponents"):
        selfplay(Counter, timesteps=100, **SMALL)
    with pytest.raises(UsageError, match="chooses the opponents"):
        selfplay(HighCard, timesteps=100, opponent="random", **SMALL)


def test_every_training_verb_ends_with_evaluation_games(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    arguments_by_verb = {
        "selfplay": ["--timesteps", "256", "--current-weight", "0.4"],
        "curriculum": ["--preset", "v2", "--quick", "--timesteps", "256"],
        "hybrid": ["--timesteps", "640", "--net-arch", "16"],
        "warmstart": ["--timesteps", "128", "--expert-steps", "200", "--preset", "v2"],
        "train": ["--timesteps", "128", "--opponent", "mixed:miser=1,random=1"],
    }
    for verb, arguments in arguments_by_verb.items():
        assert main([verb, ENV, *arguments, *FLAGS, "--eval-games", "10", "--output-dir", verb]) == 0
        out = capsys.readouterr().out
        assert "games of the final policy" in out and "95% interval" in out and "miser" in out, verb
        matches = json.loads(Path(verb, "matches.json").read_text())
        assert [match["games"] for match in matches] == [10, 10]
    assert main(["eval", "selfplay", "--env", ENV, "--opponent", "miser", "--vs", "train", "--games", "10"]) == 0
    out = capsys.readouterr().out
    assert "miser" in out and "train" in out and "10" in out
    assert main(["resume", "curriculum", "--env", ENV, "--timesteps", "512", "--eval-games", "2"]) == 0
    assert "stage random" in capsys.readouterr().out


def test_wrong_numbers_of_games_and_unknown_opponents_are_refused(capsys):
    assert main(["selfplay", ENV, *FLAGS, "--eval-games", "7"]) == 2
    assert "--eval-games 7" in capsys.readouterr().err
    assert main(["train", ENV, *FLAGS, "--timesteps", "128", "--eval-games", "0", "--output-dir", "run"]) == 0
    assert main(["eval", "run", "--env", ENV, "--opponent", "greedy"]) == 2
    assert "unknown opponent 'greedy'" in capsys.readouterr().err
    assert main(["eval", "run", "--env", ENV, "--opponent", "miser", "--games", "5"]) == 2
    assert "even number" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("script", "arguments"),
    [
        ("train_selfplay", ["--timesteps", "128"]),
        ("train_curriculum", ["--fast", "--timesteps", "128"]),
        ("train_curriculum_v2", ["--quick", "--timesteps", "128"]),
        ("train_hybrid_selfplay", ["--timesteps", "640", "--net-arch", "16", "16"]),
        ("train_ppo_warmstart", ["--expert", "miser", "--expert-steps", "200", "--timesteps", "128"]),
        ("train_ppo_warmstart_v2", ["--expert-steps", "200", "--timesteps", "128"]),
    ],
)
def test_the_example_scripts_train_and_play_evaluation_games(script, arguments, run_script, capsys):
    assert run_script(script, "--env", ENV, *arguments, *FLAGS, "--eval-games", "2", "--save-path", "out") == 0
    assert Path("out/summary.json").exists() and "games of the final policy" in capsys.readouterr().out


def recorded_settings(name):
    """Return the budget, the stages and the env kwargs in the config of a run."""
    config = find_run(name).read_config()
    stages = [(stage.name, stage.options["level"], stage.timesteps) for stage in config.stages]
    return config.timesteps, stages, config.env_kwargs


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], (4000, [("easy", 1, 1000), ("hard", 5, None)], {})),
        (["--total-timesteps", "400"], (400, [("easy", 1, 100), ("hard", 5, None)], {})),
        (["--fast"], (800, [("easy", 1, 200), ("hard", 5, None)], {})),
        (["--env-kwargs", "level=3"], (4000, [], {"level": 3})),
        (["--env-kwargs", "length=3"], (4000, [("easy", 1, 1000), ("hard", 5, None)], {"length": 3})),
        (["--no-curriculum"], (4000, [], {})),
        (["--no-curriculum", "--timesteps", "64"], (64, [], {})),
        (["--duration", "1e-9"], (None, [("easy", 1, 1000), ("hard", 5, None)], {})),
        (["--num-episodes", "10", "--no-curriculum"], (None, [], {})),
    ],
    ids=lambda value: " ".join(value) or "no arguments" if isinstance(value, list) else "",
)
def test_an_env_that_defines_stages_is_trained_through_them(arguments, expected, capsys):
    settings = ["--n-envs", "2", "--n-steps", "64", "--batch-size", "64", "--n-epochs", "1", "--eval-freq", "0"]
    assert main(["curriculum", "tests.toy_envs:Leveled", *settings, "--output-dir", "run", *arguments]) == 0
    assert recorded_settings("run") == expected
    assert Path("run/phases/easy/progress.csv").exists() == ("stage easy" in capsys.readouterr().out)


def test_presets_are_refused_for_an_env_that_defines_its_stages(capsys):
    assert main(["curriculum", "tests.toy_envs:Leveled", "--preset", "v1"]) == 2
    assert "defines its stages itself" in capsys.readouterr().err
    assert main(["curriculum", "CartPole-v1"]) == 2
    assert "has no opponents" in capsys.readouterr().err
