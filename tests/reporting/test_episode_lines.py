import re

import numpy as np

from corral.cli.main import main
from corral.core.types import EpisodeRecord
from corral.reporting.episode_lines import env_lines, episode_lines

SMALL = [
    "--n-envs",
    "2",
    "--n-steps",
    "64",
    "--batch-size",
    "64",
    "--seed",
    "1",
    "--eval-freq",
    "0",
    "--log-episodes",
    "--output-dir",
    "run",
]


def test_a_run_prints_every_env_episode_epoch_and_update(capsys):
    assert main(["train", "CartPole-v1", *SMALL, "--n-epochs", "3", "--timesteps", "256"]) == 0
    out = capsys.readouterr().out
    episodes = [int(number) for number in re.findall(r"\| episode +([\d,]+) \|", out)]
    counted = int(re.search(r"│ episodes +│ ([\d,]+)", out)[1])
    assert episodes == list(range(1, counted + 1)) and counted > 5
    lengths = re.findall(r"reward +([\d.]+) \| length +(\d+) ", out)
    assert all(float(reward) == int(length) for reward, length in lengths)  # as CartPole pays
    assert out.count("3 epochs over 128 steps") == 2 and out.count("  epoch 3 of 3 done\n") == 2
    lines = "environment 2 of 2 started", "episode      1", "epoch 1 of 3", "update 1:", "environment 2 of 2 closed"
    places = [out.index(line) for line in (*lines, "episodes per second")]
    assert places == sorted(places)


def test_a_budget_of_episodes_is_part_of_each_line(capsys):
    assert main(["train", "CartPole-v1", *SMALL, "--num-episodes", "5"]) == 0
    assert re.search(r"\| episode +1 of 5 \| .* mean of 10 .* mean of 100 .* \| [\d.]+ s\n", capsys.readouterr().out)


def test_an_update_that_ended_early_says_so(capsys):
    assert main(["train", "CartPole-v1", *SMALL, "--n-epochs", "4", "--timesteps", "128", "--target-kl", "1e-9"]) == 0
    assert "update 1: 0.5 epochs over 128 steps" in capsys.readouterr().out


def test_steps_times_and_means_go_on_from_before():
    episodes = [EpisodeRecord(1, 4.0, 7, False, row=2), EpisodeRecord(0, 8.0, 9, True, row=5)]
    earlier = np.arange(100.0)
    one, two = episode_lines(episodes, earlier, 120, None, 1000, shape=(6, 4), seconds=(10.0, 16.0))
    assert one.startswith("step     1,012 | episode    121 | env   2 | reward      4.00 | length      7 ")
    few, many = np.mean([*range(91, 100), 4]), np.mean([*range(1, 100), 4])
    assert one.endswith(f"| mean of 10 {few:>9.2f} | mean of 100 {many:>9.2f} | 13.0 s")
    assert two.startswith("step     1,024 | episode    122 | env   1 ") and two.endswith(" 16.0 s")


def test_many_envs_are_one_line():
    assert env_lines(2, "closed") == ["environment 1 of 2 closed", "environment 2 of 2 closed", "2 environments closed"]
    assert env_lines(1000, "started") == ["1000 environments started"]
