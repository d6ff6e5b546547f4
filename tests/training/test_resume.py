"""A run that is stopped and resumed, also on another backend, ends with the same weights as an uninterrupted run."""

import dataclasses
import json
import os
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pytest

import corral
from corral.core.errors import CheckpointError, EnvFault
from corral.envs.toys.toys import Everything
from corral.processes import hang_detector
from corral.storage.checkpoint import list_checkpoints, newest_checkpoint, save_checkpoint
from corral.storage.metrics_file import read_metrics
from tests.toy_envs import Broken, ByteDigits, Counter, Shuffled, Stateful, Unlike

SMALL = {
    "n_envs": 4,
    "n_steps": 32,
    "batch_size": 64,
    "n_epochs": 2,
    "eval_freq": 0,
    "tensorboard": False,
    "quiet": True,
}
BACKENDS = [{"backend": "serial"}, {"backend": "worker", "num_workers": 2}, {"backend": "process", "num_workers": 3}]


def train(env, steps, name, **settings):
    return corral.train(env, **{**SMALL, "seed": 3, "timesteps": steps, "output_dir": name, **settings}).summary


@pytest.mark.parametrize(
    ("env", "settings"),
    [
        ("CartPole-v1", {}),
        ("CartPole-v1", {"overlap": True}),
        ("CartPole-v1", {"learner": "torch", "target_kl": 0.01}),
        ("Pendulum-v1", {"normalize_obs": True, "normalize_reward": True, "overlap": True}),
        ("toy-maze", {"learner_shares": 2}),
        ("toy-everything", {"learning_rate_end": 1e-5}),
    ],
    ids=["plain", "overlap", "torch", "normalised", "masked", "nested"],
)
def test_a_resumed_run_equals_an_uninterrupted_run(env, settings, capsys):
    budget = 768
    uninterrupted = train(env, budget, "uninterrupted", backend="serial", **settings)
    for i, backend in enumerate(BACKENDS):
        steps = 256 if "learning_rate_end" not in settings else budget  # a learning rate schedule depends on the budget
        if steps < budget:
            train(env, steps, f"run{i}", **backend, **settings)
            corral.resume(f"run{i}", timesteps=512, quiet=True, **BACKENDS[i - 1])
        else:
            train_and_stop_after(env, 3, f"run{i}", steps, **backend, **settings)
        summary = corral.resume(f"run{i}", timesteps=budget, quiet=True, **BACKENDS[i - 2]).summary
        assert summary.weights_sha256 == uninterrupted.weights_sha256, (backend, summary)
        assert (summary.steps, summary.episodes, summary.mean_reward) == (
            uninterrupted.steps,
            uninterrupted.episodes,
            uninterrupted.mean_reward,
        )
        rows, expected = read_metrics(Path(f"run{i}/metrics.jsonl")), read_metrics(Path("uninterrupted/metrics.jsonl"))
        for name in ("time/total_timesteps", "rollout/episodes", "train/loss", "train/n_updates"):
            assert [row[name] for row in rows] == [row[name] for row in expected], name
    assert "could not be restored" not in capsys.readouterr().err


@pytest.mark.parametrize("settings", [{}, {"learner": "torch"}], ids=["numpy", "torch"])
def test_a_run_with_a_kl_reference_resumes_exactly(settings):
    """The run is stopped twice: during the critic warm-up, and while the KL coefficient is annealed."""
    kl_settings = {"kl_ref_coef": 0.5, "kl_ref_steps": 512, "critic_warmup": 256, **settings}
    uninterrupted = train(lambda: Shuffled(), 768, "uninterrupted", backend="serial", **kl_settings)
    train_and_stop_after(lambda: Shuffled(), 1, "run", 768, backend="worker", num_workers=2, **kl_settings)
    corral.resume("run", env=lambda: Shuffled(), timesteps=384, backend="serial", quiet=True)
    resumed = corral.resume("run", env=lambda: Shuffled(), timesteps=768, backend="process", quiet=True).summary
    assert resumed.weights_sha256 == uninterrupted.weights_sha256
    for name in ("uninterrupted", "run"):
        rows = read_metrics(Path(name) / "metrics.jsonl")
        assert [row["train/kl_ref_coef"] for row in rows] == [0.5, 0.375, 0.25, 0.125, 0.0, 0.0]
        distances = [row.get("train/kl_ref") for row in rows]
        assert distances[0] < 1e-6 and min(distances[2:4]) > 1e-6 and distances[4:] == [None, None]
    checkpoint = newest_checkpoint(Path("run/checkpoints")).checkpoint
    assert not np.array_equal(checkpoint.reference["network.pi.0.weight"], checkpoint.policy["network.pi.0.weight"])


def test_the_kl_reference_is_saved_only_in_runs_that_use_one():
    train("CartPole-v1", 128, "plain", kl_ref_coef=0.0)
    train("CartPole-v1", 128, "with_reference", kl_ref_coef=0.1)
    files = [
        {p.name for p in list_checkpoints(Path(name, "checkpoints"))[-1].iterdir()}
        for name in ("plain", "with_reference")
    ]
    assert files[1] - files[0] == {"reference.safetensors"}
    assert "train/kl_ref_coef" not in read_metrics(Path("plain/metrics.jsonl"))[-1]


