"""A run that was stopped and resumed, also in another way, ends as one that never was: to the last bit."""

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
PLACES = [{"backend": "serial"}, {"backend": "worker", "num_workers": 2}, {"backend": "process", "num_workers": 3}]


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
def test_a_resumed_run_ends_as_one_that_was_never_stopped(env, settings, capsys):
    budget = 768
    whole = train(env, budget, "whole", backend="serial", **settings)
    for i, place in enumerate(PLACES):
        steps = 256 if "learning_rate_end" not in settings else budget  # a schedule belongs to its budget
        if steps < budget:
            train(env, steps, f"run{i}", **place, **settings)
            corral.resume(f"run{i}", timesteps=512, quiet=True, **PLACES[i - 1])
        else:
            stopped_after(env, 3, f"run{i}", steps, **place, **settings)
        summary = corral.resume(f"run{i}", timesteps=budget, quiet=True, **PLACES[i - 2]).summary
        assert summary.weights_sha256 == whole.weights_sha256, (place, summary)
        assert (summary.steps, summary.episodes, summary.mean_reward) == (
            whole.steps,
            whole.episodes,
            whole.mean_reward,
        )
        rows, expected = read_metrics(Path(f"run{i}/metrics.jsonl")), read_metrics(Path("whole/metrics.jsonl"))
        for name in ("time/total_timesteps", "rollout/episodes", "train/loss", "train/n_updates"):
            assert [row[name] for row in rows] == [row[name] for row in expected], name
    assert "could not be restored" not in capsys.readouterr().err


@pytest.mark.parametrize("settings", [{}, {"learner": "torch"}], ids=["numpy", "torch"])
def test_a_run_that_stays_near_a_reference_goes_on_exactly(settings):
    """Stopped twice: while only values are learned, and in the middle of the annealing."""
    near = {"kl_ref_coef": 0.5, "kl_ref_steps": 512, "critic_warmup": 256, **settings}
    whole = train(lambda: Shuffled(), 768, "whole", backend="serial", **near)
    stopped_after(lambda: Shuffled(), 1, "run", 768, backend="worker", num_workers=2, **near)
    corral.resume("run", env=lambda: Shuffled(), timesteps=384, backend="serial", quiet=True)
    resumed = corral.resume("run", env=lambda: Shuffled(), timesteps=768, backend="process", quiet=True).summary
    assert resumed.weights_sha256 == whole.weights_sha256
    for name in ("whole", "run"):
        rows = read_metrics(Path(name) / "metrics.jsonl")
        assert [row["train/kl_ref_coef"] for row in rows] == [0.5, 0.375, 0.25, 0.125, 0.0, 0.0]
        distances = [row.get("train/kl_ref") for row in rows]
        assert distances[0] < 1e-6 and min(distances[2:4]) > 1e-6 and distances[4:] == [None, None]
    found = newest_checkpoint(Path("run/checkpoints")).checkpoint
    assert not np.array_equal(found.reference["network.pi.0.weight"], found.policy["network.pi.0.weight"])


def test_a_reference_is_saved_only_where_there_is_one():
    train("CartPole-v1", 128, "plain", kl_ref_coef=0.0)
    train("CartPole-v1", 128, "near", kl_ref_coef=0.1)
    files = [{p.name for p in list_checkpoints(Path(name, "checkpoints"))[-1].iterdir()} for name in ("plain", "near")]
    assert files[1] - files[0] == {"reference.safetensors"}
    assert "train/kl_ref_coef" not in read_metrics(Path("plain/metrics.jsonl"))[-1]


@pytest.mark.parametrize(
    ("env", "settings", "fits"),
    [(Counter, {"normalize_obs": True}, True), (ByteDigits, {}, False), (Everything, {"normalize_obs": True}, False)],
)
def test_runs_that_were_trained_on_other_features_are_refused(env, settings, fits):
    """Earlier versions scaled all bytes, normalised no integers, and wrote no encoding."""
    train(env, 128, "run", **settings)
    found = newest_checkpoint(Path("run/checkpoints"))
    state = {name: value for name, value in found.checkpoint.state.items() if name != "encoding"}
    save_checkpoint(Path("run/checkpoints"), dataclasses.replace(found.checkpoint, state=state))
    for use in (lambda: corral.load("run"), lambda: corral.resume("run", env=env, timesteps=256, quiet=True)):
        if fits:
            use()
        else:
            with pytest.raises(CheckpointError, match=r"scaled the integers of observation .* train it again"):
                use()


