"""Workers that die or hang are replaced, and the weights are those of an undisturbed run."""

import random
import re
import signal
import time

import pytest

from tests.faults.harness import GAMES

BACKENDS = ("process", "worker")
PACED = {"env_kwargs": {"pause": 0.002}}
ENVS = ("CartPole-v1", "toy-maze", "toy-everything", "toy-work")
LOCATION = r"env \d+, seed \d+, episode \d+, step 7, on action \S+"


def signal_workers(trainer, number, every, rng: random.Random, max_signals=10**9):
    """Send signals to random workers, ``every`` so many seconds, until the run ends; return how many were sent."""
    n_sent = 0
    while n_sent < max_signals and trainer.process.poll() is None:
        n_sent += trainer.signal_random_worker(number, rng)
        deadline = time.monotonic() + rng.uniform(0.5, 1.5) * every
        while trainer.process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
    return n_sent


def check_counts(run):
    """Check that no count falls from row to row, and that the summary has the counts of the last row.

    The summary may have more if a duration ended the last rollout, which has no row.
    """
    discarded = run.summary["exit_reason"] == "duration"
    for name in ("restarts", "recycled", "env_faults", "retries", "inexact"):
        counts = [row[f"faults/{name}"] for row in run.rows]
        assert counts == sorted(counts), name
        assert counts[-1] <= run.summary[name] if discarded else counts[-1] == run.summary[name], name


# ---- death --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_killed_workers_are_replaced_and_weights_are_the_same(make_run, rng, backend):
    run = make_run(backend=backend, **PACED)
    trainer = run.train()
    trainer.wait_for_rows(1)
    n_sent = signal_workers(trainer, signal.SIGKILL, 0.8, rng, max_signals=3)
    trainer.wait()
    assert 1 <= run.summary["restarts"] <= n_sent
    check_counts(run)
    assert run.summary["weights_sha256"] == run.undisturbed_hash(env_kwargs={})


@pytest.mark.parametrize(
    ("how", "backend"),
    [
        ("segfault", "worker"),
        pytest.param("os_exit", "process", marks=pytest.mark.deep),
        pytest.param("segfault", "process", marks=pytest.mark.deep),
        pytest.param("os_exit", "worker", marks=pytest.mark.deep),
        pytest.param("kill", "process", marks=pytest.mark.deep),
        pytest.param("kill", "worker", marks=pytest.mark.deep),
    ],
)
@pytest.mark.parametrize("where", ["step", pytest.param("reset", marks=pytest.mark.deep)])
def test_an_env_that_kills_its_worker_once_changes_no_weights(make_run, tmp_path, how, backend, where):
    kwargs = {"how": how, "marker": tmp_path / "marker", "where": where}
    run = make_run(f"{GAMES}:FailsOnce", backend=backend, env_kwargs=kwargs)
    run.train().wait()
    assert (tmp_path / "marker").exists() and run.summary["restarts"] == 1
    assert run.summary["weights_sha256"] == run.undisturbed_hash(f"{GAMES}:Walk", env_kwargs={})


@pytest.mark.parametrize("backend", ["worker", pytest.param("process", marks=pytest.mark.deep)])
def test_an_env_that_always_kills_its_worker_at_the_same_step_stops_the_run(make_run, backend):
    run = make_run(
        f"{GAMES}:FailsInSomeEpisodes", backend=backend, timesteps=10**9, env_kwargs={"how": "os_exit", "one_in": 4}
    )
    ended = run.train().wait(1)
    assert re.search(LOCATION, ended.err), ended
    assert run.newest is not None and run.summary["exit_reason"].startswith("failed")


# ---- death before the first rollout -------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("where", ["constructor", pytest.param("reset", marks=pytest.mark.deep), "step"])
def test_a_worker_that_is_killed_while_a_run_starts_is_replaced(make_run, tmp_path, backend, where):
    kwargs = {"how": "kill", "marker": tmp_path / "marker", "where": where, "after": 0}
    run = make_run(f"{GAMES}:FailsOnce", backend=backend, timesteps=512, env_kwargs=kwargs)
    run.train().wait()
    assert (tmp_path / "marker").exists() and run.summary["restarts"] == 1
    assert run.summary["weights_sha256"] == run.undisturbed_hash(f"{GAMES}:Walk", env_kwargs={})


