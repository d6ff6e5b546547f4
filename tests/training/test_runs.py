"""Complete runs through the Python API: files, budgets, callbacks, resume, loading, env faults, networks."""

import csv
import json
import os
import re
import resource
import shutil
import threading
import time
import warnings
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import corral
from corral.core.errors import CheckpointError, CorralError, EnvFault, RunInUse, UsageError
from corral.core.metrics import INFO_PREFIX, METRICS
from corral.core.seeding import EVALUATION, episode_seed
from corral.policy.policy import n_action_params
from corral.storage.checkpoint import list_checkpoints
from corral.storage.metrics_file import read_metrics
from tests.toy_envs import Broken, Counter, Reporter

SMALL = {"n_envs": 2, "n_steps": 32, "batch_size": 32, "n_epochs": 1, "quiet": True, "seed": 1}


def train(env="CartPole-v1", **settings):
    return corral.train(env, **{**SMALL, "timesteps": 256, "output_dir": "run", **settings})


def test_a_run_directory_contains_all_expected_files(tmp_path):
    result = train(eval_freq=128, eval_episodes=2, checkpoint_freq=64, keep_checkpoints=2)
    run = result.run_dir
    names = {p.name for p in run.iterdir()}
    assert names - {".lock"} == {
        "config.yaml",
        "metrics.jsonl",
        "progress.csv",
        "tensorboard",
        "checkpoints",
        "best",
        "summary.json",
    }
    assert [int(p.name[5:]) for p in list_checkpoints(run / "checkpoints")] == [192, 256]
    assert len(list_checkpoints(run / "best")) == 1
    rows = read_metrics(run / "metrics.jsonl")
    assert [row["time/total_timesteps"] for row in rows] == [64, 128, 192, 256]
    assert ["eval/mean_reward" in row for row in rows] == [False, True, False, True]
    assert len(list(csv.DictReader((run / "progress.csv").open()))) == 4
    summary = json.loads((run / "summary.json").read_text())
    assert summary["steps"] == 256 and summary["exit_reason"] == "timesteps" and summary["backend"] == "serial"
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert config["seed"] == 1 and config["backend"] == "serial" and config["env"] == "CartPole-v1"


def test_every_metric_has_a_description():
    rows = read_metrics(train("Pendulum-v1", eval_freq=128, eval_episodes=1).run_dir / "metrics.jsonl")
    assert not [name for row in rows for name in row if name not in METRICS and not name.startswith(INFO_PREFIX)]


def test_runs_without_output_dir_get_different_directories():
    runs = {corral.train("CartPole-v1", **SMALL, timesteps=64, eval_freq=0).run_dir for _ in range(2)}
    assert len(runs) == 2 and all(
        run.parent == Path("runs").absolute() and run.name.startswith("CartPole-v1-") for run in runs
    )


@pytest.mark.parametrize(
    ("budget", "reason", "check"),
    [
        ({"timesteps": 100}, "timesteps", lambda s: s.steps == 128),
        ({"num_episodes": 7}, "num_episodes", lambda s: 7 <= s.episodes < 30),
        ({"duration": 0.2 / 3600}, "duration", lambda s: s.steps >= 64),
        ({"timesteps": 10**9, "num_episodes": 5}, "num_episodes", lambda s: s.episodes >= 5),
    ],
)
def test_whichever_budget_is_reached_first_ends_the_run(budget, reason, check):
    settings = {**SMALL, "eval_freq": 0, **budget}
    summary = corral.train("CartPole-v1", **settings).summary
    assert summary.exit_reason == reason and check(summary), summary


def test_a_callback_can_read_metrics_log_and_stop_the_run():
    calls = []

    def callback(state):
        calls.append((state.iteration, state.timesteps, state.metrics["time/fps"] > 0))
        state.log("mine/number", state.iteration * 10)
        if state.iteration == 3:
            state.stop("enough")

    result = train(callback=callback, timesteps=10_000, eval_freq=0)
    assert calls == [(1, 64, True), (2, 128, True), (3, 192, True)]
    assert result.summary.exit_reason == "enough" and result.summary.steps == 192
    assert [row["mine/number"] for row in read_metrics(result.run_dir / "metrics.jsonl")] == [10, 20, 30]
    assert [int(p.name[5:]) for p in list_checkpoints(result.run_dir / "checkpoints")] == [0, 192]


