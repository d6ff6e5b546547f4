"""The timed scripts in ``examples/`` and the config that they share: the same work twice, then a comparison."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from corral.core.config import parse_config
from corral.core.config_file import load_yaml

ROOT = Path(__file__).parents[2]
BRIEF = ["--duration", "0.00001"]
TINY = "training: {n_steps: 32, batch_size: 32, n_epochs: 1, eval_freq: 0}\n"


@pytest.fixture
def run_script(monkeypatch):
    """Run an example in this process, as if it were started from the shell."""

    def run(name, *words):
        spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
        script = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(script)
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *words])
        return script.main()

    return run


def test_both_ways_do_the_same_work_and_are_compared(run_script, capsys):
    Path("two.yaml").write_text("parallel: {num_workers: 4, num_envs_per_worker: 2, backend: process}\n" + TINY)
    both = ["--config", "two.yaml", *BRIEF, "--seed", "5", "--n-steps", "16"]
    assert run_script("train_timed", *both, "--n-envs", "4", "--output-dir", "s") == 0
    assert "s/benchmark_metrics.json" in capsys.readouterr().out.replace("\\", "/")
    assert run_script("train_parallel_timed", *both, "--num-workers", "2", "--output-dir", "p") == 0
    assert "p/benchmark_metrics.json" in capsys.readouterr().out.replace("\\", "/")
    one, many = (json.loads(Path(d, "benchmark_metrics.json").read_text()) for d in "sp")
    assert (one["mode"], one["num_workers"], one["backend"]) == ("sequential", 1, "serial")
    assert (many["mode"], many["num_workers"], many["backend"]) == ("parallel", 2, "process")
    assert one["n_envs"] == many["n_envs"] == 4 and one["seed"] == many["seed"] == 5
    assert one["history"]["steps"][0] == many["history"]["steps"][0] == 64
    assert one["history"]["loss"][0] == many["history"]["loss"][0]

    assert run_script("compare_results", "--sequential", "s", "--parallel", "p", "--output", "out") == 0
    out = capsys.readouterr().out
    assert "sequential" in out and "parallel" in out and "speed-up" in out and "Not the same work" not in out
    assert Path("out/comparison.png").exists() and Path("out/comparison_report.txt").exists()


def test_the_sequential_script_takes_the_shared_config_without_its_workers(run_script):
    assert run_script("train_timed", *BRIEF, "--output-dir", "s") == 0
    shared, used = load_yaml(ROOT / "config" / "ppo_parallel.yaml"), load_yaml("s/config.yaml")
    assert used["n_envs"] == shared["num_workers"] * shared["num_envs_per_worker"] and used["backend"] == "serial"
    for name in ("n_steps", "batch_size", "n_epochs", "learning_rate", "gamma", "eval_freq"):
        assert used[name] == shared[name]


def test_the_shared_config_is_accepted_as_it_is():
    config = parse_config({**load_yaml(ROOT / "config" / "ppo_parallel.yaml"), "env": "CartPole-v1"})
    assert config.backend == "worker" and config.n_envs == 8 and config.rollout_size == 1024


@pytest.mark.parametrize("script", ["train_timed", "train_parallel_timed"])
def test_a_mistake_is_one_line_and_exit_code_2(run_script, capsys, script):
    Path("typo.yaml").write_text("training: {n_step: 3}\n")
    assert run_script(script, "--config", "typo.yaml") == 2
    assert "did you mean 'n_steps'?" in capsys.readouterr().err
    Path("own.yaml").write_text("n_envs: 4\nbackend: auto\n")
    assert run_script(script, "--config", "own.yaml", "--batch-size", "7") == 2
    assert "batch_size 7 does not divide" in capsys.readouterr().err
    assert run_script("compare_results", "--sequential", "nothing", "--parallel", "none") == 2
    assert "not a run directory" in capsys.readouterr().err
