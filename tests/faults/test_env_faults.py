"""Envs that raise, return invalid data or print too much: training continues if it can, or stops with the cause."""

import re
import shlex
import subprocess
import sys

import pytest

from tests.faults.harness import GAMES, environment

LOCATION = r"env \d+, seed \d+, episode \d+, step {}, on action \S+"


# ---- exceptions ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["worker", pytest.param("process", marks=pytest.mark.deep)])
def test_exceptions_that_do_not_repeat_change_no_weights(make_run, backend):
    """One step in about 250 raises at random."""
    run = make_run(f"{GAMES}:RaisesAtRandom", backend=backend, env_kwargs={"one_in": 150})
    run.train().wait()
    assert run.summary["retries"] >= 1 and run.summary["env_faults"] == run.summary["inexact"] == 0
    assert run.summary["weights_sha256"] == run.undisturbed_hash(f"{GAMES}:Walk", env_kwargs={})


@pytest.mark.parametrize(
    ("how", "where", "backend"),
    [
        ("sys_exit", "step", "process"),
        pytest.param("sys_exit", "reset", "worker", marks=pytest.mark.deep),
        pytest.param("raise", "step", "worker", marks=pytest.mark.deep),
        pytest.param("raise", "reset", "process", marks=pytest.mark.deep),
    ],
)
def test_an_env_that_raises_once_changes_no_weights(make_run, tmp_path, how, where, backend):
    kwargs = {"how": how, "where": where, "marker": tmp_path / "marker"}
    run = make_run(f"{GAMES}:FailsOnce", backend=backend, env_kwargs=kwargs)
    run.train().wait()
    assert (tmp_path / "marker").exists() and run.summary["retries"] == 1 and run.summary["env_faults"] == 0
    assert run.summary["weights_sha256"] == run.undisturbed_hash(f"{GAMES}:Walk", env_kwargs={})


def test_episodes_that_always_raise_are_truncated_and_counted(make_run):
    """One episode in ten raises at its seventh step, also in a replay: it is truncated there, and the next one begins."""
    run = make_run(f"{GAMES}:FailsInSomeEpisodes", env_kwargs={"one_in": 10})
    run.train().wait()
    assert 1 <= run.summary["env_faults"] < run.summary["episodes"] / 2 and run.summary["restarts"] == 0
    assert all("rollout/truncated_fraction" in row for row in run.rows if row["rollout/episodes_in_rollout"])


@pytest.mark.deep
def test_episodes_that_are_truncated_by_faults_are_the_same_for_every_backend(make_run):
    hashes = set()
    for backend, workers in (("worker", 2), ("process", 2), ("worker", 3)):
        run = make_run(f"{GAMES}:FailsInSomeEpisodes", backend=backend, num_workers=workers, env_kwargs={"one_in": 10})
        run.train().wait()
        hashes.add(run.summary["weights_sha256"])
    assert len(hashes) == 1


@pytest.mark.parametrize("backend", ["worker", pytest.param("process", marks=pytest.mark.deep)])
def test_an_env_that_raises_in_every_episode_stops_the_run_and_the_fault_can_be_replayed(make_run, backend):
    run = make_run(f"{GAMES}:FailsInSomeEpisodes", backend=backend, timesteps=10**9)
    ended = run.train().wait(1)
    assert "ValueError: the floor gave way" in ended.err and ended.err.count("Traceback (most recent call last)") == 1
    assert "in cause_fault" in ended.err and re.search(LOCATION.format(7), ended.err), ended
    assert run.summary["exit_reason"].startswith("failed") and run.newest is not None

    replay_command = re.search(r"corral (doctor .*--replay \S+)", ended.err + ended.out)
    assert replay_command is not None, ended
    replay = subprocess.run(
        [sys.executable, "-m", "corral", *shlex.split(replay_command[1])],
        env=environment(),
        cwd=run.path.parent,
        capture_output=True,
        text=True,
    )
    replay_output = replay.stdout + replay.stderr
    assert replay.returncode == 1 and "raised again" in replay_output, replay_output
    assert "ValueError: the floor gave way" in replay_output and "in cause_fault" in replay_output