def test_numbers_in_env_infos_become_metrics():
    rows = read_metrics(train(lambda: Reporter(length=4)).run_dir / "metrics.jsonl")
    assert rows[0]["info/height"] == pytest.approx(5.0) and rows[0]["info/odd"] == 1.0 and "info/name" not in rows[0]


def test_the_learning_rate_decays_linearly():
    rows = read_metrics(train(learning_rate=1e-3, learning_rate_end=2e-4, eval_freq=0).run_dir / "metrics.jsonl")
    assert [row["train/learning_rate"] for row in rows] == pytest.approx([8e-4, 6e-4, 4e-4, 2e-4])


class Tiny(torch.nn.Module):
    """One linear layer for action parameters and value."""

    def __init__(self, observation_space, action_space):
        super().__init__()
        self.body = torch.nn.Linear(observation_space.shape[0], n_action_params(action_space) + 1)

    def forward(self, observations):
        out = self.body(observations)
        return out[:, :-1], out[:, -1]


def test_a_custom_network_can_be_trained_resumed_and_loaded():
    run = train(policy=Tiny, eval_freq=0).run_dir
    with pytest.raises(UsageError, match=r"corral.resume\(run, policy=...\)"):
        corral.resume(run, timesteps=512, quiet=True)
    assert corral.resume(run, timesteps=512, policy=Tiny, quiet=True).summary.steps == 512
    with pytest.raises(UsageError, match=r"load\(run, policy=...\)"):
        corral.load(run)
    assert corral.load(run, policy=Tiny).predict(np.zeros(4, np.float32)).action in (0, 1)
    by_name = train(policy="tests.training.test_runs:Tiny", output_dir="named", eval_freq=0)
    assert by_name.summary.steps == 256


# ---- resume ----------------------------------------------------------------------------------------------------------


def test_resume_continues_steps_and_update_counts():
    run = train(eval_freq=0, normalize_obs=True, normalize_reward=True).run_dir
    result = corral.resume(run, timesteps=400, num_workers=2, quiet=True)
    assert result.summary.steps == 448 and result.summary.backend == "worker"
    steps = [row["time/total_timesteps"] for row in read_metrics(run / "metrics.jsonl")]
    assert steps == [64, 128, 192, 256, 320, 384, 448]
    updates = [row["train/n_updates"] for row in read_metrics(run / "metrics.jsonl")]
    assert np.diff(updates).tolist() == [2] * 6
    assert yaml.safe_load((run / "config.yaml").read_text())["timesteps"] == 400


def test_resuming_a_finished_run_does_nothing():
    run = train(eval_freq=0).run_dir
    before = (run / "metrics.jsonl").read_text()
    assert corral.resume(run, quiet=True).summary.steps == 256
    assert (run / "metrics.jsonl").read_text() == before


def test_resume_uses_an_older_checkpoint_if_the_newest_is_damaged(capsys):
    run = train(eval_freq=0, checkpoint_freq=64).run_dir
    (list_checkpoints(run / "checkpoints")[-1] / "policy.safetensors").write_bytes(b"gone")
    result = corral.resume(run, timesteps=256, quiet=True)
    assert "WARNING" in capsys.readouterr().err and result.summary.steps == 256
    assert [row["time/total_timesteps"] for row in read_metrics(run / "metrics.jsonl")] == [64, 128, 192, 256]


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"n_envs": 4}, UsageError, "n_envs belongs to the run"),
        ({"gamma": 0.9}, UsageError, "gamma belongs to the run"),
        ({"env": "Acrobot-v1"}, UsageError, "is not what the run was made with: CartPole-v1"),
    ],
)
def test_resume_refuses_settings_that_would_change_the_run(settings, error, message):
    run = train(eval_freq=0, timesteps=64).run_dir
    with pytest.raises(error, match=message):
        corral.resume(run, quiet=True, **settings)


def test_resume_imports_the_env_code_named_by_a_run_only_if_the_caller_repeats_its_name(tmp_path):
    (tmp_path / "game.py").write_text("from tests.toy_envs import Counter\nmake = Counter\n")
    run = train("game.py:make", eval_freq=0, timesteps=64).run_dir
    with pytest.raises(UsageError, match=r"repeat it: --env game.py:make"):
        corral.resume("run", quiet=True)
    assert corral.resume(run, env="game.py:make", timesteps=128, quiet=True).summary.steps == 128
    assert corral.resume(run, env="./game.py:make", timesteps=192, quiet=True).summary.steps == 192
    with pytest.raises(UsageError, match="is not what the run was made with"):
        corral.resume(run, env="game.py:other", quiet=True)
    corral.load(run)  # loading needs no env


