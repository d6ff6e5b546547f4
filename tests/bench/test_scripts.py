"""The timed scripts in ``examples/`` and their shared config: one process and workers do the same work."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from corral.bench.timed import timed_settings
from corral.cli.main import main
from corral.config.schema import parse_config
from corral.config.yaml_file import load_yaml

ROOT = Path(__file__).parents[2]
SHORT = ["--duration", "0.00001"]
TINY = "training: {n_steps: 32, batch_size: 32, n_epochs: 1, eval_freq: 0}\n"


def test_the_sequential_and_the_parallel_script_do_the_same_work_and_can_be_compared(run_script, capsys):
    Path("two.yaml").write_text("parallel: {num_workers: 4, num_envs_per_worker: 2, backend: process}\n" + TINY)
    common_arguments = ["--config", "two.yaml", *SHORT, "--env", "CartPole-v1", "--seed", "5", "--n-steps", "16"]
    assert run_script("train_timed", *common_arguments, "--n-envs", "4", "--output-dir", "s") == 0
    assert "s/benchmark_metrics.json" in capsys.readouterr().out.replace("\\", "/")
    assert run_script("train_parallel_timed", *common_arguments, "--num-workers", "2", "--output-dir", "p") == 0
    assert "p/benchmark_metrics.json" in capsys.readouterr().out.replace("\\", "/")
    sequential, parallel = (json.loads(Path(directory, "benchmark_metrics.json").read_text()) for directory in "sp")
    assert (sequential["mode"], sequential["num_workers"], sequential["backend"]) == ("sequential", 1, "serial")
    assert (parallel["mode"], parallel["num_workers"], parallel["backend"]) == ("parallel", 2, "process")
    assert sequential["n_envs"] == parallel["n_envs"] == 4 and sequential["seed"] == parallel["seed"] == 5
    assert sequential["history"]["steps"][0] == parallel["history"]["steps"][0] == 64
    assert sequential["history"]["loss"][0] == parallel["history"]["loss"][0]

    assert run_script("compare_results", "--sequential", "s", "--parallel", "p", "--output", "out") == 0
    out = capsys.readouterr().out
    assert "sequential" in out and "parallel" in out and "speed-up" in out and "Not the same work" not in out
    assert Path("out/comparison.png").exists() and Path("out/comparison_report.txt").exists()


def test_the_sequential_script_uses_the_shared_config_without_its_workers(run_script):
    assert run_script("train_timed", *SHORT, "--env", "CartPole-v1", "--output-dir", "s") == 0
    shared, used = load_yaml(ROOT / "config" / "ppo_parallel.yaml"), load_yaml("s/config.yaml")
    assert used["n_envs"] == shared["num_workers"] * shared["num_envs_per_worker"] and used["backend"] == "serial"
    for name in ("n_steps", "n_epochs", "learning_rate", "gamma", "eval_freq"):
        assert used[name] == shared[name]


def test_settings_are_adapted_to_the_number_of_cores_and_changes_are_printed(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("corral.bench.timed.available_cores", lambda: 2)
    shared = ROOT / "config" / "ppo_parallel.yaml"
    parallel, sequential = (timed_settings(shared, {}, sequential) for sequential in (False, True))
    assert (parallel["num_workers"], parallel["n_envs"], parallel["batch_size"]) == (2, 32, 2048)
    assert (sequential["n_envs"], sequential["batch_size"], sequential["backend"]) == (32, 2048, "serial")
    assert "num_workers" not in sequential
    assert "num_workers 2 instead of the file's 4: there are 2 cores" in capsys.readouterr().out
    settings = timed_settings(shared, {"num_workers": 3, "num_envs_per_worker": 4}, False)
    assert (settings["num_workers"], settings["batch_size"]) == (3, 1536)
    assert "batch_size 1536 instead of the file's 2048" in capsys.readouterr().out
    assert timed_settings(shared, {"n_envs": 8, "batch_size": 256}, True)["batch_size"] == 256
    assert capsys.readouterr().out == ""
    config_file = tmp_path / "mine.yaml"
    config_file.write_text("{n_envs: 32, num_workers: 4, num_envs_per_worker: 8}")
    settings = timed_settings(config_file, {}, False)
    assert (settings["n_envs"], settings["num_workers"]) == (32, 2) and parse_config({"env": "CartPole-v1", **settings})
    settings = timed_settings(shared, {"num_envs_per_worker": 1}, False)
    assert (settings["num_workers"], settings["num_envs_per_worker"]) == (2, 1) and "n_envs" not in settings
    monkeypatch.setattr("corral.bench.timed.available_cores", lambda: 16)
    assert timed_settings(shared, {}, False)["num_workers"] == 4
    for envs, workers in ((3, 3), (8, 4)):
        settings = timed_settings(shared, {"n_envs": envs}, False)
        message = "num_workers 3 instead of the file's 4: each has one env at least\n"
        assert (message in capsys.readouterr().out) == (workers < 4)
        assert parse_config({"env": "CartPole-v1", **settings, "batch_size": 128 * envs}).num_workers == workers


def test_both_scripts_train_on_procgen(run_script):
    for script, arguments in (
        ("train_timed", ["--n-envs", "2"]),
        ("train_parallel_timed", ["--num-envs-per-worker", "1"]),
    ):
        assert run_script(script, *SHORT, *arguments, "--n-steps", "8", "--seed", "1", "--output-dir", script) == 0
    sequential, parallel = (
        json.loads(Path(directory, "benchmark_metrics.json").read_text())
        for directory in ("train_timed", "train_parallel_timed")
    )
    assert sequential["env"] == parallel["env"] == "envpool:CoinrunEasy-v0"
    assert parallel["n_envs"] == parallel["num_workers"]
    if parallel["n_envs"] == 2:
        assert sequential["history"]["loss"][0] == parallel["history"]["loss"][0]


def test_backends_and_flags_that_contradict_the_script_are_refused_or_replaced(run_script, capsys):
    Path("serial.yaml").write_text("parallel: {n_envs: 2, backend: serial}\n" + TINY)
    arguments = ["--config", "serial.yaml", *SHORT, "--env", "CartPole-v1", "--output-dir", "p"]
    assert run_script("train_parallel_timed", *arguments) == 0
    assert json.loads(Path("p/benchmark_metrics.json").read_text())["backend"] == "worker"
    for script, backend in (("train_parallel_timed", "serial"), ("train_timed", "worker")):
        assert run_script(script, *SHORT, "--env", "CartPole-v1", "--backend", backend) == 2
        assert f"{script}.py: backend {backend}: this script trains" in capsys.readouterr().err
    assert run_script("train_timed", *SHORT, "--num-workers", "2", "--parallel-start-method", "spawn") == 2
    assert "has no use for --num-workers, --parallel-start-method" in capsys.readouterr().err


@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGINT to one process")
@pytest.mark.parametrize("iterations", [0, 1])
def test_benchmark_metrics_are_written_after_ctrl_c(iterations):
    arguments = ["--duration", "1", "--env", "CartPole-v1", "--num-workers", "2", "--num-envs-per-worker", "2"]
    arguments += ["--n-steps", "128" if iterations else "100000", "--batch-size", "128" if iterations else "400000"]
    command = [sys.executable, str(ROOT / "examples" / "train_parallel_timed.py"), *arguments, "--output-dir", "p"]
    script = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    file_to_wait_for = Path("p/metrics.jsonl" if iterations else "p/checkpoints/ckpt-000000000000/manifest.json")
    while not file_to_wait_for.is_file() or not file_to_wait_for.read_text():
        assert script.poll() is None
        time.sleep(0.1)
    os.kill(script.pid, signal.SIGINT)
    out, err = script.communicate()
    assert script.returncode == 130 and "Traceback" not in err
    steps = json.loads(Path("p/benchmark_metrics.json").read_text())["steps"]
    assert "SIGINT" in out and (steps > 0) == bool(iterations)


@pytest.mark.parametrize("script", sorted(path.stem for path in (ROOT / "examples").glob("train_*.py")))
def test_a_script_accepts_every_training_flag_and_uses_its_name_in_messages(run_script, capsys, script):
    assert run_script(script, "--help") == 0
    out = capsys.readouterr().out
    assert out.startswith(f"usage: {script}.py [--flag value ...]\n") and "--env ENV" in out
    for flag in ("--learning-rate", "--n-steps", "--save-path", "--step-timeout"):
        assert flag in out
    assert run_script(script, "--n-env", "3") == 2
    assert f"{script}.py: unknown flag --n-env (did you mean '--n-envs'?)" in capsys.readouterr().err


def test_a_second_run_in_the_same_directory_is_refused_with_the_command_to_resume(run_script, capsys):
    arguments = ["--env", "CartPole-v1", "--num-episodes", "5", "--n-envs", "2", "--eval-freq", "0", "--seed", "1"]
    assert run_script("train_ppo", *arguments, "--checkpoint-dir", "runs/one") == 0
    assert run_script("train_ppo", *arguments, "--checkpoint-dir", "runs/one") == 2
    hint = re.search(r"continue it with `\S*corral (resume runs/one --timesteps \d+)`", capsys.readouterr().err)
    assert main(hint[1].split()) == 0
    assert run_script("train_ppo", *arguments, "--save-path", "runs/two", "--log-path", "runs/three") == 2
    assert "a run has one directory, but runs/two and runs/three were given" in capsys.readouterr().err


def test_the_shared_config_is_valid():
    config = parse_config({**load_yaml(ROOT / "config" / "ppo_parallel.yaml"), "env": "CartPole-v1"})
    assert config.backend == "worker" and config.n_envs == 32 and config.rollout_size == 4096


@pytest.mark.parametrize("script", ["train_timed", "train_parallel_timed"])
def test_usage_errors_have_exit_code_2(run_script, capsys, script):
    Path("typo.yaml").write_text("training: {n_step: 3}\n")
    assert run_script(script, "--config", "typo.yaml") == 2
    assert "did you mean 'n_steps'?" in capsys.readouterr().err
    Path("own.yaml").write_text("n_envs: 4\nbackend: auto\n")
    assert run_script(script, "--config", "own.yaml", "--batch-size", "7") == 2
    assert "batch_size 7 does not divide" in capsys.readouterr().err
    assert run_script("compare_results", "--sequential", "nothing", "--parallel", "none") == 2
    assert "not a run directory" in capsys.readouterr().err