@pytest.mark.parametrize(
    ("env", "kwargs", "cause"),
    [
        ("tests.toy_envs:Broken", {"how": "unpicklable", "at": 1}, "Local: cannot travel"),
        pytest.param(
            f"{GAMES}:FailsInSomeEpisodes", {"at": 1}, "ValueError: the floor gave way", marks=pytest.mark.deep
        ),
        pytest.param("tests.toy_envs:Broken", {"how": "constructor"}, "no rom found", marks=pytest.mark.deep),
        pytest.param("tests.toy_envs:Broken", {"how": "raise", "at": 0}, "the dragon won", marks=pytest.mark.deep),
        pytest.param("tests.toy_envs:Broken", {"how": "nan", "at": 1}, "not finite", marks=pytest.mark.deep),
        pytest.param("tests.toy_envs:Broken", {"how": "four", "at": 1}, "tuple of 4", marks=pytest.mark.deep),
    ],
)
def test_a_fault_up_to_the_first_step_is_refused_at_once(make_run, env, kwargs, cause):
    run = make_run(env, env_kwargs=kwargs)
    ended = run.train().wait(2)
    assert cause in ended.err and ended.err.count("Traceback (most recent call last)") <= 1
    assert not run.path.exists()


@pytest.mark.deep
@pytest.mark.parametrize("how", ["os_exit", "segfault", "kill"])
def test_an_env_that_ends_its_process_in_its_first_step_is_refused_at_once(make_run, how):
    run = make_run(f"{GAMES}:FailsInSomeEpisodes", env_kwargs={"how": how, "at": 1})
    ended = run.train().wait(2)
    assert "worker" in ended.err
    assert not run.path.exists()


# ---- data ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "cause"),
    [
        ("nan", "observation is not finite"),
        pytest.param("inf_reward", "reward is not finite", marks=pytest.mark.deep),
        pytest.param("shape", r"shape \(2, 1\), expected \(2,\)", marks=pytest.mark.deep),
        pytest.param("text", "observation has shape", marks=pytest.mark.deep),
    ],
)
def test_invalid_data_after_a_thousand_steps_stops_the_run_before_it_learns_from_it(make_run, how, cause):
    run = make_run("tests.toy_envs:Broken", timesteps=10**9, env_kwargs={"how": how, "at": 1000, "length": 2000})
    ended = run.train().wait(1)
    assert re.search(cause, ended.err) and re.search(LOCATION.format(1000), ended.err), ended
    steps = 1000 // 32 * 32 * 4  # complete iterations before the fault
    assert run.summary["steps"] == run.newest.checkpoint.timesteps == steps
    assert run.summary["exit_reason"].startswith("failed") and run.summary["env_faults"] == 0


# ---- output -------------------------------------------------------------------------------------------------------------


@pytest.mark.deep
def test_an_env_may_print_a_hundred_megabytes(make_run):
    run = make_run(f"{GAMES}:PrintsMuch", timesteps=512, env_kwargs={"mb": 25})
    trainer = run.train()
    trainer.wait()
    assert len(trainer.out) > 100_000_000
    assert run.summary["weights_sha256"] == run.undisturbed_hash(f"{GAMES}:Walk", env_kwargs={})


@pytest.mark.parametrize(
    "shell",
    [
        pytest.param('"$@" | head -1', id="reader ends"),
        pytest.param('exec "$@" >&-', id="stdout closed", marks=pytest.mark.deep),
        pytest.param('exec "$@" >&- 2>&-', id="stdout and stderr closed", marks=pytest.mark.deep),
        pytest.param('exec "$@" > /dev/full 2> /dev/full', id="disk full", marks=pytest.mark.deep),
    ],
)
def test_output_that_cannot_be_written_does_not_stop_a_run(make_run, shell):
    """Neither the output of the trainer nor that of the env needs a reader."""
    run = make_run(f"{GAMES}:PrintsMuch", timesteps=1280)
    run.train(wrap=("sh", "-c", shell, "sh")).wait()
    assert run.summary["steps"] == 1280
    assert run.summary.get("env_faults", 0) == run.summary.get("retries", 0) == 0
    assert run.summary["weights_sha256"] == run.undisturbed_hash(f"{GAMES}:Walk", env_kwargs={})
