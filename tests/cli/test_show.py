"""What eval and play do with opponents, and what they refuse."""

from pathlib import Path

import pytest

from corral.cli.main import main

ENV = "tests.envs:HighCard"
SMALL = "--n-envs 2 --n-steps 32 --batch-size 32 --n-epochs 1 --timesteps 64 --seed 1 --eval-freq 0 --eval-games 0"


def train(env, directory, *words):
    assert main(["train", env, *SMALL.split(), "--output-dir", directory, *words]) == 0


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("--games 10", "--games is for games against --opponent or --vs"),
        ("--opponent miser --episodes 3", "--episodes is for episodes, not for games against"),
        ("--vs run --max-steps 3", "--max-steps is for episodes, not for games against"),
        ("--episodes 0", "--episodes 0: should be at least 1"),
        ("--opponent miser --games 0", "--games 0: should be at least 1"),
    ],
)
def test_eval_refuses_what_it_would_ignore(words, complaint, capsys):
    assert main(["eval", "run", *words.split()]) == 2
    assert complaint in capsys.readouterr().err


def test_play_refuses_opponents_that_cannot_be_met(capsys):
    train("toy-maze", "maze")
    for who in ("maze", "toy-maze"):
        assert main(["play", who, "--opponent", "greedy"]) == 2
        assert "toy-maze has no opponents: --opponent means nothing for it" in capsys.readouterr().err
    train(ENV, "small", "--env-kwargs", "cards=8")
    train(ENV, "large", "--env-kwargs", "cards=9")
    for words in (["play", "small", "--opponent"], ["eval", "small", "--vs"]):
        assert main([*words, "large", "--env", ENV]) == 2
        assert "large was trained on other observations or actions" in capsys.readouterr().err
    assert main(["play", "small", "--env", ENV, "--opponent", "nobody"]) == 2
    assert "should be one of random, miser, or a run directory" in capsys.readouterr().err


def test_runs_with_the_same_network_of_their_own_can_meet(capsys):
    for name in ("net", "other"):
        Path(f"{name}.py").write_text("from tests.training.test_runs import Tiny as network\n")
    train(ENV, "one", "--policy", "net.py:network")
    train(ENV, "two", "--policy", "net.py:network")
    train(ENV, "another", "--policy", "other.py:network")
    train(ENV, "plain")
    words = ["eval", "one", "--env", ENV, "--policy", "net.py:network", "--games", "4", "--vs"]
    assert main([*words, "two", "plain"]) == 0
    out = capsys.readouterr().out
    assert "two" in out and "plain" in out
    assert main([*words, "another"]) == 2
    assert "it can only meet runs with the same network, not net.py:network" in capsys.readouterr().err
    assert main(["eval", "plain", "--env", ENV, "--games", "4", "--vs", "one"]) == 2
    assert "it can only meet runs with the same network, not the built-in one" in capsys.readouterr().err


def test_an_env_that_cannot_be_closed_is_shown_all_the_same(capsys):
    Path("sticky.py").write_text(
        "from tests.envs import HighCard\n\n\n"
        "class Sticky(HighCard):\n    def close(self):\n        raise OSError('will not close')\n"
    )
    with pytest.warns(UserWarning, match="closing env 0 raised OSError: will not close"):
        train("sticky.py:Sticky", "run", "--backend", "serial")
        assert main(["eval", "run", "--env", "sticky.py:Sticky", "--opponent", "miser", "--games", "2"]) == 0
    assert "miser" in capsys.readouterr().out
