"""``corral tune`` and ``corral bench``: measured speeds, their tables and recommendations, and usage errors."""

import re
import sys
from pathlib import Path

import pytest
from PIL import Image

from corral.bench.speed import TIME_PARTS, Speed, measure_speed, median_speed
from corral.bench.tune import Candidate, Trial, candidates, recommended, settings_for
from corral.cli.main import main
from corral.core.errors import UsageError
from corral.core.machine import available_cores
from corral.rollout.source import ClusterConfig

SMALL = {"n_steps": 32, "batch_size": 32, "n_epochs": 1}
FLAGS = ["--n-steps", "32", "--batch-size", "32", "--n-epochs", "1", "--seconds", "0.3", "--repeats", "1"]


def test_a_measurement_has_the_time_of_every_part_of_an_iteration():
    speed = measure_speed("CartPole-v1", 0.5, {**SMALL, "n_envs": 4, "backend": "serial"})
    assert (speed.backend, speed.n_envs, speed.num_workers) == ("serial", 4, 1)
    assert set(speed.seconds) == set(TIME_PARTS) and speed.seconds["step"] > 0 and speed.seconds["update"] > 0
    assert speed.seconds["step"] + speed.seconds["inference"] + speed.seconds["update"] < 32 * 4 / speed.fps * 1.2
    assert speed.memory_mb > 20


def test_tune_prints_a_table_with_one_recommendation_and_saves_a_plot(capsys, tmp_path):
    assert main(["tune", "CartPole-v1", *FLAGS, "--max-envs", "4", "--output", str(tmp_path / "out")]) == 0
    output = capsys.readouterr().out
    assert output.count("->") == 1 and "recommended: --n-envs 4 --backend" in output
    for heading in ("envs", "workers", "steps/s", "speed-up", "efficiency", "memory"):
        assert heading in output
    with Image.open(tmp_path / "out" / "tune.png") as image:
        assert image.width > 400


def test_bench_compares_one_process_with_workers(capsys):
    """The measurement drops settings that only workers have or that need a budget of steps."""
    more_flags = ["--adaptive", "--parallel-start-method", "spawn", "--learning-rate-end", "0"]
    assert main(["bench", "CartPole-v1", *FLAGS, "--n-envs", "4", "--num-workers", "2", *more_flags]) == 0
    output = capsys.readouterr().out
    assert "2 workers" in output and "speed-up" in output and "is the limit" in output
    costs = re.search(
        r"simulation ([\d,]+) \+ inference ([\d,]+) \+ learning ([\d,]+) = ([\d,]+) µs.*at best ([\d,]+)", output
    )
    step_us, inference_us, learning_us, total_us, max_fps = (int(number.replace(",", "")) for number in costs.groups())
    assert min(step_us, inference_us, learning_us) > 0 and abs(step_us + inference_us + learning_us - total_us) <= 2
    assert max_fps == pytest.approx(available_cores() * 1e6 / total_us, rel=0.05)
    for part in TIME_PARTS:
        assert part in output


def test_the_estimated_maximum_speed_is_near_the_speed_of_one_process_times_cores(capsys):
    """The estimate uses the recommended settings of an env, as the measured run does."""
    assert main(["bench", "card-battle", "--seconds", "0.5", "--repeats", "1", "--n-epochs", "1"]) == 0
    output = capsys.readouterr().out
    serial_fps = float(re.search(r"steps per second\D+([\d,]+)", output)[1].replace(",", ""))
    max_fps = float(re.search(r"at best ([\d,]+)", output)[1].replace(",", ""))
    assert 0.7 < max_fps / (serial_fps * available_cores()) < 1.5