def test_a_run_on_an_env_callable_must_be_resumed_with_the_callable():
    def make():
        return Counter(7)

    run = train(make, eval_freq=0, timesteps=64).run_dir
    with pytest.raises(UsageError, match=r"corral.resume\(run, env=...\)"):
        corral.resume(run, quiet=True)
    assert corral.resume(run, env=make, timesteps=128, quiet=True).summary.steps == 128


def test_a_run_directory_can_be_locked_by_one_process_only(tmp_path):
    run = train(eval_freq=0, timesteps=64).run_dir
    from corral.storage.run_dir import RunDirectory

    locked_directory = RunDirectory(run)
    locked_directory.lock()
    with pytest.raises(RunInUse, match=f"in use by process {os.getpid()}"):
        corral.resume(run, quiet=True)
    locked_directory.unlock()
    (run / ".lock").write_text("99999999")  # left by a process that no longer exists
    corral.resume(run, quiet=True)
    with pytest.raises(UsageError, match="already holds a run"):
        train()


@pytest.mark.parametrize("other_run", ["runs", "ended"])
def test_a_directory_that_another_run_occupies_during_the_start_is_not_touched(other_run):
    """The directory is empty when the run is planned, but not any more when its envs are constructed."""
    from corral.storage.run_dir import RunDirectory

    other_directory = RunDirectory(Path("run"))
    summaries = []

    def make():
        if other_run == "runs":
            other_directory.create()
        elif not summaries:
            summaries.append(train(eval_freq=0, timesteps=64).summary)
        return Counter(7)

    with pytest.raises(RunInUse if other_run == "runs" else UsageError) as raised:
        train(make, eval_freq=0)
    assert str(raised.value).startswith("run is in use" if other_run == "runs" else "run already holds a run")
    assert f"process {os.getpid()}" in str(raised.value) or other_run == "ended"
    other_directory.unlock()
    if summaries:
        assert corral.resume("run", quiet=True).summary.weights_sha256 == summaries[0].weights_sha256
        assert [row["time/total_timesteps"] for row in read_metrics(Path("run/metrics.jsonl"))] == [64]


@pytest.mark.parametrize("ended", [False, True])
def test_runs_started_in_the_same_second_get_different_directories(monkeypatch, ended):
    from corral.core.entry_points import python_name
    from corral.storage.run_dir import plan_run

    monkeypatch.setattr(time, "strftime", lambda form: "20260101-120000")
    other_directories = []

    def make():
        if not other_directories:
            other_directories.append(plan_run(None, python_name(make)))
            other_directories[0].create()
            if ended:
                other_directories[0].config_file.write_text("env: CartPole-v1")
                other_directories[0].unlock()
        return Counter(7)

    run = corral.train(make, **SMALL, timesteps=64, eval_freq=0).run_dir
    other_directories[0].unlock()
    assert (
        run.name == f"{other_directories[0].path.name}-2"
        and run.parent == other_directories[0].path.parent == Path("runs").absolute()
    )


FINISHED = '{"steps": 64, "exit_reason": "timesteps"}'


