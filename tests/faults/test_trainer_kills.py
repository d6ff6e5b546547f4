"""After any number of SIGKILLs of the trainer at any moment, the resumed run ends with the same weights."""

import random
import shutil
import signal
import time

import pytest

import corral
from tests.faults.harness import GAMES
from tests.faults.system import process_name

PACED = {"env_kwargs": {"pause": 0.002}}


def kill_at_random(run, times, rng: random.Random, max_seconds, *arguments):
    """Start and kill a run at random moments, then let it finish. ``kill`` checks all invariants."""
    for _ in range(times):
        trainer = run.resume_or_train(*arguments)
        time.sleep(rng.uniform(0.1, max_seconds))
        assert trainer.process.poll() is None, "the run ended before all kills"
        trainer.kill()
    run.resume_or_train(*arguments).wait()


def test_a_killed_run_ends_with_the_same_weights(make_run, rng):
    """It is killed once while it trains, and once between its start and training."""
    run = make_run(**PACED)
    trainer = run.train()
    trainer.wait_for_rows(5)
    time.sleep(rng.uniform(0, 0.5))
    trainer.kill()
    trainer = run.resume()
    time.sleep(rng.uniform(0.2, 2.5))
    trainer.kill()
    run.resume().wait()
    assert run.summary["steps"] == 2560
    assert run.summary["weights_sha256"] == run.undisturbed_hash(env_kwargs={})


def test_a_killed_run_resumes_with_another_backend_and_the_same_weights(make_run):
    """With overlap, a rollout is collected while the learner updates; it is collected again after the kill."""
    run = make_run(**PACED, backend="process", overlap=True)
    trainer = run.train()
    trainer.wait_for_rows(5)
    trainer.kill()
    run.resume("--backend", "worker", "--num-workers", "3").wait()
    assert run.summary["backend"] == "worker" and run.summary["num_workers"] == 3
    assert run.summary["weights_sha256"] == run.undisturbed_hash(env_kwargs={})


def test_a_run_killed_before_its_first_checkpoint_starts_again_and_says_so(make_run):
    """The config exists and no checkpoint does, as after a kill between the two."""
    run = make_run(timesteps=512)
    corral.train(run.env, quiet=True, output_dir=str(run.path), **run.settings)
    for path in run.path.iterdir():
        if path.name != "config.yaml":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    ended = run.resume().wait()
    assert "starting at step 0" in ended.err + ended.out
    assert run.summary["steps"] == 512
    assert run.summary["weights_sha256"] == run.undisturbed_hash()


@pytest.mark.deep
@pytest.mark.parametrize("moment", [0.3, 1.5, 2.0, 2.5])
def test_a_run_killed_while_starting_can_be_started_again(make_run, moment):
    """It is started with the same command, or with ``resume`` if there is a run."""
    run = make_run(**PACED, timesteps=5120)  # takes several seconds on any machine
    trainer = run.train()
    time.sleep(moment)
    trainer.kill()
    run.resume_or_train().wait()
    assert run.summary["weights_sha256"] == run.undisturbed_hash(env_kwargs={})


# ---- long tests ---------------------------------------------------------------------------------------------------------


@pytest.mark.deep
@pytest.mark.timeout(600)
@pytest.mark.parametrize("backend", ["process", "worker"])
def test_thirty_kills_at_random_moments_change_no_weights(make_run, rng, backend):
    run = make_run(backend=backend, timesteps=51_200, **PACED)
    kill_at_random(run, 30, rng, 4.5)
    assert run.summary["steps"] == 51_200
    assert run.summary["weights_sha256"] == run.undisturbed_hash(env_kwargs={})


@pytest.mark.deep
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "settings",
    [
        {"overlap": True},
        {"overlap": True, "backend": "process"},
        {"backend": "serial", "num_workers": None},
        {"normalize_obs": True, "normalize_reward": True},
        {"learner": "torch", "learning_rate_end": 1e-5},
        {"parallel_start_method": "fork"},
        {"parallel_start_method": "spawn"},
        {"eval_freq": 256, "eval_episodes": 2},
        {"checkpoint_freq": 1000},
        {"adaptive": True, "n_envs": 6, "num_workers": 3},
    ],
    ids=str,
)
def test_kills_at_random_moments_change_no_weights_whatever_the_settings(make_run, rng, settings):
    run = make_run(**PACED, **settings, timesteps=3200 * settings.get("n_envs", 4))
    kill_at_random(run, 5, rng, 4.5)
    assert run.summary["weights_sha256"] == run.undisturbed_hash(env_kwargs={})


