"""Sweeps as a whole: their trials, the files that they write, and how they resume after an interruption."""

import csv
import json
import os
import queue
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import gymnasium as gym
import pytest
import yaml

import corral
from corral.cli.main import main
from corral.config.yaml_file import load_yaml
from corral.core.errors import CorralError, RunInUse, UsageError
from corral.storage.metrics_file import read_metrics
from corral.storage.run_dir import RunDirectory
from corral.sweeps.api import _stop_jobs, resume_sweep, sweep
from corral.training.closing import summarize
from tests.toy_envs import Counter

ROOT = Path(__file__).parents[2]
TINY = {
    "n_envs": 2,
    "n_steps": 32,
    "batch_size": 32,
    "n_epochs": 1,
    "timesteps": 256,
    "seed": 1,
    "eval_freq": 0,
    "backend": "serial",
    "tensorboard": False,
}
TINY_FLAGS = [
    word
    for name, value in TINY.items()
    if name != "tensorboard"
    for word in (f"--{name.replace('_', '-')}", str(value))
]


def run_cli(*arguments):
    """Run the command line in this process and return the exit code that a shell would see."""
    try:
        return main([str(argument) for argument in arguments])
    except SystemExit as error:
        return error.code


def read_results(directory):
    """Return the rows of a sweep's ``results.csv``, one for each trial."""
    with Path(directory, "results.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def read_summary(path):
    return json.loads(Path(path, "summary.json").read_text())


def test_a_sweep_over_presets_writes_results_and_the_settings_of_the_best(capsys):
    Path("mine.yaml").write_text("small: {net_arch: [8]}\nlarge: {net_arch: {pi: [32, 16], vf: [8]}, n_epochs: 4}\n")
    command = ["sweep", "CartPole-v1", *TINY_FLAGS, "--seeds", "2", "--presets", "mine.yaml", "--output-dir", "s"]
    assert run_cli(*command) == 0
    out = capsys.readouterr().out
    assert "small" in out and "judged by mean reward" in out and "corral train --config s/best.yaml" in out
    results = read_results("s")
    assert [row["trial"] for row in results] == ["small", "large"] and {row["steps"] for row in results} == {"256"}
    assert [row["net_arch"] for row in results] == ["8", "pi=32 16 vf=8"]
    assert [row["n_epochs"] for row in results] == ["1", "4"]
    for name in ("small", "large"):
        assert {read_summary(path)["seed"] for path in Path("s/trials", name).iterdir()} == {1, 2}
    best = max(results, key=lambda row: float(row["objective"]))
    settings = load_yaml("s/best.yaml")
    assert settings["net_arch"] == ({"pi": [8], "vf": [8]} if best["trial"] == "small" else {"pi": [32, 16], "vf": [8]})
    assert Path("s/sweep.png").read_bytes()[:4] == b"\x89PNG" and "| best |" in Path("s/results.md").read_text()
    assert run_cli("train", "--config", "s/best.yaml", "--output-dir", "again") == 0
    assert read_summary("again")["weights_sha256"] == read_summary(f"s/trials/{best['trial']}/seed-1")["weights_sha256"]

    before = Path("s/trials/small/seed-1/metrics.jsonl").stat().st_mtime_ns
    assert run_cli(*command) == 0 and run_cli("resume", "s") == 0  # all trials are complete
    assert Path("s/trials/small/seed-1/metrics.jsonl").stat().st_mtime_ns == before
    capsys.readouterr()
    assert run_cli(*command, "--gamma", "0.9") == 2
    assert "was started with gamma None, not 0.9" in capsys.readouterr().err
    assert run_cli("resume", "s", "--timesteps", "9") == 2
    assert "give the `corral sweep` command again" in capsys.readouterr().err
    assert run_cli("resume", "s", "--eval-games", "2") == 2
    assert "leave out eval_games" in capsys.readouterr().err
    assert run_cli("list", "runs") == 0


def test_the_sweep_example_runs_the_built_in_presets(run_script, capsys):
    small = "--env toy-maze --n-envs 1 --timesteps 256 --seed 1 --n-steps 32 --batch-size 32 --n-epochs 1 --eval-freq 0"
    assert run_script("train_ppo_sweep", "--config", "A", "B", "C", *small.split(), "--save-path", "s") == 0
    settings = {name: load_yaml(f"s/trials/{name}/config.yaml") for name in "ABC"}
    assert {s["n_envs"] for s in settings.values()} == {1} and {s["seed"] for s in settings.values()} == {1}
    assert settings["A"]["net_arch"] == {"pi": [512, 512], "vf": [512, 512]}
    assert settings["B"]["net_arch"] == settings["C"]["net_arch"] == {"pi": [256, 256], "vf": [256, 256]}
    assert settings["B"]["ent_coef"] == 0.05 and settings["A"]["ent_coef"] == 0
    assert (settings["C"]["learning_rate"], settings["C"]["learning_rate_end"]) == (3e-4, 1e-5)
    assert run_script("train_ppo_sweep", "--save-path", "a", "--log-path", "b") == 2


def test_best_yaml_of_a_built_in_env_holds_the_settings_of_the_best_trial():
    settings = {**TINY, "timesteps": 128}
    result = sweep("card-battle", presets={"a": {}, "b": {"gamma": 0.9}}, quiet=True, output_dir="s", **settings)
    best, trained = load_yaml("s/best.yaml"), load_yaml(result.best.path / "config.yaml")
    for name in ("opponent", "learning_rate", "ent_coef", "eval_episodes", "timesteps"):
        assert best[name] == trained[name], name
    assert (best["opponent"], best["learning_rate"]) == ("greedy", 1e-3)


def test_the_first_trial_of_the_readmes_sweep_command_has_the_default_settings():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (command,) = [line for line in readme.splitlines() if line.startswith("corral sweep ") and "--trials" in line]
    arguments = shlex.split(command, comments=True)[1:]
    arguments[arguments.index("--trials") + 1] = "2"
    shorter = shlex.split("--n-envs 1 --timesteps 10240 --eval-freq 0 --backend serial --seed 1 --output-dir s")
    assert run_cli(*arguments, *shorter) == 0
    first, second = read_results("s")
    assert (first["net_arch"], first["n_steps"], first["batch_size"], first["gamma"]) == ("64x64", "2048", "64", "0.99")
    assert {first["state"], second["state"]} == {"complete"}


def test_a_search_finds_a_better_learning_rate_than_the_worst():
    settings = {**TINY, "timesteps": 2560, "n_epochs": 4, "n_envs": 4}
    result = sweep(
        "CartPole-v1", search={"learning_rate": "log:1e-7:1e-2"}, trials=7, quiet=True, prune=False, **settings
    )
    objectives = [trial.objective for trial in result.results]
    assert len(objectives) == 7 and result.best.objective == max(objectives) > 1.3 * min(objectives)
    assert result.best.varied["learning_rate"] > 1e-4
    assert load_yaml(result.sweep_dir / "best.yaml")["learning_rate"] == result.best.varied["learning_rate"]
    for trial in result.results:  # trials are ordinary run directories
        assert read_summary(trial.path)["steps"] == 2560 and corral.load(trial.path) is not None


def test_trials_with_low_rewards_are_pruned_and_marked_as_pruned():
    settings = {**TINY, "timesteps": 2048, "n_epochs": 6, "n_envs": 4}
    result = sweep("CartPole-v1", search={"learning_rate": "1e-9,3e-3"}, trials=12, quiet=True, **settings)
    pruned = [trial for trial in result.results if trial.state == "pruned"]
    assert pruned and all(trial.varied["learning_rate"] == 1e-9 for trial in pruned)
    for trial in pruned:
        assert read_summary(trial.path)["exit_reason"] == "pruned" and trial.steps < 2048 and trial.objective is None
    assert {row["state"] for row in read_results(result.sweep_dir)} == {"complete", "pruned"}


def test_the_objective_is_the_evaluation_reward_if_evaluation_is_on():
    settings = {**TINY, "eval_freq": 1000, "eval_episodes": 2}
    result = sweep("CartPole-v1", presets={"a": {}, "b": {"gamma": 0.9}}, quiet=True, **settings)
    assert result.objective_name == "evaluation reward"
    assert all(trial.objective == read_summary(trial.path)["eval_reward"] for trial in result.results)


def test_jobs_run_trials_in_parallel_processes(capfd):
    pid_files = Path("pids").absolute()
    pid_files.mkdir()

    class WritesPid(Counter):  # a local class, which cannot be imported by its name
        def __init__(self):
            super().__init__()
            (pid_files / str(os.getpid())).write_text(os.environ["CORRAL_CORES"])
            print("an env may print")

    result = sweep(WritesPid, search={"learning_rate": "log:1e-5:1e-2"}, trials=4, jobs=2, output_dir="s", **TINY)
    assert [trial.state for trial in result.results] == ["complete"] * 4
    pids = [path.name for path in pid_files.iterdir()]
    assert len(pids) == 2 and str(os.getpid()) not in pids
    assert "2 at a time" in (out := capfd.readouterr().out) and "an env may print" not in out
    without_jobs = sweep(make_counter, search={"learning_rate": "log:1e-5:1e-2"}, trials=1, quiet=True, **TINY)
    assert read_summary(without_jobs.results[0].path)["weights_sha256"] == read_summary("s/trials/0")["weights_sha256"]


def make_counter():
    return Counter()


def test_a_trial_that_fails_does_not_end_the_sweep():
    def make():
        return gym.make("CartPole-v1")

    result = sweep(make, presets={"good": {}, "bad": {"env_kwargs": {"nonsense": 1}}}, quiet=True, **TINY)
    assert [trial.state for trial in result.results] == ["complete", "failed"]
    assert "unexpected keyword argument 'nonsense'" in result.results[1].error
    assert result.best.label == "good"


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_sweep_ends_if_its_first_trials_all_fail(jobs):
    class RaisesInStep5(Counter):
        def step(self, action):
            if self.step_count > 3:
                raise ValueError("the dragon won")
            return super().step(action)

    search = {"learning_rate": "log:1e-5:1e-2"}
    with pytest.raises(CorralError, match=r"(?s)trials failed and none worked; the last: .*the dragon won"):
        sweep(RaisesInStep5, search=search, trials=9, jobs=jobs, quiet=True, output_dir="s", **TINY)
    assert 3 <= len(read_results("s")) <= 4


def test_a_dead_job_process_fails_only_its_trial():
    marker = Path("marker").absolute()
    marker.touch()

    class ExitsOnce(Counter):
        def step(self, action):
            if marker.exists() and self.step_count > 3:
                marker.unlink()
                os._exit(9)
            return super().step(action)

    result = sweep(ExitsOnce, search={"gamma": "0.9:1"}, trials=3, jobs=2, quiet=True, **TINY)
    states = [trial.state for trial in result.results]
    assert sorted(states) == ["complete", "complete", "failed"]
    assert "exited with code 9 and without a result" in result.results[states.index("failed")].error


def test_a_sweep_directory_in_use_is_refused():
    sweep("CartPole-v1", presets=["A"], quiet=True, output_dir="s", **TINY)
    directory = RunDirectory(Path("s"))
    directory.lock()
    with pytest.raises(RunInUse, match=f"in use by process {os.getpid()}"):
        resume_sweep("s")
    assert run_cli("sweep", "CartPole-v1", "--preset", "A", *TINY_FLAGS, "--output-dir", "s") == 3
    directory.unlock()


def test_resume_imports_the_code_of_an_env_only_if_the_user_names_it_again(capsys):
    Path("game.py").write_text("from tests.toy_envs import Counter as make\n")
    assert run_cli("sweep", "game.py:make", "--preset", "A", *TINY_FLAGS, "--output-dir", "s") == 0
    assert "corral play s/trials/A --env game.py:make" in capsys.readouterr().out
    assert run_cli("resume", "s") == 2
    assert "--env game.py:make" in capsys.readouterr().err
    assert run_cli("resume", "s", "--env", "game.py:make") == 0


def test_without_optuna_presets_work_and_a_search_says_what_to_install():
    code = (
        "import sys; sys.modules['optuna'] = None\n"
        "from corral.cli.main import main\n"
        f"flags = {TINY_FLAGS!r}\n"
        "assert main(['sweep', 'CartPole-v1', '--preset', 'A', *flags, '--output-dir', 's']) == 0\n"
        "sys.exit(main(['sweep', 'CartPole-v1', '--trials', '3', *flags, '--output-dir', 't']))\n"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert process.returncode == 2 and "pip install 'corral[sweep]'" in process.stderr, process.stderr
    assert not Path("t").exists()


# Interruptions


def test_a_signal_while_a_trial_writes_its_summary_ends_the_sweep(monkeypatch, capsys):
    def summarize_and_interrupt(training_run, reason):
        signal.raise_signal(signal.SIGINT)
        return summarize(training_run, reason)

    command = ["sweep", "CartPole-v1", *TINY_FLAGS, "--preset", "A", "B", "--output-dir", "s"]
    with monkeypatch.context() as patch:
        patch.setattr("corral.training.run_session.summarize", summarize_and_interrupt)
        assert run_cli(*command) == 130
    assert "interrupted after 1 of 2 trials" in capsys.readouterr().out
    assert read_summary("s/trials/A")["exit_reason"] == "timesteps" and not Path("s/trials/B").exists()
    assert run_cli("resume", "s") == 0
    assert [row["state"] for row in read_results("s")] == ["complete", "complete"]


def test_a_job_that_ignores_the_interrupt_is_killed(monkeypatch):
    monkeypatch.setattr("corral.sweeps.api._SAVE_SECONDS", 0.1)
    calls = []

    class StuckJob:
        label = "0"

        def __getattr__(self, name):
            return lambda: calls.append(name)

    _stop_jobs([StuckJob()], queue.Queue())
    assert calls == ["interrupt", "kill", "close"]


LONG_TRIALS = {"checkpoint_freq": 256, **TINY, "timesteps": 4096, "n_epochs": 10}


def start_sweep(*arguments, running=(1,)):
    """Start a sweep of three trials in another process; return it when the trials ``running`` have 9 iterations."""
    flags = [word for name, value in LONG_TRIALS.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    flags = flags[: flags.index("--tensorboard")]
    search = ["--trials", "3", "--search", "learning_rate=log:1e-5:1e-2"]
    process = subprocess.Popen(
        [sys.executable, "-m", "corral", "sweep", "CartPole-v1", *flags, *search, "--output-dir", "s", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    deadline = time.monotonic() + 600
    files = [Path(f"s/trials/{number}/metrics.jsonl") for number in running]
    while not all(file.exists() and len(read_metrics(file)) > 8 for file in files):
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()[0]
        time.sleep(0.01)
    return process


def check_resume(interrupted):
    """Resume the sweep, and check that interrupted trials continue with the metrics that they had."""
    metrics_before = {number: read_metrics(Path(f"s/trials/{number}/metrics.jsonl"))[:3] for number in interrupted}
    summary_before = Path("s/trials/0/summary.json").read_text() if 0 not in interrupted else None
    assert run_cli("resume", "s") == 0
    results = read_results("s")
    assert [row["trial"] for row in results] == ["0", "1", "2"] and {row["state"] for row in results} == {"complete"}
    for number, first_rows in metrics_before.items():  # equal in the times of day too, so they were not run again
        assert read_metrics(Path(f"s/trials/{number}/metrics.jsonl"))[:3] == first_rows
    assert summary_before is None or Path("s/trials/0/summary.json").read_text() == summary_before
    settings = {**LONG_TRIALS, "learning_rate": float(results[1]["learning_rate"])}
    uninterrupted = corral.train("CartPole-v1", quiet=True, **settings)
    assert uninterrupted.summary.weights_sha256 == read_summary("s/trials/1")["weights_sha256"]


def test_a_killed_sweep_resumes_the_interrupted_trial():
    process = start_sweep()
    process.kill()
    process.wait()
    check_resume(interrupted=[1])


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no signals to send to a process")
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.deep)]
)
def test_a_signal_saves_the_trial_and_prints_the_resume_command(number, code):
    process = start_sweep()
    process.send_signal(number)
    out, _ = process.communicate(timeout=600)
    assert process.returncode == code, out
    assert "interrupted after 1 of 3 trials; resume with: " in out and "corral resume s" in out
    assert read_summary("s/trials/1")["exit_reason"] == number.name
    assert [row["state"] for row in read_results("s")] == ["complete", "begun"]
    check_resume(interrupted=[1])


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no signals to send to a process")
@pytest.mark.parametrize("name", ["SIGKILL", pytest.param("SIGTERM", marks=pytest.mark.deep)])
def test_jobs_end_with_the_sweep_and_their_trials_can_be_resumed(name):
    process = start_sweep("--jobs", "2", running=(0, 1))
    process.send_signal(getattr(signal, name))
    process.communicate(timeout=600)
    check_resume(interrupted=[0, 1])


def test_interrupted_presets_are_resumed():
    presets = {"a": {}, "b": {"gamma": 0.9}, "c": {"gamma": 0.8}}
    uninterrupted = sweep("CartPole-v1", presets=presets, quiet=True, output_dir="s", **TINY)
    Path("s/trials/a/summary.json").unlink()  # as if it was killed just before its end
    for path in Path("s/trials/b").iterdir():  # as if it was killed at its start
        if path.name not in ("config.yaml", ".lock"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    metrics_before = Path("s/trials/a/metrics.jsonl").read_text()
    resumed = resume_sweep("s", quiet=True)
    assert [trial.objective for trial in resumed.results] == [trial.objective for trial in uninterrupted.results]
    assert Path("s/trials/a/metrics.jsonl").read_text() == metrics_before


def test_a_sweep_can_be_given_more_trials():
    search = {"gamma": "0.9:1"}
    sweep("CartPole-v1", search=search, trials=2, quiet=True, output_dir="s", **TINY)
    settings = {name: value for name, value in TINY.items() if name != "seed"}
    result = sweep("CartPole-v1", search=search, trials=3, quiet=True, output_dir="s", **settings, seed=None)
    assert len(result.results) == 3
    assert yaml.safe_load(Path("s/sweep.yaml").read_text())["trials"] == 3
    assert len(resume_sweep("s", quiet=True).results) == 3


def test_resume_refuses_a_directory_without_a_valid_sweep_yaml(tmp_path):
    with pytest.raises(UsageError, match=r"it has no sweep.yaml"):
        resume_sweep(tmp_path)
    Path("sweep.yaml").write_text("env: CartPole-v1\nseeds: many\n")
    with pytest.raises(UsageError, match=r"sweep.yaml is damaged"):
        resume_sweep(tmp_path)


def test_help_shows_examples(capsys):
    assert run_cli("sweep", "--help") == 0
    out = capsys.readouterr().out
    assert "corral sweep" in out and "examples:" in out and "learning_rate=log:1e-5:1e-3" in out