@pytest.mark.parametrize("backend", ["worker", pytest.param("process", marks=pytest.mark.deep)])
def test_a_worker_that_is_killed_while_a_run_resumes_is_replaced(make_run, tmp_path, backend):
    marker = tmp_path / "marker"
    marker.touch()
    kwargs = {"how": "kill", "marker": marker, "where": "constructor", "after": 0, "pause": 0.002}
    run = make_run(f"{GAMES}:FailsOnce", backend=backend, timesteps=1024, env_kwargs=kwargs)
    trainer = run.train()
    trainer.wait_for_rows(2)
    trainer.kill()
    marker.unlink()
    run.resume().wait()
    assert marker.exists() and run.summary["restarts"] == 1
    assert run.summary["weights_sha256"] == run.undisturbed_hash(f"{GAMES}:Walk", env_kwargs={})


@pytest.mark.parametrize("backend", ["worker", pytest.param("process", marks=pytest.mark.deep)])
def test_an_env_that_always_crashes_at_start_is_refused_with_the_cause(make_run, backend):
    run = make_run(f"{GAMES}:AlwaysFails", backend=backend, env_kwargs={"how": "segfault", "where": "constructor"})
    ended = run.train().wait(2)
    assert "SIGSEGV" in ended.err and "3 times in a row" in ended.err
    assert not run.path.exists()


def test_an_idle_worker_that_is_killed_after_a_warm_start_is_replaced(make_run, rng):
    settings = {"expert": "miser", "opponent": "random", "expert_steps": 4000, "expert_epochs": 40, "timesteps": 512}
    run = make_run("tests.toy_envs:HighCard", **settings)
    trainer = run.train()
    trainer.wait_for(lambda: "for the policy to learn from" in trainer.out, "the expert's games")
    trainer.signal_random_worker(signal.SIGKILL, rng)
    trainer.wait()
    assert run.summary["restarts"] == 1
    assert run.summary["weights_sha256"] == run.undisturbed_hash()


@pytest.mark.deep
@pytest.mark.timeout(600)
@pytest.mark.parametrize("backend", BACKENDS)
def test_kills_of_workers_at_random_moments_of_the_start_change_no_weights(make_run, rng, backend):
    for _ in range(8):
        run = make_run(backend=backend, timesteps=256)
        trainer = run.train()
        trainer.wait_for(trainer.workers, "a worker")
        time.sleep(rng.uniform(0, 0.5))
        n_sent = trainer.signal_random_worker(signal.SIGKILL, rng)
        trainer.wait()
        assert run.summary["restarts"] <= n_sent
        assert run.summary["weights_sha256"] == run.undisturbed_hash()


@pytest.mark.deep
def test_more_restarts_than_max_restarts_stop_the_run(make_run, rng):
    run = make_run(timesteps=10**9, max_restarts=2, **PACED)
    trainer = run.train()
    trainer.wait_for_rows(1)
    assert signal_workers(trainer, signal.SIGKILL, 0.6, rng) >= 3
    ended = trainer.wait(1)
    assert re.search(r"max.restarts", ended.err) and run.summary["restarts"] == 2
    assert run.newest.checkpoint.timesteps == run.summary["steps"]


# ---- hanging ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["worker", pytest.param("process", marks=pytest.mark.deep)])
def test_a_stopped_worker_is_replaced_after_the_step_timeout(make_run, rng, backend):
    run = make_run(backend=backend, step_timeout=1, **PACED)
    trainer = run.train()
    trainer.wait_for_rows(2)
    trainer.signal_random_worker(signal.SIGSTOP, rng)
    trainer.wait()
    assert run.summary["restarts"] == 1
    assert run.summary["weights_sha256"] == run.undisturbed_hash(env_kwargs={})


@pytest.mark.parametrize(
    ("how", "backend"),
    [
        ("sleep", "process"),
        pytest.param("sleep", "worker", marks=pytest.mark.deep),
        pytest.param("loop", "process", marks=pytest.mark.deep),
        pytest.param("loop", "worker", marks=pytest.mark.deep),
    ],
)
@pytest.mark.parametrize("where", ["step", pytest.param("reset", marks=pytest.mark.deep)])
def test_an_env_that_hangs_once_changes_no_weights(make_run, tmp_path, how, backend, where):
    """It hangs in Python, or in C code that holds the GIL."""
    kwargs = {"how": how, "marker": tmp_path / "marker", "where": where}
    run = make_run(f"{GAMES}:FailsOnce", backend=backend, step_timeout=1, env_kwargs=kwargs)
    run.train().wait()
    assert (tmp_path / "marker").exists() and run.summary["restarts"] == 1
    assert run.summary["weights_sha256"] == run.undisturbed_hash(f"{GAMES}:Walk", env_kwargs={})