@pytest.mark.parametrize(
    ("config", "summary", "hint"),
    [
        ("env: CartPole-v1", None, "resume run"),
        ("env: CartPole-v1", FINISHED, "resume run --timesteps 128"),
        ("env: CartPole-v1", '{"steps": 64, "exit_reason": "SIGINT"}', "resume run"),
        ("env: 'my env.py:make'", None, "resume run --env 'my env.py:make'"),
        ("env: a.py:make\npolicy: b:net", FINISHED, "resume run --env a.py:make --policy b:net --timesteps 128"),
        ("env: python:a.make", FINISHED, "corral.resume('run', env=..., timesteps=128)"),
        ("env: mypython:make", FINISHED, "resume run --env mypython:make --timesteps 128"),
        ("env: CartPole-v1", FINISHED.replace("timesteps", "stages"), "resume run --timesteps 128"),
        ("env: [1", FINISHED, "resume run"),
        ('env: "evil:\\e[31m"', FINISHED, "resume run"),
        *(
            ("env: CartPole-v1", summary, "resume run")
            for summary in ("{", "[]", "7", "{}", '{"steps": "many", "exit_reason": "timesteps"}', "x" * (2 << 20))
        ),
        ("env: CartPole-v1", '{"steps": 1e400, "exit_reason": "timesteps"}', "resume run"),
        ("env: CartPole-v1", '{"steps": 64, "exit_reason": ["timesteps"]}', "resume run"),
    ],
)
def test_an_output_directory_with_a_run_is_refused_with_the_command_that_resumes_it(config, summary, hint):
    Path("run").mkdir()
    Path("run/config.yaml").write_text(config)
    if summary is not None:
        Path("run/summary.json").write_text(summary)
    with pytest.raises(UsageError) as raised:
        train("CartPole-v1")
    assert re.search(rf"already holds a run; continue it with `(\S+ )?{re.escape(hint)}`, or", str(raised.value)), (
        raised.value
    )


def test_the_resume_command_for_a_finished_run_has_a_larger_budget():
    train("CartPole-v1", eval_freq=0, timesteps=64)
    with pytest.raises(UsageError, match="resume run --timesteps 128`"):
        train("CartPole-v1")


def test_a_lock_file_that_is_replaced_at_every_attempt_is_an_error(monkeypatch):
    from corral.storage.run_dir import RunDirectory

    monkeypatch.setattr(os.path, "samestat", lambda first, second: False)
    Path("run").mkdir()
    with pytest.raises(UsageError, match=r"run/\.lock cannot be used"):
        RunDirectory(Path("run")).lock()


def test_resume_refuses_a_run_without_checkpoints_and_a_directory_without_a_run(tmp_path):
    run = train(eval_freq=0, timesteps=64).run_dir
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(CheckpointError, match="no checkpoint to continue from"):
        corral.resume(run, quiet=True)
    with pytest.raises(UsageError, match="not a run directory"):
        corral.resume(tmp_path / "nothing", quiet=True)


def test_a_config_with_settings_chosen_by_backend_auto_can_be_resumed():
    run = train(eval_freq=0, timesteps=64, parallel_start_method="spawn").run_dir  # backend auto chose serial
    assert corral.resume(run, timesteps=128, quiet=True).summary.steps == 128
    assert corral.resume(run, timesteps=192, backend="serial", quiet=True).summary.steps == 192


def test_a_new_best_policy_is_saved_if_the_old_one_was_deleted():
    run = train(eval_freq=64, eval_episodes=1, checkpoint_freq=64).run_dir
    for path in [*list_checkpoints(run / "checkpoints")[1:], *list_checkpoints(run / "best")]:
        shutil.rmtree(path)  # as if everything after the first checkpoint had been lost
    result = corral.resume(run, timesteps=256, quiet=True)
    assert result.summary.best_eval_reward is not None and len(list_checkpoints(run / "best")) == 1


def test_resume_with_an_env_of_different_spaces_is_refused():
    def make(length, size):
        class SizedCounter(Counter):
            def __init__(self):
                super().__init__(length)
                self.observation_space = type(self.observation_space)(-size, size, (2,), np.float32)

        return lambda: SizedCounter()

    run = train(make(3, 10), eval_freq=0, timesteps=64).run_dir
    with pytest.raises(CheckpointError, match="the env has spaces"):
        corral.resume(run, env=make(3, 20), quiet=True)
    with pytest.raises(UsageError, match="unknown setting 'timestep'"):
        corral.resume(run, env=make(3, 10), timestep=5, quiet=True)


def test_load_warns_when_the_newest_checkpoint_is_damaged():
    run = train(eval_freq=0, checkpoint_freq=64).run_dir
    (list_checkpoints(run / "checkpoints")[-1] / "state.json").write_bytes(b"{")
    with pytest.warns(UserWarning, match="using an older checkpoint"):
        assert corral.load(run).timesteps == 192


# ---- faults ----------------------------------------------------------------------------------------------------------


