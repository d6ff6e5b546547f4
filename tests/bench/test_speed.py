"""``corral tune`` and ``corral bench`` as users meet them."""

import re

import pytest
from PIL import Image

from corral.bench.speed import TIME_PARTS, Speed, measure_speed, median_speed
from corral.bench.tune import Candidate, Trial, candidates, recommended
from corral.cli.main import main
from corral.core.errors import UsageError
from corral.core.machine import available_cores

SMALL = {"n_steps": 32, "batch_size": 32, "n_epochs": 1}
FLAGS = ["--n-steps", "32", "--batch-size", "32", "--n-epochs", "1", "--seconds", "0.3", "--repeats", "1"]


def test_a_run_is_timed_part_by_part():
    speed = measure_speed("CartPole-v1", 0.5, {**SMALL, "n_envs": 4, "backend": "serial"})
    assert (speed.backend, speed.n_envs, speed.num_workers) == ("serial", 4, 1)
    assert set(speed.seconds) == set(TIME_PARTS) and speed.seconds["step"] > 0 and speed.seconds["update"] > 0
    assert speed.seconds["step"] + speed.seconds["inference"] + speed.seconds["update"] < 32 * 4 / speed.fps * 1.2
    assert speed.memory_mb > 20


def test_tune_prints_a_table_with_one_recommendation_and_draws_it(capsys, tmp_path):
    assert main(["tune", "CartPole-v1", *FLAGS, "--max-envs", "4", "--output", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert said.count("->") == 1 and "recommended: --n-envs 4 --backend" in said
    for heading in ("envs", "workers", "steps/s", "speed-up", "efficiency", "memory"):
        assert heading in said
    with Image.open(tmp_path / "out" / "tune.png") as picture:
        assert picture.width > 400


def test_bench_compares_one_process_with_workers(capsys):
    """Also with settings that only workers have, or that a run without steps to count has no use for."""
    more = ["--adaptive", "--parallel-start-method", "spawn", "--learning-rate-end", "0"]
    assert main(["bench", "CartPole-v1", *FLAGS, "--n-envs", "4", "--num-workers", "2", *more]) == 0
    said = capsys.readouterr().out
    assert "2 workers" in said and "speed-up" in said and "is the limit" in said
    told = re.search(
        r"simulation ([\d,]+) \+ inference ([\d,]+) \+ learning ([\d,]+) = ([\d,]+) µs.*at best ([\d,]+)", said
    )
    step, act, learn, whole, most = (int(number.replace(",", "")) for number in told.groups())
    assert min(step, act, learn) > 0 and abs(step + act + learn - whole) <= 2
    assert most == pytest.approx(available_cores() * 1e6 / whole, rel=0.05)
    for part in TIME_PARTS:
        assert part in said


def test_what_is_added_up_belongs_to_the_run_that_was_timed(capsys):
    """Also where an env has settings of its own: the best that could be is near what one process does, times cores."""
    assert main(["bench", "card-battle", "--seconds", "0.5", "--repeats", "1", "--n-epochs", "1"]) == 0
    said = capsys.readouterr().out
    alone = float(re.search(r"steps per second\D+([\d,]+)", said)[1].replace(",", ""))
    most = float(re.search(r"at best ([\d,]+)", said)[1].replace(",", ""))
    assert 0.7 < most / (alone * available_cores()) < 1.5


def test_candidates_keep_to_what_was_given():
    tried = candidates("x", {**SMALL, "n_envs": 8, "num_workers": 4})
    assert tried == [Candidate(8, "serial", 1), Candidate(8, "worker", 4)]
    numbers = {candidate.n_envs for candidate in candidates("x", {"n_steps": 128, "batch_size": 1024}, 32)}
    assert numbers == {4, 8, 16, 32}  # a batch larger than the rollout is one full batch
    tried = candidates("x", {**SMALL, "num_workers": "3", "num_envs_per_worker": 2})
    assert tried == [Candidate(6, "serial", 1), Candidate(6, "worker", 3)]
    with pytest.raises(UsageError, match="does not divide"):
        candidates("x", {"n_steps": 97, "batch_size": 64}, 32)


def trial(n, workers, fps):
    backend = "serial" if workers == 1 else "worker"
    return Trial(Candidate(n, backend, workers), Speed(backend, n, workers, fps, 1, {}, 0), 1.0)


def test_the_fewest_that_are_as_fast_are_recommended():
    trials = [trial(4, 1, 500), trial(8, 1, 960), trial(8, 2, 990), trial(64, 2, 1000)]
    assert recommended(trials) is trials[1]
    speeds = [t.speed for t in (trial(4, 1, 3), trial(4, 1, 1), trial(4, 1, 2))]
    assert median_speed(speeds).fps == 2


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["tune"], "which env?"),
        (["tune", "CartPole-v1", "--seconds", "0"], "--seconds should be more than 0"),
        (["tune", "CartPole-v1", "--max-envs", "0"], "max_envs 0: should be at least 1"),
        (["tune", "CartPole-v1", "--n-envs", "eight"], "n_envs 'eight'"),
        (["tune", "CartPole-v1", "--timesteps", "10"], "--timesteps is for training"),
        (["bench", "CartPole-v1", "--n-envs", "auto"], "bench needs a number of envs"),
        (["bench", "CartPole-v1", "--backend", "serial"], "--backend is for training"),
        (["bench", "CartPole-v1", "--n-envs", "2", "--num-workers", "4"], "num_workers 4 is more than n_envs 2"),
    ],
)
def test_wrong_words_are_one_line(words, complaint, capsys):
    assert main(words) == 2
    assert complaint in capsys.readouterr().err