@pytest.mark.deep
@pytest.mark.parametrize("backend", BACKENDS)
def test_an_env_that_always_hangs_at_the_same_step_stops_the_run(make_run, backend):
    kwargs = {"how": "sleep", "one_in": 4}
    run = make_run(
        f"{GAMES}:FailsInSomeEpisodes", backend=backend, timesteps=10**9, step_timeout=0.5, env_kwargs=kwargs
    )
    ended = run.train().wait(1)
    assert re.search(LOCATION, ended.err), ended


@pytest.mark.parametrize("in_c", [True, pytest.param(False, marks=pytest.mark.deep)])
def test_a_slow_env_is_not_taken_for_a_hung_one(make_run, in_c):
    """Steps take half of the step time-out, and a rollout takes many times the step time-out."""
    settings = {"step_timeout": 1, "n_steps": 16, "timesteps": 64, "batch_size": 32}
    run = make_run(f"{GAMES}:SlowSteps", env_kwargs={"seconds": 0.5, "in_c": in_c}, **settings)
    run.train().wait()
    assert run.rows[0]["time/collect_s"] > 1.5 and run.summary["restarts"] == 0
    assert run.summary["weights_sha256"] == run.undisturbed_hash(f"{GAMES}:Walk", env_kwargs={})


@pytest.mark.deep
@pytest.mark.parametrize("backend", BACKENDS)
def test_workers_that_wait_for_a_long_update_are_not_taken_for_hung(make_run, backend):
    run = make_run(backend=backend, step_timeout=1, n_epochs=12_000, timesteps=384)
    run.train().wait()
    assert run.rows[0]["time/update_s"] > 1.5 and run.summary["restarts"] == 0


@pytest.mark.parametrize("where", ["constructor", pytest.param("reset", marks=pytest.mark.deep)])
def test_an_env_that_hangs_at_its_start_is_refused(make_run, where):
    run = make_run(f"{GAMES}:HangsAtStart", start_timeout=1, env_kwargs={"where": where})
    ended = run.train().wait(2)
    assert re.search(r"start.timeout", ended.err) and "1" in ended.err
    assert not run.path.exists()


@pytest.mark.parametrize("how, message", [("exits", "exited with code 7"), ("hangs", "start-timeout")])
@pytest.mark.parametrize("setting", ["stages: [{name: easy, options: {level: 1}}]", "adaptive: true"])
def test_a_vector_env_that_exits_or_hangs_at_its_start_is_refused(make_run, tmp_path, setting, how, message):
    config = tmp_path / "config.yaml"
    config.write_text(setting)
    env = f"{GAMES}:vector_env_that_fails_at_its_start"
    run = make_run(env, backend=None, start_timeout=1, env_kwargs={"how": how})
    assert message in run.train("--config", str(config)).wait(2).err
    assert not run.path.exists()


@pytest.mark.deep
def test_a_worker_that_uses_too_much_memory_is_replaced(make_run):
    settings = {"worker_max_rss": 250, "n_steps": 128, "timesteps": 5120, "checkpoint_freq": 0}
    run = make_run(
        f"{GAMES}:LeaksMemory", env_kwargs={"kb": 256, "pause": 0.002}, **settings
    )  # workers check their memory once a second
    run.train().wait()
    assert run.summary["recycled"] >= 2 and run.summary["restarts"] == 0
    check_counts(run)
    assert run.summary["weights_sha256"] == run.undisturbed_hash(f"{GAMES}:Walk", env_kwargs={})


# ---- long tests ---------------------------------------------------------------------------------------------------------


@pytest.mark.deep
@pytest.mark.timeout(400)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("env", ENVS)
def test_a_minute_of_kills_and_stops_of_workers_changes_no_weights(make_run, rng, env, backend, number):
    """A random worker gets a signal every two seconds."""
    settings = {"n_steps": 128, "batch_size": 256, "checkpoint_freq": 10_240, "step_timeout": 1}
    settings |= {"n_envs": 6, "num_workers": 3, "env_kwargs": {"step_ms": 0.2} if env == "toy-work" else {}}
    run = make_run(env, backend=backend, timesteps=None, duration=60 / 3600, **settings)
    trainer = run.train()
    trainer.wait_for_rows(1)
    n_sent = signal_workers(trainer, number, 2, rng)
    trainer.wait()
    assert n_sent >= 15 and run.summary["restarts"] >= 10, (n_sent, run.summary)
    check_counts(run)
    steps = run.summary["steps"]
    assert run.summary["weights_sha256"] == run.undisturbed_hash(timesteps=steps, duration=None)