@pytest.mark.parametrize(
    ("env", "settings", "is_compatible"),
    [(Counter, {"normalize_obs": True}, True), (ByteDigits, {}, False), (Everything, {"normalize_obs": True}, False)],
)
def test_checkpoints_of_earlier_versions_with_another_observation_encoding_are_refused(env, settings, is_compatible):
    """Earlier versions scaled all bytes, did not normalise integers, and saved no ``encoding`` in the checkpoint."""
    train(env, 128, "run", **settings)
    saved = newest_checkpoint(Path("run/checkpoints"))
    state = {name: value for name, value in saved.checkpoint.state.items() if name != "encoding"}
    save_checkpoint(Path("run/checkpoints"), dataclasses.replace(saved.checkpoint, state=state))
    for use in (lambda: corral.load("run"), lambda: corral.resume("run", env=env, timesteps=256, quiet=True)):
        if is_compatible:
            use()
        else:
            with pytest.raises(CheckpointError, match=r"scaled the integers of observation .* train it again"):
                use()


@pytest.mark.parametrize("env", [Shuffled, ByteDigits], ids=["scored actions", "bytes"])
def test_a_run_with_normalised_observations_resumes_exactly(env):
    uninterrupted = train(lambda: env(), 512, "uninterrupted", backend="serial", normalize_obs=True)
    train(lambda: env(), 256, "run", backend="worker", num_workers=2, normalize_obs=True)
    resumed = corral.resume("run", env=lambda: env(), timesteps=512, backend="process", quiet=True).summary
    assert resumed.weights_sha256 == uninterrupted.weights_sha256


def train_and_stop_after(env, iterations, name, steps, **settings):
    def stop(state):
        if state.iteration == iterations:
            state.stop()

    corral.train(env, **{**SMALL, "seed": 3, "timesteps": steps, "output_dir": name, **settings}, callback=stop)


def test_a_checkpoint_contains_the_actions_of_current_episodes_and_no_lagged_weights_without_overlap():
    train("CartPole-v1", 256, "run")
    envs = newest_checkpoint(Path("run/checkpoints")).checkpoint.envs
    assert [len(envs[f"actions/{i}"]) for i in range(4)] == envs["length"].tolist()
    assert "behind.safetensors" not in {p.name for p in list_checkpoints(Path("run/checkpoints"))[-1].iterdir()}


def test_envs_with_get_state_are_restored_from_their_state_instead_of_replayed():
    uninterrupted = train(lambda: Stateful(1000), 256, "uninterrupted")
    train(lambda: Stateful(1000), 128, "run")
    envs = newest_checkpoint(Path("run/checkpoints")).checkpoint.envs
    assert len(envs["actions/0"]) == 0 and bytes(envs["state/0"].tolist()).startswith(b"[32,")
    resumed = corral.resume("run", env=lambda: Stateful(1000), timesteps=256, backend="worker", quiet=True).summary
    assert resumed.weights_sha256 == uninterrupted.weights_sha256 and resumed.inexact == 0


def test_env_states_that_are_slow_to_get_are_saved_rarely():
    class SlowToSave(Counter):
        get_state_calls = 0

        def get_state(self):
            SlowToSave.get_state_calls += 1
            time.sleep(0.05)
            return json.dumps([self.step_count, self.draw, self.np_random.bit_generator.state]).encode()

        def set_state(self, state):
            self.step_count, self.draw, self.np_random.bit_generator.state = json.loads(state)

    train(lambda: SlowToSave(1000), 640, "run", backend="serial")
    # Called once per env in five rollouts: the interval until the next call is twenty seconds.
    assert SlowToSave.get_state_calls == 4
    uninterrupted = train(lambda: SlowToSave(1000), 1280, "uninterrupted", backend="serial")
    resumed = corral.resume("run", env=lambda: SlowToSave(1000), timesteps=1280, quiet=True).summary
    assert resumed.weights_sha256 == uninterrupted.weights_sha256 and resumed.inexact == 0


@pytest.mark.parametrize(
    ("fail", "message"),
    [
        (lambda: time.sleep(1000), "gave no sign of life for 3 s"),
        (lambda: os.kill(os.getpid(), signal.SIGSEGV), "SIGSEGV"),
        (lambda: os._exit(7), "code 7"),
    ],
    ids=["hang", "segfault", "exit"],
)
def test_env_states_that_crash_or_hang_the_env_are_refused_before_the_trainer_process_loads_them(
    monkeypatch, tmp_path, fail, message
):
    bad_state_marker = tmp_path / "bad_state"

    class Emulator(Stateful):
        restored_bad_state = False

        def set_state(self, state):
            super().set_state(state)
            self.restored_bad_state = bad_state_marker.exists()

        def step(self, action):
            if self.restored_bad_state:
                fail()
            return super().step(action)

    monkeypatch.setattr(hang_detector, "_MIN_TIMEOUT", 3.0)
    train(lambda: Emulator(1000), 128, "run", backend="serial")
    bad_state_marker.touch()
    with pytest.raises(CheckpointError, match=f"cannot continue from their states in the checkpoint: .*{message}"):
        corral.resume("run", env=lambda: Emulator(1000), timesteps=256, quiet=True)
    bad_state_marker.unlink()
    assert corral.resume("run", env=lambda: Emulator(1000), timesteps=256, quiet=True).summary.inexact == 0