def test_an_env_that_raises_in_its_constructor_or_first_reset_leaves_no_files(tmp_path):
    for fault, at_step in (("constructor", 1), ("raise", 0)):
        with pytest.raises(EnvFault):
            corral.train(lambda fault=fault, at_step=at_step: Broken(fault, at_step), **SMALL)
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_fails_in_or_before_its_first_step_leaves_no_files(tmp_path):
    """The env raises in its first step, or the network's outputs do not fit the action space."""

    class WrongOutputSize(torch.nn.Module):
        def forward(self, observations):
            return torch.zeros(len(observations), 3), torch.zeros(len(observations))

    for backend in ("serial", "process", "worker"):
        with pytest.raises(EnvFault) as caught:
            train(lambda: Broken("raise", 1), backend=backend)
        assert caught.value.exit_code == 2
    with pytest.raises(UsageError, match="expected"):
        train(policy=lambda observation_space, action_space: WrongOutputSize())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("foreign_file", ["notes.txt", "best/notes.txt", "best/ckpt-000000000064/state.json"])
def test_a_run_that_fails_in_its_first_step_removes_only_its_own_files(foreign_file):
    class Writes(Broken):
        def step(self, action):
            (Path("run") / foreign_file).parent.mkdir(parents=True, exist_ok=True)
            (Path("run") / foreign_file).write_text("mine")
            return super().step(action)

    with pytest.raises(EnvFault):
        train(lambda: Writes("raise", 1), backend="serial")
    remaining = [path for path in Path("run").rglob("*") if path.is_file() and path.parent.name != "faults"]
    assert Path("run") / foreign_file in remaining and (len(remaining) == 1 or "ckpt" in foreign_file)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"env": "FrozenLake-v1", "normalize_obs": True},
            "normalize_obs scales floats, and integers that are no image",
        ),
        ({"log_std_init": -1}, "log_std_init is for continuous actions"),
        ({"n_steps": 10**9, "n_envs": 64, "batch_size": 64 * 10**9}, "does not fit"),
        ({"env_kwargs": {"x": np.float32(1)}}, "env_kwargs .*a config holds numbers, text and lists"),
        ({"output_dir": "/proc/nothing/here"}, "cannot be used"),
    ],
)
def test_settings_that_do_not_fit_the_env_or_the_machine_are_refused(tmp_path, settings, message):
    with pytest.raises(UsageError, match=message):
        train(**settings)
    assert list(tmp_path.iterdir()) == []


def test_non_finite_weights_stop_the_run_and_the_last_finite_ones_are_saved():
    with pytest.raises(CorralError, match="not finite"):
        train(learning_rate=3e38, eval_freq=0)
    run = Path("run")
    assert all(np.isfinite(p.detach().numpy()).all() for p in corral.load(run).policy.parameters())


def test_a_network_with_dropout_is_deterministic():
    def make(observation_space, action_space):
        return torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Dropout(0.5), PolicyAndValueHead(16))

    hashes = {train(policy=make, output_dir=f"run{i}", eval_freq=0).summary.weights_sha256 for i in range(2)}
    assert len(hashes) == 1
    model = corral.load("run0", policy=make)
    assert (
        len({float(model.actor.values({"": np.ones((1, 4), np.float32)}, np.zeros(1, np.int64))[0]) for _ in range(5)})
        == 1
    )


class PolicyAndValueHead(torch.nn.Module):
    def __init__(self, size):
        super().__init__()
        self.out = torch.nn.Linear(size, 3)

    def forward(self, features):
        out = self.out(features)
        return out[:, :2], out[:, 2]


def test_blas_threads_in_envs_do_not_change_the_weights():
    """The matrices are large enough for BLAS to use several threads; serial and workers must agree to the last bit."""

    class Blas(Counter):
        def step(self, action):
            matrix = np.random.default_rng(self.step_count).random((400, 400))
            last_byte = np.linalg.solve(matrix, matrix[0] + 1).sum().tobytes()[0]
            outcome = super().step(action)
            return outcome[0], last_byte / 255, *outcome[2:]

    hashes = {
        train(Blas, output_dir=f"r{i}", timesteps=64, eval_freq=0, **backend).summary.weights_sha256
        for i, backend in enumerate(
            ({"backend": "serial"}, {"num_workers": 2}, {"num_workers": 2, "parallel_start_method": "fork"})
        )
    }
    assert len(hashes) == 1


