"""``kill -9`` of the trainer, at any moment and as often as you like: the run ends as if nothing had happened."""

import random
import shutil
import signal
import time

import pytest

import corral
from tests.faults.harness import GAMES
from tests.faults.system import name_of

PACED = {"env_kwargs": {"pause": 0.002}}


def kill_at_random(run, times, rng: random.Random, longest, *more):
    """Start, kill after a random while, go on; at last let it finish. Every end is checked by ``kill``."""
    for _ in range(times):
        trainer = run.go_on(*more)
        time.sleep(rng.uniform(0.1, longest))
        assert trainer.process.poll() is None, "it ended too early to be killed so often"
        trainer.kill()
    run.go_on(*more).wait()


def test_a_killed_run_ends_as_if_nothing_had_happened(make_run, rng):
    """Once while training, and once somewhere between the start and that."""
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
    assert run.summary["weights_sha256"] == run.undisturbed(env_kwargs={})


def test_a_killed_run_goes_on_in_another_way(make_run):
    """On other workers, and with the rollout that was under way beside the learning."""
    run = make_run(**PACED, backend="process", overlap=True)
    trainer = run.train()
    trainer.wait_for_rows(5)
    trainer.kill()
    run.resume("--backend", "worker", "--num-workers", "3").wait()
    assert run.summary["backend"] == "worker" and run.summary["num_workers"] == 3
    assert run.summary["weights_sha256"] == run.undisturbed(env_kwargs={})


def test_a_run_killed_before_its_first_checkpoint_begins_again_and_says_so(make_run):
    """The config is there, no checkpoint is: as after a kill between the two."""
    run = make_run(timesteps=512)
    corral.train(run.env, quiet=True, output_dir=str(run.path), **run.settings)
    for left in run.path.iterdir():
        if left.name != "config.yaml":
            shutil.rmtree(left) if left.is_dir() else left.unlink()
    ended = run.resume().wait()
    assert "starting at step 0" in ended.err + ended.out
    assert run.summary["steps"] == 512
    assert run.summary["weights_sha256"] == run.undisturbed()


@pytest.mark.deep
@pytest.mark.parametrize("moment", [0.3, 1.5, 2.0, 2.5])
def test_a_run_killed_while_starting_can_be_started_again(make_run, moment):
    """With the same command, or with ``resume`` if there is a run already."""
    run = make_run(**PACED, timesteps=5120)  # several seconds, on any machine
    trainer = run.train()
    time.sleep(moment)
    trainer.kill()
    run.go_on().wait()
    assert run.summary["weights_sha256"] == run.undisturbed(env_kwargs={})


# ---- the long ones ------------------------------------------------------------------------------------------------------


@pytest.mark.deep
@pytest.mark.timeout(600)
@pytest.mark.parametrize("backend", ["process", "worker"])
def test_thirty_kills_at_random_moments(make_run, rng, backend):
    run = make_run(backend=backend, timesteps=25_600, **PACED)
    kill_at_random(run, 30, rng, 4.5)
    assert run.summary["steps"] == 25_600
    assert run.summary["weights_sha256"] == run.undisturbed(env_kwargs={})


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
def test_kills_at_random_moments_of_every_kind_of_run(make_run, rng, settings):
    run = make_run(**PACED, **settings, timesteps=3200 * settings.get("n_envs", 4))
    kill_at_random(run, 5, rng, 4.5)
    assert run.summary["weights_sha256"] == run.undisturbed(env_kwargs={})


@pytest.mark.deep
@pytest.mark.timeout(600)
@pytest.mark.parametrize("more", [{}, {"overlap": True, "checkpoint_freq": 1000}], ids=str)
def test_a_hook_with_state_killed_at_ten_random_moments(make_run, rng, more):
    """The hook decides the learning rate, so that equal weights mean that it was called as often and as it was."""
    run = make_run(**PACED, **more, timesteps=12_800, hooks=["tests.faults.hooks:Follow"])
    kill_at_random(run, 10, rng, 4.5)
    twin = make_run(**more, timesteps=12_800, hooks=["tests.faults.hooks:Follow"])
    twin.train().wait()
    assert run.summary["weights_sha256"] == twin.summary["weights_sha256"]
    assert [row["follow/sum"] for row in run.rows] == [row["follow/sum"] for row in twin.rows]
    assert run.newest.checkpoint.state["hooks"] == twin.newest.checkpoint.state["hooks"]


@pytest.mark.deep
@pytest.mark.timeout(300)
def test_a_run_that_moves_with_every_kill(make_run, rng):
    """Another backend and another number of workers each time."""
    run = make_run(**PACED)
    for way in (["process", 1], ["worker", 4], ["serial", 1], ["process", 3], ["worker", 2]):
        trainer = run.go_on("--backend", way[0], "--num-workers", str(way[1]))
        time.sleep(rng.uniform(2.5, 4.0))
        if trainer.process.poll() is None:
            trainer.kill()
    run.go_on().wait()
    assert run.summary["weights_sha256"] == run.undisturbed(env_kwargs={})


@pytest.mark.deep
@pytest.mark.parametrize("env", ["CartPole-v1", "toy-maze", "toy-everything", "toy-work"])
def test_every_built_in_env_survives_kills(make_run, rng, env):
    run = make_run(env, timesteps=25_600 if env != "toy-work" else 2560, checkpoint_freq=256)
    for rows in (5, 10):
        trainer = run.go_on()
        trainer.wait_for_rows(rows)
        time.sleep(rng.uniform(0, 0.3))
        if trainer.process.poll() is None:
            trainer.kill()
    run.go_on().wait()
    assert run.summary["weights_sha256"] == run.undisturbed()


@pytest.mark.deep
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("state", ["running", "stopped"])
def test_workers_do_not_outlive_the_trainer(make_run, method, state):
    """However they were started, also those that cannot do anything any more."""
    run = make_run(parallel_start_method=method, n_envs=8, num_workers=8, timesteps=10**9)
    trainer = run.train()
    trainer.wait_for_rows(2)
    workers = trainer.workers()
    assert len(workers) == 8
    if state == "stopped":
        for worker in workers:
            worker.send_signal(signal.SIGSTOP)
    trainer.kill()
    run.resume("--timesteps", str(run.newest.checkpoint.timesteps + 1)).wait()  # the lock is free, too


def test_children_of_envs_do_not_outlive_the_trainer(make_run, tmp_path):
    """Eight workers that hang in C code, each with a process of its own."""
    marks = tmp_path / "marks"
    marks.mkdir()
    settings = {"n_envs": 8, "num_workers": 8, "n_steps": 64, "checkpoint_freq": 0}
    run = make_run(f"{GAMES}:Family", env_kwargs={"marks": marks}, **settings)
    trainer = run.train()
    trainer.wait_for(lambda: len(list(marks.iterdir())) == 8, "all workers to hang")
    assert len(trainer.workers()) == 8
    trainer.kill()


@pytest.mark.deep
def test_children_of_envs_outlive_neither_their_worker_nor_the_run(make_run, tmp_path, rng):
    run = make_run(f"{GAMES}:Family", timesteps=10**9, env_kwargs={"marks": tmp_path, "after": 10**9})
    trainer = run.train()
    trainer.wait_for_rows(2)
    children = [p for p in trainer.family() if name_of(p) == "sleep"]
    assert len(children) >= 4  # one for each env
    trainer.hit(signal.SIGKILL, rng)
    trainer.wait_for(lambda: sum(bool(name_of(p)) for p in children) <= len(children) - 2, "the worker's two to end")
    trainer.signal(signal.SIGTERM)
    trainer.wait(143)
