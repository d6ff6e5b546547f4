"""Ctrl-C and SIGTERM end a run within ten seconds with a complete checkpoint; a second Ctrl-C ends it at once."""

import signal
import sys
import time

import pytest

from tests.faults.harness import GAMES, STOP_SECONDS
from tests.faults.system import attach_strace, can_trace, catches_signal, command_line_of

EXIT_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}
ENDLESS = 10**9
SAVING = ".saving-[0-9]*"
needs_strace = pytest.mark.skipif(not can_trace(), reason="strace is missing or may not attach to processes")


def check_saved(run, number):
    """Check that the last complete iteration is saved and the summary has the signal; return the number of steps."""
    steps = run.rows[-1]["time/total_timesteps"]
    assert run.newest.checkpoint.timesteps == run.summary["steps"] == steps
    assert run.summary["exit_reason"] == signal.Signals(number).name
    return steps


@pytest.mark.parametrize(
    ("number", "backend"),
    [
        (signal.SIGINT, "process"),
        pytest.param(signal.SIGINT, "worker", marks=pytest.mark.deep),
        pytest.param(signal.SIGTERM, "process", marks=pytest.mark.deep),
        pytest.param(signal.SIGINT, "serial", marks=pytest.mark.deep),
        pytest.param(signal.SIGTERM, "worker", marks=pytest.mark.deep),
        pytest.param(signal.SIGTERM, "serial", marks=pytest.mark.deep),
    ],
)
def test_a_signal_leaves_a_complete_checkpoint_to_resume_from(make_run, number, backend):
    workers = {"num_workers": None} if backend == "serial" else {}
    run = make_run(backend=backend, timesteps=ENDLESS, checkpoint_freq=0, **workers)
    trainer = run.train()
    trainer.wait_for_rows(3)
    trainer.signal(number, group=number == signal.SIGINT)  # a terminal sends Ctrl-C to the process group
    assert trainer.wait(EXIT_CODES[number]).seconds < STOP_SECONDS
    total = check_saved(run, number) + 256
    run.resume("--timesteps", str(total)).wait()
    assert run.summary["steps"] == total
    assert run.summary["weights_sha256"] == run.undisturbed_hash(timesteps=total)


def test_a_signal_does_not_wait_for_the_end_of_a_long_rollout(make_run):
    run = make_run("toy-work", env_kwargs={"step_ms": 20}, n_steps=2048)  # a rollout would take minutes
    trainer = run.train()
    trainer.wait_for(lambda: run.newest is not None, "the first checkpoint")
    trainer.signal(signal.SIGINT, group=True)
    assert trainer.wait(130).seconds < STOP_SECONDS
    assert run.summary["steps"] == 0 and run.newest.checkpoint.timesteps == 0


@pytest.mark.parametrize("how", ["stop", pytest.param("sleep", marks=pytest.mark.deep)])
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.deep)])
def test_a_signal_does_not_wait_for_a_worker_that_hangs(make_run, tmp_path, how, number):
    marker = tmp_path / "marker"
    run = make_run(f"{GAMES}:FailsOnce", timesteps=ENDLESS, env_kwargs={"how": how, "marker": marker})
    trainer = run.train()
    trainer.wait_for(marker.exists, "a worker that hangs")
    trainer.signal(number, group=number == signal.SIGINT)
    assert trainer.wait(EXIT_CODES[number]).seconds < STOP_SECONDS
    check_saved(run, number)


@pytest.mark.parametrize("moment", [0.1, *(pytest.param(m, marks=pytest.mark.deep) for m in (0.0, 0.2, 0.3, 0.4))])
def test_a_signal_while_workers_start_prints_no_error(make_run, moment):
    run = make_run(timesteps=ENDLESS)
    trainer = run.train()
    trainer.wait_for(
        lambda: any("forkserver" in " ".join(command_line_of(p)) for p in trainer.descendants()),
        "the process that starts the workers",
    )
    time.sleep(moment)
    trainer.signal(signal.SIGINT, group=True)
    ended = trainer.wait(130)
    assert ended.seconds < STOP_SECONDS and ended.err == ""
    assert not run.path.exists() or run.newest is not None


@needs_strace
def test_a_signal_during_a_save_waits_until_it_is_complete(make_run):
    run = make_run(timesteps=ENDLESS)
    trainer = run.train()
    trainer.wait_for_rows(2)
    tracer = attach_strace(trainer.pid, "-o", "/dev/null", "-e", "inject=fsync:delay_enter=300ms")
    trainer.wait_for(lambda: list((run.path / "checkpoints").glob(SAVING)), "a save")
    trainer.signal(signal.SIGTERM)
    assert trainer.wait(143).seconds < STOP_SECONDS
    tracer.communicate()
    check_saved(run, signal.SIGTERM)


@needs_strace
def test_a_second_ctrl_c_does_not_wait_for_a_save(make_run):
    run = make_run(timesteps=ENDLESS)
    trainer = run.train()
    trainer.wait_for_rows(2)
    tracer = attach_strace(trainer.pid, "-o", "/dev/null", "-e", "inject=fsync:delay_enter=1s")
    glob = (run.path / "checkpoints").glob
    second_file = f"{SAVING}/optimizer.safetensors"
    trainer.wait_for(lambda: not list(glob(second_file)) and list(glob(SAVING)), "a save that has just started")
    before = {path.name for path in glob("*")}
    trainer.signal(signal.SIGINT, group=True)
    trainer.wait_for(lambda: list(glob(second_file)), "a second file: the first signal has been noticed")
    trainer.signal(signal.SIGINT, group=True)
    assert trainer.wait(130).seconds < STOP_SECONDS
    tracer.communicate()
    assert {path.name for path in glob("*")} == before  # the save was not finished
    assert not (run.path / "summary.json").exists()


@pytest.mark.deep
@pytest.mark.timeout(300)
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows which signals a process handles")
@pytest.mark.parametrize("backend", ["process", "worker"])
def test_signals_at_random_moments_change_no_weights(make_run, rng, backend):
    """Signals come while the run starts, collects, learns, evaluates or saves, and each time it is resumed."""
    settings = {"backend": backend, "eval_freq": 512, "eval_episodes": 3}
    run = make_run(timesteps=ENDLESS, env_kwargs={"pause": 0.002}, **settings)
    for _ in range(12):
        number = rng.choice(list(EXIT_CODES))
        trainer = run.resume_or_train()
        trainer.wait_for(lambda: catches_signal(trainer.pid, signal.SIGTERM), "a handler of SIGTERM")
        time.sleep(rng.uniform(0.0, 4.0))
        trainer.signal(number, group=number == signal.SIGINT)
        assert trainer.wait(EXIT_CODES[number]).seconds < STOP_SECONDS
    saved = run.newest  # None on a machine so slow that each signal came before the first checkpoint
    total = 256 + (saved.checkpoint.timesteps if saved else 0)
    run.resume_or_train("--timesteps", str(total)).wait()
    assert run.summary["weights_sha256"] == run.undisturbed_hash(timesteps=total, env_kwargs={})
