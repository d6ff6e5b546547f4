"""Whole sweeps: what is tried, what is written, and what an interruption leaves to be done."""

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
FLAGS = [
    word
    for name, value in TINY.items()
    if name != "tensorboard"
    for word in (f"--{name.replace('_', '-')}", str(value))
]


def run(*words):
    """The command line in this process; the exit code as a shell would see it."""
    try:
        return main([str(word) for word in words])
    except SystemExit as error:
        return error.code


def rows(directory):
    with Path(directory, "results.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def summary(path):
    return json.loads(Path(path, "summary.json").read_text())


def test_presets_are_trained_alike_and_the_best_is_ready_to_train(capsys):
    Path("mine.yaml").write_text("small: {net_arch: [8]}\nlarge: {net_arch: {pi: [32, 16], vf: [8]}, n_epochs: 4}\n")
    words = ["sweep", "CartPole-v1", *FLAGS, "--seeds", "2", "--presets", "mine.yaml", "--output-dir", "s"]
    assert run(*words) == 0
    out = capsys.readouterr().out
    assert "small" in out and "judged by mean reward" in out and "corral train --config s/best.yaml" in out
    found = rows("s")
    assert [row["trial"] for row in found] == ["small", "large"] and {row["steps"] for row in found} == {"256"}
    assert [row["net_arch"] for row in found] == ["8", "pi=32 16 vf=8"] and [row["n_epochs"] for row in found] == [
        "1",
        "4",
    ]
    for name in ("small", "large"):
        assert {summary(path)["seed"] for path in Path("s/trials", name).iterdir()} == {1, 2}
    best = max(found, key=lambda row: float(row["objective"]))
    settings = load_yaml("s/best.yaml")
    assert settings["net_arch"] == ({"pi": [8], "vf": [8]} if best["trial"] == "small" else {"pi": [32, 16], "vf": [8]})
    assert Path("s/sweep.png").read_bytes()[:4] == b"\x89PNG" and "| best |" in Path("s/results.md").read_text()
    assert run("train", "--config", "s/best.yaml", "--output-dir", "again") == 0
    assert summary("again")["weights_sha256"] == summary(f"s/trials/{best['trial']}/seed-1")["weights_sha256"]

    before = Path("s/trials/small/seed-1/metrics.jsonl").stat().st_mtime_ns
    assert run(*words) == 0 and run("resume", "s") == 0  # nothing is left to do
    assert Path("s/trials/small/seed-1/metrics.jsonl").stat().st_mtime_ns == before
    capsys.readouterr()
    assert run(*words, "--gamma", "0.9") == 2
    assert "was started with gamma None, not 0.9" in capsys.readouterr().err
    assert run("resume", "s", "--timesteps", "9") == 2
    assert "give the `corral sweep` command again" in capsys.readouterr().err
    assert run("resume", "s", "--eval-games", "2") == 2
    assert "leave out eval_games" in capsys.readouterr().err
    assert run("list", "runs") == 0


def test_the_script_tries_the_built_in_presets(run_script, capsys):
    small = "--env toy-maze --n-envs 1 --timesteps 256 --seed 1 --n-steps 32 --batch-size 32 --n-epochs 1 --eval-freq 0"
    assert run_script("train_ppo_sweep", "--config", "A", "B", "C", *small.split(), "--save-path", "s") == 0
    settings = {name: load_yaml(f"s/trials/{name}/config.yaml") for name in "ABC"}
    assert {s["n_envs"] for s in settings.values()} == {1} and {s["seed"] for s in settings.values()} == {1}
    assert settings["A"]["net_arch"] == {"pi": [512, 512], "vf": [512, 512]}
    assert settings["B"]["net_arch"] == settings["C"]["net_arch"] == {"pi": [256, 256], "vf": [256, 256]}
    assert settings["B"]["ent_coef"] == 0.05 and settings["A"]["ent_coef"] == 0
    assert (settings["C"]["learning_rate"], settings["C"]["learning_rate_end"]) == (3e-4, 1e-5)
    assert run_script("train_ppo_sweep", "--save-path", "a", "--log-path", "b") == 2


def test_the_best_settings_are_those_that_the_trials_of_a_built_in_env_trained_with():
    settings = {**TINY, "timesteps": 128}
    result = sweep("card-battle", presets={"a": {}, "b": {"gamma": 0.9}}, quiet=True, output_dir="s", **settings)
    best, trained = load_yaml("s/best.yaml"), load_yaml(result.best.path / "config.yaml")
    for name in ("opponent", "learning_rate", "ent_coef", "eval_episodes", "timesteps"):
        assert best[name] == trained[name], name
    assert (best["opponent"], best["learning_rate"]) == ("greedy", 1e-3)


def test_the_command_in_the_readme_searches_from_the_default_settings():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (command,) = [line for line in readme.splitlines() if line.startswith("corral sweep ") and "--trials" in line]
    words = shlex.split(command, comments=True)[1:]
    words[words.index("--trials") + 1] = "2"
    shorter = shlex.split("--n-envs 1 --timesteps 10240 --eval-freq 0 --backend serial --seed 1 --output-dir s")
    assert run(*words, *shorter) == 0
    first, second = rows("s")
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
    for trial in result.results:  # ordinary run directories
        assert summary(trial.path)["steps"] == 2560 and corral.load(trial.path) is not None


def test_trials_that_fall_behind_are_given_up_and_told_apart():
    settings = {**TINY, "timesteps": 2048, "n_epochs": 6, "n_envs": 4}
    result = sweep("CartPole-v1", search={"learning_rate": "1e-9,3e-3"}, trials=12, quiet=True, **settings)
    pruned = [trial for trial in result.results if trial.state == "pruned"]
    assert pruned and all(trial.varied["learning_rate"] == 1e-9 for trial in pruned)
    for trial in pruned:
        assert summary(trial.path)["exit_reason"] == "pruned" and trial.steps < 2048 and trial.objective is None
    assert {row["state"] for row in rows(result.sweep_dir)} == {"complete", "pruned"}


def test_evaluation_decides_where_it_is_on():
    settings = {**TINY, "eval_freq": 1000, "eval_episodes": 2}
    result = sweep("CartPole-v1", presets={"a": {}, "b": {"gamma": 0.9}}, quiet=True, **settings)
    assert result.objective_name == "evaluation reward"
    assert all(trial.objective == summary(trial.path)["eval_reward"] for trial in result.results)


def test_jobs_run_side_by_side_in_processes_that_share_the_cores(capfd):
    seen = Path("seen").absolute()
    seen.mkdir()

    class Spy(Counter):  # which only Python can give, and which is not importable by name
        def __init__(self):
            super().__init__()
            (seen / str(os.getpid())).write_text(os.environ["CORRAL_CORES"])
            print("an env may print")

    result = sweep(Spy, search={"learning_rate": "log:1e-5:1e-2"}, trials=4, jobs=2, output_dir="s", **TINY)
    assert [trial.state for trial in result.results] == ["complete"] * 4
    assert len(list(seen.iterdir())) == 2 and str(os.getpid()) not in [path.name for path in seen.iterdir()]
    assert "2 at a time" in (out := capfd.readouterr().out) and "an env may print" not in out
    one = sweep(Spy_free, search={"learning_rate": "log:1e-5:1e-2"}, trials=1, quiet=True, **TINY)
    assert summary(one.results[0].path)["weights_sha256"] == summary("s/trials/0")["weights_sha256"]


def Spy_free():
    return Counter()


def test_a_trial_that_fails_does_not_end_the_sweep():
    def make():
        return gym.make("CartPole-v1")

    result = sweep(make, presets={"good": {}, "bad": {"env_kwargs": {"nonsense": 1}}}, quiet=True, **TINY)
    assert [trial.state for trial in result.results] == ["complete", "failed"]
    assert "unexpected keyword argument 'nonsense'" in result.results[1].error
    assert result.best.label == "good"


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_sweep_in_which_nothing_works_ends(jobs):
    class Bad(Counter):
        def step(self, action):
            if self.step_count > 3:
                raise ValueError("the dragon won")
            return super().step(action)

    search = {"learning_rate": "log:1e-5:1e-2"}
    with pytest.raises(CorralError, match=r"(?s)trials failed and none worked; the last: .*the dragon won"):
        sweep(Bad, search=search, trials=9, jobs=jobs, quiet=True, output_dir="s", **TINY)
    assert 3 <= len(rows("s")) <= 4


def test_a_job_that_dies_costs_one_trial():
    fuse = Path("fuse").absolute()
    fuse.touch()

    class Deadly(Counter):
        def step(self, action):
            if fuse.exists() and self.step_count > 3:
                fuse.unlink()
                os._exit(9)
            return super().step(action)

    result = sweep(Deadly, search={"gamma": "0.9:1"}, trials=3, jobs=2, quiet=True, **TINY)
    states = [trial.state for trial in result.results]
    assert sorted(states) == ["complete", "complete", "failed"]
    assert "exited with code 9 and without a result" in result.results[states.index("failed")].error


def test_one_sweep_at_a_time_writes_to_a_directory():
    sweep("CartPole-v1", presets=["A"], quiet=True, output_dir="s", **TINY)
    holder = RunDirectory(Path("s"))
    holder.lock()
    with pytest.raises(RunInUse, match=f"in use by process {os.getpid()}"):
        resume_sweep("s")
    assert run("sweep", "CartPole-v1", "--preset", "A", *FLAGS, "--output-dir", "s") == 3
    holder.unlock()


def test_code_that_a_sweep_names_is_imported_only_if_the_user_names_it(capsys):
    Path("game.py").write_text("from tests.toy_envs import Counter as make\n")
    assert run("sweep", "game.py:make", "--preset", "A", *FLAGS, "--output-dir", "s") == 0
    assert "corral play s/trials/A --env game.py:make" in capsys.readouterr().out
    assert run("resume", "s") == 2
    assert "--env game.py:make" in capsys.readouterr().err
    assert run("resume", "s", "--env", "game.py:make") == 0


def test_without_optuna_presets_work_and_a_search_says_what_to_install():
    code = (
        "import sys; sys.modules['optuna'] = None\n"
        "from corral.cli.main import main\n"
        f"flags = {FLAGS!r}\n"
        "assert main(['sweep', 'CartPole-v1', '--preset', 'A', *flags, '--output-dir', 's']) == 0\n"
        "sys.exit(main(['sweep', 'CartPole-v1', '--trials', '3', *flags, '--output-dir', 't']))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert done.returncode == 2 and "pip install 'corral[sweep]'" in done.stderr, done.stderr
    assert not Path("t").exists()


# Interruptions


def test_a_signal_while_a_trial_writes_its_end_ends_the_sweep(monkeypatch, capsys):
    def interrupted(run, reason):
        signal.raise_signal(signal.SIGINT)
        return summarize(run, reason)

    words = ["sweep", "CartPole-v1", *FLAGS, "--preset", "A", "B", "--output-dir", "s"]
    with monkeypatch.context() as patch:
        patch.setattr("corral.training.run_session.summarize", interrupted)
        assert run(*words) == 130
    assert "interrupted after 1 of 2 trials" in capsys.readouterr().out
    assert summary("s/trials/A")["exit_reason"] == "timesteps" and not Path("s/trials/B").exists()
    assert run("resume", "s") == 0
    assert [row["state"] for row in rows("s")] == ["complete", "complete"]


def test_a_job_that_does_not_end_is_killed(monkeypatch):
    monkeypatch.setattr("corral.sweeps.api._SAVE_SECONDS", 0.1)
    calls = []

    class PeerStalled:
        label = "0"

        def __getattr__(self, name):
            return lambda: calls.append(name)

    _stop_jobs([PeerStalled()], queue.Queue())
    assert calls == ["interrupt", "kill", "close"]


LONG = {"checkpoint_freq": 256, **TINY, "timesteps": 4096, "n_epochs": 10}


def start(*words, under_way=(1,)):
    """A sweep of three trials in a process of its own, once it is well into those that should be under way."""
    flags = [word for name, value in LONG.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    flags = flags[: flags.index("--tensorboard")]
    search = ["--trials", "3", "--search", "learning_rate=log:1e-5:1e-2"]
    process = subprocess.Popen(
        [sys.executable, "-m", "corral", "sweep", "CartPole-v1", *flags, *search, "--output-dir", "s", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    deadline = time.monotonic() + 600
    files = [Path(f"s/trials/{number}/metrics.jsonl") for number in under_way]
    while not all(file.exists() and len(read_metrics(file)) > 8 for file in files):
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()[0]
        time.sleep(0.01)
    return process


def goes_on(begun):
    """The command given again finishes the sweep; the trials that were begun keep what they had."""
    had = {number: read_metrics(Path(f"s/trials/{number}/metrics.jsonl"))[:3] for number in begun}
    done_before = Path("s/trials/0/summary.json").read_text() if 0 not in begun else None
    assert run("resume", "s") == 0
    found = rows("s")
    assert [row["trial"] for row in found] == ["0", "1", "2"] and {row["state"] for row in found} == {"complete"}
    for number, first_rows in had.items():
        assert read_metrics(Path(f"s/trials/{number}/metrics.jsonl"))[:3] == first_rows  # with their clock times
    assert done_before is None or Path("s/trials/0/summary.json").read_text() == done_before
    undisturbed = corral.train("CartPole-v1", quiet=True, **{**LONG, "learning_rate": float(found[1]["learning_rate"])})
    assert undisturbed.summary.weights_sha256 == summary("s/trials/1")["weights_sha256"]


def test_a_killed_sweep_goes_on_with_the_trial_that_was_under_way():
    process = start()
    process.kill()
    process.wait()
    goes_on(begun=[1])


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no signals to send to a process")
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.deep)]
)
def test_a_signal_saves_and_says_how_to_go_on(number, code):
    process = start()
    process.send_signal(number)
    out, _ = process.communicate(timeout=600)
    assert process.returncode == code, out
    assert "interrupted after 1 of 3 trials; resume with: " in out and "corral resume s" in out
    assert summary("s/trials/1")["exit_reason"] == number.name
    assert [row["state"] for row in rows("s")] == ["complete", "begun"]
    goes_on(begun=[1])


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no signals to send to a process")
@pytest.mark.parametrize("name", ["SIGKILL", pytest.param("SIGTERM", marks=pytest.mark.deep)])
def test_jobs_end_with_the_sweep_and_their_trials_go_on(name):
    process = start("--jobs", "2", under_way=(0, 1))
    process.send_signal(getattr(signal, name))
    process.communicate(timeout=600)
    goes_on(begun=[0, 1])


def test_presets_that_were_cut_off_are_gone_on_with():
    words = {"presets": {"a": {}, "b": {"gamma": 0.9}, "c": {"gamma": 0.8}}, "quiet": True, "output_dir": "s", **TINY}
    whole = sweep("CartPole-v1", **words)
    Path("s/trials/a/summary.json").unlink()  # killed in its last moment
    for path in Path("s/trials/b").iterdir():  # killed in its first
        if path.name not in ("config.yaml", ".lock"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    kept = Path("s/trials/a/metrics.jsonl").read_text()
    again = resume_sweep("s", quiet=True)
    assert [trial.objective for trial in again.results] == [trial.objective for trial in whole.results]
    assert Path("s/trials/a/metrics.jsonl").read_text() == kept


def test_a_sweep_can_be_given_more_trials():
    search = {"gamma": "0.9:1"}
    sweep("CartPole-v1", search=search, trials=2, quiet=True, output_dir="s", **TINY)
    settings = {name: value for name, value in TINY.items() if name != "seed"}
    result = sweep("CartPole-v1", search=search, trials=3, quiet=True, output_dir="s", **settings, seed=None)
    assert len(result.results) == 3
    assert yaml.safe_load(Path("s/sweep.yaml").read_text())["trials"] == 3
    assert len(resume_sweep("s", quiet=True).results) == 3


def test_only_a_sweeps_directory_is_resumed_as_one(tmp_path):
    with pytest.raises(UsageError, match=r"it has no sweep.yaml"):
        resume_sweep(tmp_path)
    Path("sweep.yaml").write_text("env: CartPole-v1\nseeds: many\n")
    with pytest.raises(UsageError, match=r"sweep.yaml is damaged"):
        resume_sweep(tmp_path)


def test_help_teaches(capsys):
    assert run("sweep", "--help") == 0
    out = capsys.readouterr().out
    assert "corral sweep" in out and "examples:" in out and "learning_rate=log:1e-5:1e-3" in out
