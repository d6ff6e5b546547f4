"""A run that cannot work is refused at its start, in one line that says what to do, and writes nothing."""

import re
import signal

import psutil
import pytest
import torch

from corral.cli.main import main
from tests.faults.harness import GAMES, WATCHDOG_SECONDS, as_flags
from tests.faults.system import can_trace


def check_refused(run, *messages, wrap=(), arguments=()):
    """Start a run and check that it is refused with one line that has these messages, and writes nothing."""
    before = sorted(path.name for path in run.path.parent.iterdir())
    ended = run.train(*arguments, wrap=wrap).wait(2)
    assert ended.out == "" and len(ended.err.strip().splitlines()) == 1, ended
    for message in messages:
        assert re.search(message, ended.err), ended
    logs = {f"{run.path.name}-0.out", f"{run.path.name}-0.err"}
    assert sorted({path.name for path in run.path.parent.iterdir()} - logs) == before


@pytest.mark.parametrize(
    ("how", "where", "n_envs", "cause"),
    [
        ("os_exit", "step", "auto", "exited with code 7"),
        ("segfault", "step", "auto", "SIGSEGV.*3 times in a row"),
        ("sleep", "step", "auto", r"gave no sign of life for 1 s \(--step-timeout\)"),
        pytest.param("stop", "step", "auto", r"no sign of life for 1 s \(--step-timeout\)", marks=pytest.mark.deep),
        ("os_exit", "step", 1, "exited with code 7"),
        ("os_exit", "constructor", 1, "exited with code 7"),
        ("segfault", "reset", 1, "SIGSEGV.*3 times in a row"),
    ],
)
def test_an_env_that_ends_or_hangs_its_process_is_refused_when_it_is_tried(make_run, how, where, n_envs, cause):
    """``auto`` tries an env in another process first, even if there is nothing to decide."""
    timeout = {"step_timeout": 1} if "sign of life" in cause else {}
    settings = {"n_envs": n_envs, "backend": "auto", "num_workers": None, "batch_size": 64, **timeout}
    run = make_run(f"{GAMES}:AlwaysFails", env_kwargs={"how": how, "where": where}, **settings)
    ended = run.train().wait(2)
    verb = "measuring" if n_envs == "auto" else "trying out"
    assert re.search(f"corral train: {verb} {GAMES}:AlwaysFails: .*{cause}", ended.err), ended
    assert not run.path.exists()


def test_a_crash_in_the_process_of_the_trainer_prints_the_stack(make_run):
    """The backend ``serial`` steps envs in the process of the trainer."""
    kwargs = {"how": "segfault", "where": "step"}
    trainer = make_run(f"{GAMES}:AlwaysFails", backend="serial", num_workers=None, env_kwargs=kwargs).train()
    assert trainer.process.wait() == -signal.SIGSEGV
    assert "Segmentation fault" in trainer.err and "in cause_fault" in trainer.err


def test_too_few_file_descriptors_are_refused_with_the_numbers(make_run):
    run = make_run(n_envs=40, num_workers=40)
    check_refused(
        run, r"num_workers 40 needs about \d+ open files", "limit is 100", wrap=("prlimit", "--nofile=100:100")
    )


@pytest.mark.deep
@pytest.mark.parametrize(
    ("text", "messages"),
    [
        ("n_steps: !!python/object/apply:os.system ['touch owned']\n", ("c.yaml", "line 1", "constructor")),
        ("n_steps: [1\nx", ("c.yaml", "line 2")),
        ("n_env: 3\n", ("n_env", "did you mean 'n_envs'")),
    ],
)
def test_a_bad_config_file_is_refused_with_file_and_line(make_run, tmp_path, text, messages):
    (tmp_path / "c.yaml").write_text(text)
    check_refused(make_run(), *messages, arguments=("--config", "c.yaml"))


@pytest.mark.deep
@pytest.mark.parametrize(
    ("settings", "messages"),
    [
        ({"n_envs": 10**6}, ("n_envs '1000000'", "65536")),
        ({"n_envs": 0}, ("n_envs '0'", "1")),
        ({"n_envs": -1}, ("n_envs '-1'", "1")),
        ({"n_envs": 2.5}, ("n_envs '2.5'",)),
        ({"batch_size": 100}, ("batch_size 100", "= 128", "64 and 128")),
        ({"device": "cuda"}, ("cuda", "--device cpu")),
        ({"step_timeout": 0}, ("step_timeout '0'", "greater than 0")),
        ({"backend": "serial", "num_workers": None, "step_timeout": 5}, ("step_timeout",)),
    ],
    ids=str,
)
def test_impossible_settings_are_refused_with_the_limit(make_run, settings, messages):
    if settings.get("device") == "cuda" and torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device, so cuda is not refused")
    check_refused(make_run(**settings), *messages)