def test_a_full_disk_does_not_end_a_run_and_metrics_are_written_again_later(capfd):
    """A limit on the size of files makes writes fail as they do on a full disk."""
    original_limit = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limit_file_size(state):
        disk_full = state.iteration in (2, 3)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, original_limit[1]) if disk_full else original_limit)

    try:
        result = train(eval_freq=0, checkpoint_freq=64, callback=limit_file_size)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, original_limit)
    errors = capfd.readouterr().err
    assert errors.count("metrics cannot be written") == 1 and "Traceback" not in errors
    assert result.summary.steps == 256
    rows = [row["time/total_timesteps"] for row in read_metrics(result.run_dir / "metrics.jsonl")]
    table = [int(row["time/total_timesteps"]) for row in csv.DictReader((result.run_dir / "progress.csv").open())]
    events = EventAccumulator(str(result.run_dir / "tensorboard"))
    events.Reload()
    assert rows == table == [event.step for event in events.Scalars("train/loss")] == [64, 256]


PENDULUM = {"normalize_obs": True, "overlap": True, "kl_ref_coef": 0.1, "backend": "process", "num_workers": 2}


@pytest.mark.parametrize(
    ("env", "settings"),
    [
        ("CartPole-v1", {"eval_freq": 0}),
        ("Pendulum-v1", PENDULUM),
        ("card-battle", {"opponent": "mixed:random=1,greedy=1,checkpoint=1", "snapshot_freq": 64, "n_epochs": 1}),
        (
            "card-battle",
            {
                "stages": [
                    {"name": "one", "opponent": "random", "timesteps": 64, "win_rate": 0.99},
                    {"name": "two", "opponent": "mixed:greedy=1,current=1", "timesteps": 64},
                ]
            },
        ),
    ],
    ids=["default settings", "overlap and KL reference", "mixed opponents", "stages"],
)
def test_the_columns_of_progress_csv_are_fixed_at_the_start(env, settings):
    headers = []

    def record_header(state):
        headers.append((state.run_dir / "progress.csv").read_text().splitlines()[0])
        state.log("mine/number", 1)

    def columns_if_header_never_changed(run):
        (header,) = {*headers, (run / "progress.csv").read_text().splitlines()[0]}
        return header.split(",")

    run = train(env, **{"eval_episodes": 1, **settings}, callback=record_header).run_dir
    rows = read_metrics(run / "metrics.jsonl")
    columns = columns_if_header_never_changed(run)
    names = {name for row in rows for name in row if not name.startswith((INFO_PREFIX, "mine/"))}
    assert names <= {*columns} and not [name for name in columns if name.startswith((INFO_PREFIX, "mine/"))]
    unused = {*columns} - names
    assert not [name for name in unused if not name.startswith(("eval/", "opponents/", "rollout/"))], unused
    inode = (run / "progress.csv").stat().st_ino
    corral.resume(run, timesteps=384, backend="serial", callback=record_header, quiet=True)
    assert columns_if_header_never_changed(run) == columns and (run / "progress.csv").stat().st_ino == inode
    with (run / "progress.csv").open() as file:
        steps = [row["time/total_timesteps"] for row in csv.DictReader(file)]
    assert steps == [str(row["time/total_timesteps"]) for row in read_metrics(run / "metrics.jsonl")]