@pytest.mark.parametrize("env", [Shuffled, ByteDigits], ids=["scored actions", "bytes"])
def test_a_normalised_run_goes_on_exactly(env):
    whole = train(lambda: env(), 512, "whole", backend="serial", normalize_obs=True)
    train(lambda: env(), 256, "run", backend="worker", num_workers=2, normalize_obs=True)
    resumed = corral.resume("run", env=lambda: env(), timesteps=512, backend="process", quiet=True).summary
    assert resumed.weights_sha256 == whole.weights_sha256


def stopped_after(env, iterations, name, steps, **settings):
    def stop(state):
        if state.iteration == iterations:
            state.stop()

    corral.train(env, **{**SMALL, "seed": 3, "timesteps": steps, "output_dir": name, **settings}, callback=stop)


def test_a_checkpoint_holds_episodes_and_not_more_than_is_needed():
    train("CartPole-v1", 256, "run")
    envs = newest_checkpoint(Path("run/checkpoints")).checkpoint.envs
    assert [len(envs[f"actions/{i}"]) for i in range(4)] == envs["length"].tolist()
    assert "behind.safetensors" not in {p.name for p in list_checkpoints(Path("run/checkpoints"))[-1].iterdir()}


def test_envs_that_can_say_where_they_are_are_not_replayed():
    whole = train(lambda: Stateful(1000), 256, "whole")
    train(lambda: Stateful(1000), 128, "run")
    envs = newest_checkpoint(Path("run/checkpoints")).checkpoint.envs
    assert len(envs["actions/0"]) == 0 and bytes(envs["state/0"].tolist()).startswith(b"[32,")
    resumed = corral.resume("run", env=lambda: Stateful(1000), timesteps=256, backend="worker", quiet=True).summary
    assert resumed.weights_sha256 == whole.weights_sha256 and resumed.inexact == 0


def test_states_that_take_long_are_asked_for_rarely():
    class Ponderous(Counter):
        asked = 0

        def get_state(self):
            Ponderous.asked += 1
            time.sleep(0.05)
            return json.dumps([self.step_count, self.draw, self.np_random.bit_generator.state]).encode()

        def set_state(self, state):
            self.step_count, self.draw, self.np_random.bit_generator.state = json.loads(state)

    train(lambda: Ponderous(1000), 640, "run", backend="serial")
    assert Ponderous.asked == 4  # once each in five rollouts: it would be their turn again after twenty seconds
    whole = train(lambda: Ponderous(1000), 1280, "whole", backend="serial")
    resumed = corral.resume("run", env=lambda: Ponderous(1000), timesteps=1280, quiet=True).summary
    assert resumed.weights_sha256 == whole.weights_sha256 and resumed.inexact == 0


@pytest.mark.parametrize(
    ("do", "says"),
    [
        (lambda: time.sleep(1000), "gave no sign of life for 3 s"),
        (lambda: os.kill(os.getpid(), signal.SIGSEGV), "SIGSEGV"),
        (lambda: os._exit(7), "code 7"),
    ],
    ids=["hang", "segfault", "exit"],
)
def test_states_that_no_env_survives_are_refused_before_the_trainer_takes_them(monkeypatch, tmp_path, do, says):
    forged = tmp_path / "forged"

    class Emulator(Stateful):
        believes = False

        def set_state(self, state):
            super().set_state(state)
            self.believes = forged.exists()

        def step(self, action):
            if self.believes:
                do()
            return super().step(action)

    monkeypatch.setattr(hang_detector, "_MIN_TIMEOUT", 3.0)
    train(lambda: Emulator(1000), 128, "run", backend="serial")
    forged.touch()
    with pytest.raises(CheckpointError, match=f"cannot continue from their states in the checkpoint: .*{says}"):
        corral.resume("run", env=lambda: Emulator(1000), timesteps=256, quiet=True)
    forged.unlink()
    assert corral.resume("run", env=lambda: Emulator(1000), timesteps=256, quiet=True).summary.inexact == 0


