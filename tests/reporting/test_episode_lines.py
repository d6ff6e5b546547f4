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


def test_log_episodes_prints_a_line_per_env_episode_epoch_and_update(capsys):
    assert main(["train", "CartPole-v1", *SMALL, "--n-epochs", "3", "--timesteps", "256"]) == 0
    out = capsys.readouterr().out
    episodes = [int(number) for number in re.findall(r"\| episode +([\d,]+) \|", out)]
    n_episodes = int(re.search(r"│ episodes +│ ([\d,]+)", out)[1])
    assert episodes == list(range(1, n_episodes + 1)) and n_episodes > 5
    lengths = re.findall(r"reward +([\d.]+) \| length +(\d+) ", out)
    assert all(float(reward) == int(length) for reward, length in lengths)  # CartPole pays 1 per step
    assert out.count("3 epochs over 128 steps") == 2 and out.count("  epoch 3 of 3 done\n") == 2
    lines = "environment 2 of 2 started", "episode      1", "epoch 1 of 3", "update 1:", "environment 2 of 2 closed"
    line_positions = [out.index(line) for line in (*lines, "episodes per second")]
    assert line_positions == sorted(line_positions)


def test_episode_lines_state_the_episode_budget(capsys):
    assert main(["train", "CartPole-v1", *SMALL, "--num-episodes", "5"]) == 0
    assert re.search(r"\| episode +1 of 5 \| .* mean of 10 .* mean of 100 .* \| [\d.]+ s\n", capsys.readouterr().out)


def test_the_line_of_an_update_that_stopped_early_states_the_epochs_done(capsys):
    assert main(["train", "CartPole-v1", *SMALL, "--n-epochs", "4", "--timesteps", "128", "--target-kl", "1e-9"]) == 0
    assert "update 1: 0.5 epochs over 128 steps" in capsys.readouterr().out


def test_steps_times_and_means_continue_from_earlier_rollouts():
    episodes = [EpisodeRecord(1, 4.0, 7, False, row=2), EpisodeRecord(0, 8.0, 9, True, row=5)]
    earlier_rewards = np.arange(100.0)
    first_line, second_line = episode_lines(
        episodes, earlier_rewards, 120, None, 1000, shape=(6, 4), seconds=(10.0, 16.0)
    )
    assert first_line.startswith("step     1,012 | episode    121 | env   2 | reward      4.00 | length      7 ")
    mean_of_10, mean_of_100 = np.mean([*range(91, 100), 4]), np.mean([*range(1, 100), 4])
    assert first_line.endswith(f"| mean of 10 {mean_of_10:>9.2f} | mean of 100 {mean_of_100:>9.2f} | 13.0 s")
    assert second_line.startswith("step     1,024 | episode    122 | env   1 ") and second_line.endswith(" 16.0 s")


def test_many_envs_get_a_single_summary_line():
    assert env_lines(2, "closed") == ["environment 1 of 2 closed", "environment 2 of 2 closed", "2 environments closed"]
    assert env_lines(1000, "started") == ["1000 environments started"]