@pytest.mark.deep
@pytest.mark.timeout(600)
@pytest.mark.parametrize("settings", [{}, {"overlap": True, "checkpoint_freq": 1000}], ids=str)
def test_ten_kills_at_random_moments_change_no_state_of_a_hook(make_run, rng, settings):
    """The hook sets the learning rate, so equal weights mean that it was called equally often with an equal state."""
    run = make_run(**PACED, **settings, timesteps=12_800, hooks=["tests.faults.hooks:Follow"])
    kill_at_random(run, 10, rng, 4.5)
    undisturbed = make_run(**settings, timesteps=12_800, hooks=["tests.faults.hooks:Follow"])
    undisturbed.train().wait()
    assert run.summary["weights_sha256"] == undisturbed.summary["weights_sha256"]
    assert [row["follow/sum"] for row in run.rows] == [row["follow/sum"] for row in undisturbed.rows]
    assert run.newest.checkpoint.state["hooks"] == undisturbed.newest.checkpoint.state["hooks"]


@pytest.mark.deep
@pytest.mark.timeout(300)
def test_a_run_that_resumes_with_another_backend_after_every_kill_has_the_same_weights(make_run, rng):
    """Backend and number of workers change each time."""
    run = make_run(**PACED)
    for backend, workers in (["process", 1], ["worker", 4], ["serial", 1], ["process", 3], ["worker", 2]):
        trainer = run.resume_or_train("--backend", backend, "--num-workers", str(workers))
        time.sleep(rng.uniform(2.5, 4.0))
        if trainer.process.poll() is None:
            trainer.kill()
    run.resume_or_train().wait()
    assert run.summary["weights_sha256"] == run.undisturbed_hash(env_kwargs={})


@pytest.mark.deep
@pytest.mark.parametrize("env", ["CartPole-v1", "toy-maze", "toy-everything", "toy-work"])
def test_kills_change_no_weights_with_any_built_in_env(make_run, rng, env):
    run = make_run(env, timesteps=25_600 if env != "toy-work" else 2560, checkpoint_freq=256)
    for rows in (5, 10):
        trainer = run.resume_or_train()
        trainer.wait_for_rows(rows)
        time.sleep(rng.uniform(0, 0.3))
        if trainer.process.poll() is None:
            trainer.kill()
    run.resume_or_train().wait()
    assert run.summary["weights_sha256"] == run.undisturbed_hash()


@pytest.mark.deep
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("state", ["running", "stopped"])
def test_workers_do_not_outlive_the_trainer(make_run, method, state):
    """This holds for every start method, and for stopped workers, too."""
    run = make_run(parallel_start_method=method, n_envs=8, num_workers=8, timesteps=10**9)
    trainer = run.train()
    trainer.wait_for_rows(2)
    workers = trainer.workers()
    assert len(workers) == 8
    if state == "stopped":
        for worker in workers:
            worker.send_signal(signal.SIGSTOP)
    trainer.kill()
    run.resume("--timesteps", str(run.newest.checkpoint.timesteps + 1)).wait()  # the lock is free


def test_children_of_envs_do_not_outlive_the_trainer(make_run, tmp_path):
    """Eight workers hang in C code, and the env of each has a child process."""
    marks = tmp_path / "marks"
    marks.mkdir()
    settings = {"n_envs": 8, "num_workers": 8, "n_steps": 64, "checkpoint_freq": 0}
    run = make_run(f"{GAMES}:HasChildProcess", env_kwargs={"marks": marks}, **settings)
    trainer = run.train()
    trainer.wait_for(lambda: len(list(marks.iterdir())) == 8, "all workers to hang")
    assert len(trainer.workers()) == 8
    trainer.kill()


@pytest.mark.deep
def test_children_of_envs_outlive_neither_their_worker_nor_the_run(make_run, tmp_path, rng):
    run = make_run(f"{GAMES}:HasChildProcess", timesteps=10**9, env_kwargs={"marks": tmp_path, "after": 10**9})
    trainer = run.train()
    trainer.wait_for_rows(2)
    children = [p for p in trainer.descendants() if process_name(p) == "sleep"]
    assert len(children) >= 4  # one for each env
    trainer.signal_random_worker(signal.SIGKILL, rng)
    trainer.wait_for(
        lambda: sum(bool(process_name(p)) for p in children) <= len(children) - 2,
        "the end of the two children of the worker",
    )
    trainer.signal(signal.SIGTERM)
    trainer.wait(143)