def test_an_env_of_which_there_can_be_one_goes_on_from_its_state(tmp_path):
    class Exclusive(Stateful):
        def __init__(self):
            super().__init__(1000)
            (tmp_path / "lock").mkdir()  # fails while another has it, in whatever process

        def close(self):
            (tmp_path / "lock").rmdir()

    train(Exclusive, 128, "run", backend="serial", n_envs=1)
    assert corral.resume("run", env=Exclusive, timesteps=256, quiet=True).summary.inexact == 0


def test_envs_that_do_not_repeat_themselves_begin_anew_and_that_is_said(capsys):
    train(lambda: Unlike(1000), 128, "run")
    summary = corral.resume("run", env=lambda: Unlike(1000), timesteps=256, quiet=True).summary
    assert summary.inexact == 4 and summary.steps == 256
    assert "env 0, 1, 2, 3 could not be restored" in capsys.readouterr().err


def test_a_run_that_was_killed_before_it_saved_anything_begins_again(capsys):
    whole = train("CartPole-v1", 128, "whole")
    train("CartPole-v1", 128, "run")
    run = Path("run")
    for path in list_checkpoints(run / "checkpoints"):
        for file in path.iterdir():
            file.unlink()
        path.rmdir()
    with pytest.raises(CheckpointError, match="no checkpoint to continue from"):
        corral.resume("run", quiet=True)  # there were some: that they are gone is not for us to shrug at
    (run / "metrics.jsonl").write_text("")
    assert corral.resume("run", quiet=True).summary.weights_sha256 == whole.weights_sha256
    assert "starting at step 0" in capsys.readouterr().err
    assert [row["time/total_timesteps"] for row in read_metrics(run / "metrics.jsonl")] == [128]


def test_a_resume_that_fails_at_its_first_step_deletes_nothing():
    """Nothing is saved in ``checkpoints``, so it begins at step 0; but the directory is not its own to remove."""
    train(lambda: Counter(7), 128, "run", eval_freq=128, eval_episodes=1)
    run = Path("run")
    (run / "checkpoints").rename(run / "checkpoints-backup")
    (run / "metrics.jsonl").unlink()
    (run / "notes.txt").write_text("mine")
    before = sorted(path for path in run.rglob("*") if path.name not in ("summary.json", "summary.tmp"))
    with pytest.raises(EnvFault) as raised:
        corral.resume("run", env=lambda: Broken("raise", 1), quiet=True)
    assert raised.value.exit_code == 2 and {*before} <= {*run.rglob("*")}


def test_counts_of_what_was_mended_survive_a_resume(tmp_path):
    def make():
        class Once(Unlike):
            def step(self, action):
                if self.step_count == 5 and not (tmp_path / "raised").exists():
                    (tmp_path / "raised").touch()
                    raise ValueError("once")
                return super().step(action)

            def _observe(self):
                return np.array([0.5, self.step_count], np.float32)

        return Once(40)

    assert train(make, 128, "run", backend="serial").retries == 1
    summary = corral.resume("run", env=make, timesteps=256, quiet=True).summary
    assert summary.retries == 1 and json.loads(Path("run/summary.json").read_text())["retries"] == 1
    assert read_metrics(Path("run/metrics.jsonl"))[-1]["faults/retries"] == 1


def test_a_summary_of_an_earlier_end_does_not_outlive_a_new_beginning():
    train("CartPole-v1", 128, "run")
    seen = []
    corral.resume(
        "run", timesteps=256, quiet=True, callback=lambda state: seen.append(Path("run/summary.json").exists())
    )
    assert seen == [False] and time.time() - Path("run/summary.json").stat().st_mtime < 60


class Raising(Counter):
    """Raises in every step as soon as there is a file that says so."""

    def step(self, action):
        if Path("raise").exists():
            raise ValueError("no rom found")
        return super().step(action)


@pytest.mark.parametrize(("kept", "exit_code"), [(1, 2), (2, 1)], ids=["step 0", "step 128"])
def test_an_env_that_a_run_never_stepped_is_not_taken_for_a_proven_one(kept, exit_code):
    train(Raising, 128, "run", backend="worker", num_workers=2, keep_checkpoints=5)
    for path in list_checkpoints(Path("run/checkpoints"))[kept:]:
        shutil.rmtree(path)
    Path("raise").touch()
    with pytest.raises(EnvFault, match="no rom found") as raised:
        corral.resume("run", env=Raising, timesteps=256, quiet=True)
    assert raised.value.exit_code == exit_code
    assert len(list_checkpoints(Path("run/checkpoints"))) == kept