def test_an_output_directory_with_other_files_is_refused_and_not_changed(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.txt").write_text("precious")
    with pytest.raises(UsageError, match="is not empty"):
        train(lambda: Broken("raise", 1))
    assert [p.name for p in (tmp_path / "run").iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_an_env_that_changes_the_working_directory_and_raises_in_close_does_not_fail_the_run(backend, tmp_path):
    class FailsToClose(Counter):
        def reset(self, *, seed=None, options=None):
            os.chdir("/")
            return super().reset(seed=seed)

        def close(self):
            raise RuntimeError("will not close")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert train(FailsToClose, backend=backend, eval_freq=0).summary.steps == 256
    assert (tmp_path / "run" / "summary.json").exists()


def test_an_env_fault_during_training_saves_a_checkpoint_of_the_finished_iterations():
    class FailsInLaterEpisodes(Counter):
        def reset(self, *, seed=None, options=None):
            self.fails = seed not in early_seeds
            return super().reset(seed=seed)

        def step(self, action):
            if self.fails:
                raise ValueError("the dragon won")
            return super().step(action)

    early_seeds = {episode_seed(1, env, episode) for env in range(2) for episode in range(30)}

    with pytest.raises(EnvFault, match="the dragon won"):
        train(FailsInLaterEpisodes, timesteps=10_000, backend="serial", eval_freq=0)
    assert json.loads(Path("run/summary.json").read_text())["exit_reason"] == "failed: EnvFault"
    assert [int(p.name[5:]) for p in list_checkpoints(Path("run/checkpoints"))] == [0, 256]


# ---- loading ---------------------------------------------------------------------------------------------------------


def test_predict_takes_one_observation_or_a_batch():
    run = train(eval_freq=128, eval_episodes=1).run_dir
    model = corral.load(run)
    action, state = model.predict(np.zeros(4, np.float32))
    assert action in (0, 1) and state is None
    batch, _ = model.predict(np.zeros((5, 4), np.float32))
    assert batch.shape == (5,)
    samples = {int(model.predict(np.zeros(4), deterministic=False).action) for _ in range(50)}
    assert samples == {0, 1}
    with pytest.raises(ValueError, match=r"shape \(3,\), expected \(4,\)"):
        model.predict(np.zeros(3))
    assert model.observation_space == gym.make("CartPole-v1").observation_space
    assert corral.load(run, checkpoint="latest").timesteps == 256


def test_predict_respects_action_masks_and_nested_spaces():
    maze = corral.load(train("toy-maze", output_dir="maze").run_dir)
    env = corral.make_env("toy-maze")
    observation, _ = env.reset(seed=0)
    for _ in range(20):
        action = maze.predict(observation, action_masks=env.unwrapped.action_masks(), deterministic=False).action
        observation, _, terminated, truncated, _ = env.step(action)  # raises if the action was masked
        if terminated or truncated:
            break
    with pytest.warns(UserWarning, match="trained with action masks"):
        maze.predict(observation)
    model = corral.load(train("toy-everything", output_dir="everything").run_dir)
    env = corral.make_env("toy-everything")
    observation, _ = env.reset(seed=0)
    assert env.action_space.contains(model.predict(observation).action)


def test_a_loaded_policy_has_the_learned_observation_statistics():
    run = train("Pendulum-v1", normalize_obs=True, eval_freq=0).run_dir
    model = corral.load(run)
    normalizer = model.policy.normalizer
    assert not torch.equal(normalizer.get_buffer("mean_0"), torch.zeros(3))


# ---- time, policy lag and networks -----------------------------------------------------------------------------------


def test_steps_per_second_include_callbacks_but_not_evaluations():
    """The time of a slow callback counts as training time; the time of an evaluation does not."""

    class SlowInEvaluation(gym.Wrapper):
        def reset(self, **kwargs):
            if kwargs.get("seed") in evaluation_seeds:
                time.sleep(0.3)
            return super().reset(**kwargs)

    evaluation_seeds = {episode_seed(1, EVALUATION, episode) for episode in range(3)}
    started = time.perf_counter()
    result = corral.train(
        lambda: SlowInEvaluation(gym.make("CartPole-v1")),
        **{**SMALL, "seed": 1, "timesteps": 256, "eval_freq": 64, "eval_episodes": 3, "backend": "serial"},
        callback=lambda state: time.sleep(0.2),
    )
    elapsed = time.perf_counter() - started
    rows = read_metrics(result.run_dir / "metrics.jsonl")
    eval_seconds = sum(row.get("eval/seconds", 0.0) for row in rows)
    assert eval_seconds > 2 * 0.9
    assert result.summary.seconds > 3 * 0.2  # the last callback is called after the last measured iteration
    assert result.summary.seconds + eval_seconds <= elapsed
    assert result.summary.fps == pytest.approx(256 / result.summary.seconds, rel=0.01)


def test_overlap_lags_one_iteration_and_logs_the_importance_weight():
    result = train(overlap=True, timesteps=512, learning_rate=5e-3, eval_freq=0)
    rho = [row["train/rho"] for row in read_metrics(result.run_dir / "metrics.jsonl")]
    assert rho[0] == pytest.approx(1, abs=1e-5)  # both of the first two rollouts began before the first update
    assert all(weight < 0.9999 for weight in rho[1:])


@pytest.mark.parametrize(
    "settings", [{"overlap": True}, {"learner": "torch"}, {"learner_shares": 2}, {"adaptive": True, "num_workers": 2}]
)
def test_a_run_with_any_learner_can_be_resumed_on_another_backend(settings):
    run = train(eval_freq=0, **settings).run_dir
    summary = corral.resume(run, timesteps=384, backend="process", num_workers=2, quiet=True).summary
    assert summary.steps == 384 and summary.backend == "process"
    assert corral.resume(run, timesteps=448, backend="worker", quiet=True).summary.backend == "worker"


def test_networks_with_batch_norm_and_dropout_train_equally_on_every_backend():
    """In training mode, BatchNorm cannot take a single row, and a trial forward pass would change its statistics."""

    class WithBatchNorm(torch.nn.Module):
        def __init__(self, observation_space, action_space):
            super().__init__()
            self.body = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.5))
            self.pi, self.vf = torch.nn.Linear(8, 2), torch.nn.Linear(8, 1)

        def forward(self, observations):
            body = self.body(observations)
            return self.pi(body), self.vf(body)[:, 0]

    hashes = {
        train(policy=WithBatchNorm, eval_freq=0, output_dir=backend, backend=backend).summary.weights_sha256
        for backend in ("serial", "worker")
    }
    assert len(hashes) == 1


