import re

import numpy as np

from corral.cli.main import main
from corral.core.types import EpisodeRecord
from corral.monitor.diary import episode_lines


def test_a_run_tells_every_episode_and_every_update(capsys):
    words = "--n-envs 2 --n-steps 64 --batch-size 64 --n-epochs 3 --timesteps 256 --seed 1 --eval-freq 0"
    assert main(["train", "CartPole-v1", *words.split(), "--log-episodes", "--output-dir", "run"]) == 0
    out = capsys.readouterr().out
    episodes = [int(number) for number in re.findall(r"\| episode +([\d,]+) \|", out)]
    told = int(re.search(r"│ episodes +│ ([\d,]+)", out)[1])
    assert episodes == list(range(1, told + 1)) and told > 5
    lengths = re.findall(r"reward +([\d.]+) \| length +(\d+) ", out)
    assert all(float(reward) == int(length) for reward, length in lengths)  # as CartPole pays
    assert out.count("3 epochs over 128 steps") == 2
    first, last = out.index("2 environments initialised"), out.index("2 environments closed")
    assert first < out.index("episode      1") < out.index("update 1:") < last < out.index("episodes per second")


def test_an_update_that_ended_early_says_so(capsys):
    words = (
        "--n-envs 2 --n-steps 64 --batch-size 64 --n-epochs 4 --timesteps 128 --seed 1 --eval-freq 0 --target-kl 1e-9"
    )
    assert main(["train", "CartPole-v1", *words.split(), "--log-episodes", "--output-dir", "run"]) == 0
    assert "update 1: 0.5 epochs over 128 steps" in capsys.readouterr().out


def test_steps_and_means_go_on_from_before():
    episodes = [EpisodeRecord(1, 4.0, 7, False, row=2), EpisodeRecord(0, 8.0, 9, True, row=5)]
    earlier = np.arange(20.0)
    one, two = episode_lines(episodes, earlier, 20, 1000, 4)
    assert one.startswith("step     1,012 | episode     21 | env   2 | reward      4.00 | length      7 ")
    assert one.endswith(f"mean of last 10 {np.mean([*range(11, 20), 4]):>9.2f}")
    assert two.startswith("step     1,024 | episode     22 | env   1 ")
    assert two.endswith(f"{np.mean([*range(12, 20), 4, 8]):>9.2f}")