def test_an_env_that_allows_only_one_instance_is_resumed_from_its_state(tmp_path):
    class Exclusive(Stateful):
        def __init__(self):
            super().__init__(1000)
            (tmp_path / "lock").mkdir()  # fails while an env in this or another process has the lock

        def close(self):
            (tmp_path / "lock").rmdir()

    train(Exclusive, 128, "run", backend="serial", n_envs=1)
    assert corral.resume("run", env=Exclusive, timesteps=256, quiet=True).summary.inexact == 0


def test_nondeterministic_envs_start_new_episodes_on_resume_with_a_warning(capsys):
    train(lambda: Unlike(1000), 128, "run")
    summary = corral.resume("run", env=lambda: Unlike(1000), timesteps=256, quiet=True).summary
    assert summary.inexact == 4 and summary.steps == 256
    assert "envs 0, 1, 2, 3 could not be restored" in capsys.readouterr().err


def test_a_run_killed_before_its_first_checkpoint_starts_again_at_step_0(capsys):
    uninterrupted = train("CartPole-v1", 128, "uninterrupted")
    train("CartPole-v1", 128, "run")
    run = Path("run")
    for path in list_checkpoints(run / "checkpoints"):
        for file in path.iterdir():
            file.unlink()
        path.rmdir()
    with pytest.raises(CheckpointError, match="no checkpoint to continue from"):
        corral.resume("run", quiet=True)  # metrics show that there were checkpoints, so their loss is an error
    (run / "metrics.jsonl").write_text("")
    assert corral.resume("run", quiet=True).summary.weights_sha256 == uninterrupted.weights_sha256
    assert "starting at step 0" in capsys.readouterr().err
    assert [row["time/total_timesteps"] for row in read_metrics(run / "metrics.jsonl")] == [128]


def test_a_resume_that_fails_at_its_first_step_deletes_nothing():
    """Without checkpoints it starts at step 0, but unlike a new run it must not remove the directory."""
    train(lambda: Counter(7), 128, "run", eval_freq=128, eval_episodes=1)
    run = Path("run")
    (run / "checkpoints").rename(run / "checkpoints-backup")
    (run / "metrics.jsonl").unlink()
    (run / "notes.txt").write_text("mine")
    before = sorted(path for path in run.rglob("*") if path.name not in ("summary.json", "summary.tmp"))
    with pytest.raises(EnvFault) as raised:
        corral.resume("run", env=lambda: Broken("raise", 1), quiet=True)
    assert raised.value.exit_code == 2 and {*before} <= {*run.rglob("*")}


def test_fault_counts_are_kept_across_a_resume(tmp_path):
    def make():
        class RaisesOnce(Unlike):
            def step(self, action):
                if self.step_count == 5 and not (tmp_path / "raised").exists():
                    (tmp_path / "raised").touch()
                    raise ValueError("once")
                return super().step(action)

            def _observe(self):
                return np.array([0.5, self.step_count], np.float32)

        return RaisesOnce(40)

    assert train(make, 128, "run", backend="serial").retries == 1
    summary = corral.resume("run", env=make, timesteps=256, quiet=True).summary
    assert summary.retries == 1 and json.loads(Path("run/summary.json").read_text())["retries"] == 1
    assert read_metrics(Path("run/metrics.jsonl"))[-1]["faults/retries"] == 1


def test_resume_removes_the_summary_of_the_earlier_end():
    train("CartPole-v1", 128, "run")
    summary_exists = []
    corral.resume(
        "run",
        timesteps=256,
        quiet=True,
        callback=lambda state: summary_exists.append(Path("run/summary.json").exists()),
    )
    assert summary_exists == [False] and time.time() - Path("run/summary.json").stat().st_mtime < 60


class Raising(Counter):
    """Raises in every step as soon as the file ``raise`` exists."""

    def step(self, action):
        if Path("raise").exists():
            raise ValueError("no rom saved")
        return super().step(action)


@pytest.mark.parametrize(("n_kept_checkpoints", "exit_code"), [(1, 2), (2, 1)], ids=["step 0", "step 128"])
def test_an_env_that_a_run_has_never_stepped_is_not_known_to_work(n_kept_checkpoints, exit_code):
    train(Raising, 128, "run", backend="worker", num_workers=2, keep_checkpoints=5)
    for path in list_checkpoints(Path("run/checkpoints"))[n_kept_checkpoints:]:
        shutil.rmtree(path)
    Path("raise").touch()
    with pytest.raises(EnvFault, match="no rom saved") as raised:
        corral.resume("run", env=Raising, timesteps=256, quiet=True)
    assert raised.value.exit_code == exit_code
    assert len(list_checkpoints(Path("run/checkpoints"))) == n_kept_checkpoints