@pytest.fixture
def local_ray():
    """Start a Ray; the measurements connect to it instead of starting their own."""
    from corral.rollout.ray_cluster import RayCluster

    cluster = RayCluster(ClusterConfig(), cores=2)
    yield
    cluster.close()


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")
def test_bench_compares_a_cluster_with_the_workers_of_this_machine(local_ray, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    more_flags = ["--n-envs", "4", "--num-workers", "2", "--ray-address", "local", "--node-timeout", "30"]
    assert main(["bench", "CartPole-v1", *FLAGS, "--backend", "ray", *more_flags]) == 0
    output = capsys.readouterr().out
    assert "ray, 2 workers" in output and len(re.search(r"steps per second.*", output)[0].split("│")) == 5
    assert "with ray, " in output and "x the speed of 2 workers without ray" in output


def test_settings_of_a_cluster_are_given_to_backend_ray_alone():
    settings = {"ray_address": "auto", "node_timeout": 3, "adaptive": True, "n_steps": 32}
    assert "ray_address" not in settings_for(Candidate(4, "serial", 1), settings)
    of_workers, of_ray = (settings_for(Candidate(4, backend, 2), settings) for backend in ("worker", "ray"))
    assert of_workers == {"adaptive": True, "n_steps": 32, "n_envs": 4, "num_workers": 2, "backend": "worker"}
    assert of_ray.keys() == {"ray_address", "node_timeout", "n_steps", "n_envs", "num_workers", "backend"}


def test_a_cluster_in_a_config_file_is_left_out_unless_it_is_measured(capsys):
    Path("run.yaml").write_text("env: CartPole-v1\nbackend: ray\nray_address: 192.0.2.9:6379\nn_envs: 2\n")
    assert main(["bench", "--config", "run.yaml", *FLAGS]) == 0
    assert "2 workers" in capsys.readouterr().out


def test_candidates_agree_with_the_given_settings():
    measured = candidates("x", {**SMALL, "n_envs": 8, "num_workers": 4})
    assert measured == [Candidate(8, "serial", 1), Candidate(8, "worker", 4)]
    n_envs_to_measure = {candidate.n_envs for candidate in candidates("x", {"n_steps": 128, "batch_size": 1024}, 32)}
    assert n_envs_to_measure == {4, 8, 16, 32}  # a batch larger than the rollout is one full batch
    measured = candidates("x", {**SMALL, "num_workers": "3", "num_envs_per_worker": 2})
    assert measured == [Candidate(6, "serial", 1), Candidate(6, "worker", 3)]
    with pytest.raises(UsageError, match="does not divide"):
        candidates("x", {"n_steps": 97, "batch_size": 64}, 32)


def make_trial(n_envs, num_workers, fps):
    backend = "serial" if num_workers == 1 else "worker"
    return Trial(Candidate(n_envs, backend, num_workers), Speed(backend, n_envs, num_workers, fps, 1, {}, 0), 1.0)


def test_the_fewest_envs_and_workers_that_are_nearly_fastest_are_recommended_from_medians():
    trials = [make_trial(4, 1, 500), make_trial(8, 1, 960), make_trial(8, 2, 990), make_trial(64, 2, 1000)]
    assert recommended(trials) is trials[1]
    speeds = [make_trial(4, 1, fps).speed for fps in (3, 1, 2)]
    assert median_speed(speeds).fps == 2


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["tune"], "which env?"),
        (["tune", "CartPole-v1", "--seconds", "0"], "--seconds should be more than 0"),
        (["tune", "CartPole-v1", "--max-envs", "0"], "max_envs 0: should be at least 1"),
        (["tune", "CartPole-v1", "--n-envs", "eight"], "n_envs 'eight'"),
        (["tune", "CartPole-v1", "--timesteps", "10"], "--timesteps is for training"),
        (["bench", "CartPole-v1", "--n-envs", "auto"], "bench needs a number of envs"),
        (["bench", "CartPole-v1", "--backend", "serial"], "--backend is for training"),
        (["bench", "CartPole-v1", "--ray-address", "auto"], "--ray-address is for a cluster"),
        (["bench", "CartPole-v1", "--backend", "ray", "--ray-address", "x"], "should be local, auto or HOST:PORT"),
        (["tune", "CartPole-v1", "--backend", "ray"], "--backend is for training"),
        (["tune", "CartPole-v1", "--node-timeout", "3"], "--node-timeout is for a cluster"),
        (["bench", "CartPole-v1", "--n-envs", "2", "--num-workers", "4"], "num_workers 4 is more than n_envs 2"),
    ],
)
def test_usage_errors_are_reported(arguments, complaint, capsys):
    assert main(arguments) == 2
    assert complaint in capsys.readouterr().err