def test_networks_with_lazy_layers_train_in_workers_and_can_be_loaded_and_resumed():
    def network(observation_space, action_space):
        class LazyNetwork(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.pi, self.vf = torch.nn.LazyLinear(2), torch.nn.LazyLinear(1)

            def forward(self, observations):
                return self.pi(observations), self.vf(observations)[:, 0]

        return LazyNetwork()

    assert train(policy=network, eval_freq=0, backend="worker").summary.steps == 256
    run = train(policy=network, eval_freq=0, backend="serial", n_envs=1, output_dir="one")
    assert run.summary.steps == 256
    assert corral.load(run.run_dir, policy=network).predict(np.zeros(4, np.float32)).action in (0, 1)
    assert corral.resume(run.run_dir, policy=network, timesteps=288, quiet=True).summary.steps == 288


def test_a_network_factory_that_cannot_be_pickled_is_refused_with_the_reason():
    lock = threading.Lock()

    def make_network(observation_space, action_space):
        with lock:
            return Tiny(observation_space, action_space)

    with pytest.raises(UsageError, match=r"network's factory .* cannot be sent to a worker.*inside it"):
        train(policy=make_network, eval_freq=0)


def test_networks_that_store_statistics_of_their_first_batch_are_reproducible():
    class CentredByFirstBatch(torch.nn.Module):
        def __init__(self, observation_space, action_space):
            super().__init__()
            self.pi, self.vf = torch.nn.Linear(4, 2), torch.nn.Linear(4, 1)
            self.register_buffer("centre", torch.zeros(4))

        def forward(self, observations):
            if not self.centre.any():
                self.centre.copy_(observations.mean(0).clamp(-10, 10))
            return self.pi(observations - self.centre), self.vf(observations)[:, 0]

    hashes = {train(policy=CentredByFirstBatch, eval_freq=0, output_dir=name).summary.weights_sha256 for name in "ab"}
    assert len(hashes) == 1


def test_networks_that_modify_their_input_in_place_can_be_resumed_exactly():
    class ModifiesItsInput(torch.nn.Module):
        def __init__(self, observation_space, action_space):
            super().__init__()
            self.pi, self.vf = torch.nn.Linear(4, 2), torch.nn.Linear(4, 1)

        def forward(self, observations):
            observations.div_(10)
            return self.pi(observations), self.vf(observations)[:, 0]

    uninterrupted = train(
        policy=ModifiesItsInput, eval_freq=0, timesteps=512, output_dir="uninterrupted", backend="serial"
    ).summary
    train(policy=ModifiesItsInput, eval_freq=0, output_dir="run", backend="serial")
    resumed = corral.resume("run", policy=ModifiesItsInput, timesteps=512, quiet=True).summary
    assert (resumed.weights_sha256, resumed.inexact) == (uninterrupted.weights_sha256, 0)


def test_a_compiled_loss_trains_about_as_well_as_an_uncompiled_one():
    pytest.importorskip("torch._inductor")
    eager = train(learner="torch", eval_freq=0).summary
    compiled = train(compile=True, eval_freq=0, output_dir="compiled").summary
    assert compiled.steps == eager.steps and compiled.mean_reward == pytest.approx(eager.mean_reward, rel=0.5)