@pytest.mark.deep
def test_numbers_in_exponent_form_are_read_from_a_config_file(make_run, tmp_path):
    (tmp_path / "c.yaml").write_text("training:\n  learning_rate: 1e-4\n")
    run = make_run(timesteps=256)
    run.train("--config", "c.yaml").wait()
    assert run.rows[0]["train/learning_rate"] == 1e-4


@pytest.mark.parametrize("verb", ["resume", pytest.param("train", marks=pytest.mark.deep)])
def test_a_second_run_in_a_directory_is_refused_and_the_first_continues(make_run, verb):
    run = make_run(timesteps=10**9)
    first = run.train()
    first.wait_for_rows(1)
    second = getattr(run, verb)()
    assert second.process.wait() == 3 and f"in use by process {first.pid}" in second.err, second.err
    assert len(second.err.splitlines()) == 1
    first.wait_for_rows(len(run.rows) + 1)
    first.signal(signal.SIGTERM)
    first.wait(143)
    second.wait(3)


def test_of_two_runs_that_start_at_the_same_time_one_is_refused(make_run):
    """Both see an empty directory; the one that gets the lock second is refused."""
    run = make_run(timesteps=640)
    trainers = [run.train(), run.train()]
    codes = {trainer: trainer.process.wait(WATCHDOG_SECONDS) for trainer in trainers}
    assert sorted(codes.values())[0] == 0 and sorted(codes.values())[1] in (2, 3), [trainer.err for trainer in trainers]
    for trainer, code in codes.items():
        trainer.wait(code)
    assert [row["time/total_timesteps"] for row in run.rows] == [128, 256, 384, 512, 640]
    assert run.summary["weights_sha256"] == run.undisturbed_hash()


@pytest.mark.skipif(not can_trace(), reason="strace is missing or may not attach to processes")
def test_a_file_system_without_locks_gives_a_warning(make_run):
    run = make_run(timesteps=128, backend="serial", num_workers=None)
    strace_without_locks = ("strace", "-f", "-o", "/dev/null", "-e", "trace=flock", "-e", "inject=flock:error=ENOLCK")
    ended = run.train(wrap=strace_without_locks).wait()
    assert "has no locks" in ended.err and "in use" not in ended.err
    assert run.summary["steps"] == 128


def test_modules_in_the_current_directory_are_not_imported(make_run, tmp_path):
    """They have the names of packages that Corral imports when it needs them; it is started with `python -m`."""
    for name in ("numpy", "torch", "yaml", "tensorboard", "pyboy", "rich", "gymnasium"):
        (tmp_path / f"{name}.py").write_text("open('imported', 'w').close()\nraise SystemExit('imported')\n")
    run = make_run("CartPole-v1", timesteps=128, backend="serial", num_workers=None, tensorboard=True)
    run.train().wait()
    run.resume("--timesteps", "256").wait()
    assert not (tmp_path / "imported").exists()


def test_files_of_a_killed_start_do_not_prevent_a_run(make_run, capsys):
    """A lock and a partial config are overwritten, but a directory with any other file is refused."""
    run = make_run(backend="serial", num_workers=None, timesteps=128)
    run.path.mkdir()
    (run.path / ".lock").write_text("99999999")
    (run.path / "config.tmp").write_text("env: tests.fau")
    (run.path / "notes.txt").write_text("mine")
    arguments = ["train", run.env, *as_flags(run.settings), "--output-dir", str(run.path)]
    assert main(arguments) == 2 and "is not empty" in capsys.readouterr().err
    (run.path / "notes.txt").unlink()
    assert main(arguments) == 0 and run.summary["steps"] == 128


@pytest.mark.deep
def test_the_exit_code_is_right_even_if_stderr_cannot_be_written(make_run):
    trainer = make_run(n_envs=0).train(wrap=("sh", "-c", 'exec "$@" 2> /dev/full', "sh"))
    assert trainer.process.wait() == 2


@pytest.mark.deep
def test_a_lock_file_with_the_id_of_another_process_is_taken_over(make_run):
    """Process ids are reused: only the process that holds the lock counts, not the id in the file."""
    run = make_run(timesteps=10**9)
    trainer = run.train()
    trainer.wait_for_rows(1)
    trainer.kill()
    (run.path / ".lock").write_text(str(psutil.Process().pid))
    run.resume("--timesteps", str(run.newest.checkpoint.timesteps + 1)).wait()
