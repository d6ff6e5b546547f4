"""What ``auto`` chooses as backend, workers and number of envs, from given costs and from measured ones."""

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import corral
import corral.autotune.choose_backend as choosing
from corral.autotune.choose_backend import choose_backend, choose_n_envs
from corral.autotune.env_costs import measure_env
from corral.autotune.measure_costs import Costs
from corral.config.schema import parse_config
from corral.core.errors import EnvFault, UsageError, WorkerDied
from corral.envs.factory import resolve_env
from corral.processes import hang_detector
from corral.processes.recovery_config import RecoveryConfig
from corral.training import assemble
from tests.toy_envs import Counter

CHEAP = Costs(step=12, step_deviation=5, act=45, act_per_env=1, gradient_per_row=2, memory_mb=0.1)
SLOW = dataclasses.replace(CHEAP, step=800, step_deviation=100, memory_mb=5)


def make_config(**settings):
    """Return a config with these settings."""
    return parse_config({"env": "x", "n_steps": 128, "batch_size": 256, "n_epochs": 4, "timesteps": 10**7, **settings})


@contextlib.contextmanager
def machine_with(cores):
    """Let this machine seem to have so many cores."""
    choosing.available_cores, real = (lambda: cores), choosing.available_cores
    try:
        yield
    finally:
        choosing.available_cores = real


def choose(costs, cores=2, on_accelerator=False, **settings):
    """Return the choice for these costs on a machine with so many cores."""
    with machine_with(cores):
        return choose_backend(make_config(**settings), lambda: costs, on_accelerator)


def test_a_slow_env_gets_a_worker_for_each_core():
    for cores in (2, 4, 8):
        choice = choose(SLOW, cores)
        assert (choice.backend, choice.num_workers) == ("worker", cores)
    assert "a step costs 800 µs" in choice.why and "with serial" in choice.why and "8 workers" in choice.why


def test_there_are_never_more_workers_than_envs():
    assert choose(SLOW, 16, n_envs=4, batch_size=128).num_workers == 4
    assert choose(SLOW, 4, n_envs=1, batch_size=128).backend == "serial"


def test_on_one_core_serial_is_chosen_without_measuring():
    choice = choose_backend(make_config(backend="serial"), lambda: pytest.fail("the env was measured"), False)
    assert choice.backend == "serial"
    with machine_with(1):
        choice = choose_backend(make_config(), lambda: pytest.fail("the env was measured"), False)
    assert choice.backend == "serial" and "one core" in choice.why


def test_serial_is_chosen_unless_workers_are_clearly_faster():
    tiny_costs = dataclasses.replace(CHEAP, step=1, gradient_per_row=0.4)
    assert choose(tiny_costs).backend == "serial"
    choices = [choose(dataclasses.replace(CHEAP, step=step, workers_compute_gradients=False)) for step in range(1, 40)]
    little_faster = [choice for choice in choices if choice.why.endswith("which is less than 5% faster")]
    assert little_faster and all(choice.backend == "serial" for choice in little_faster)
    assert choices[-1].backend == "worker"
    choice = choose(SLOW, timesteps=1000)
    assert choice.backend == "serial" and choice.why.endswith("the run is too short to make up for their start")


def test_a_policy_on_an_accelerator_gets_the_process_backend():
    assert choose(SLOW, 4, on_accelerator=True).backend == "process"


def test_settings_of_the_user_are_kept_and_get_advice():
    choice = choose(SLOW, 2, num_workers=4)
    assert (choice.backend, choice.num_workers) == ("worker", 4)
    assert "more than the 2 cores" in choice.advice
    assert choose(SLOW, 2, num_workers=2).advice is None
    assert choose(CHEAP, 2, backend="process").backend == "process"
    choice = choose(CHEAP, 2, parallel_start_method="spawn", timesteps=1000)
    assert choice.backend == "worker" and choice.why == "auto: parallel_start_method needs workers"


def test_advice_says_that_there_are_too_many_envs():
    settings = {"n_envs": 512, "batch_size": 128 * 128}
    costs = dataclasses.replace(SLOW, act_per_env=0.1, gradient_per_row=0.01)
    assert "n_envs 512 is past the point of diminishing returns: 256" in choose(costs, 2, **settings).advice
    assert choose(costs, 2, n_envs=8).advice is None


def test_the_number_of_envs_depends_on_their_cost():
    def best(costs, cores=2, **settings):
        with machine_with(cores):
            return choose_n_envs({"env": "x", "n_steps": 128, "batch_size": 64, **settings}, lambda _: costs)

    many, few = best(CHEAP), best(SLOW)
    assert many.n_envs > few.n_envs >= 2
    assert "steps/s" in many.why
    large_env = dataclasses.replace(CHEAP, memory_mb=10**6)
    assert best(large_env).n_envs <= 4
    assert best(SLOW, cores=16).n_envs % 16 == 0
    with pytest.raises(UsageError, match=r"no number of envs fits .*batch_size 97 does not divide"):
        best(CHEAP, batch_size=97)
    with pytest.raises(UsageError, match="gamma"):
        best(CHEAP, gamma=5)


def test_the_number_of_envs_is_chosen_for_the_backend_of_the_user():
    def rate(**settings):
        with machine_with(8):
            why = choose_n_envs({"env": "x", "n_steps": 128, "batch_size": 64, **settings}, lambda _: SLOW).why
        return float(why.split(" should reach ")[1].split(" steps/s")[0].replace(",", ""))

    assert rate() > 4 * rate(backend="serial")
    assert rate() > 2 * rate(num_workers=2)


def test_advice_says_that_overlap_gains_nothing_in_one_process():
    assert "gains nothing" in choose(SLOW, 1, overlap=True).advice
    assert "gains nothing" in choose(SLOW, 2, overlap=True, backend="serial").advice
    assert choose(CHEAP, 2, overlap=True).backend == "worker"


def test_auto_measures_then_prints_and_records_its_reason(capsys):
    settings = {"n_steps": 32, "batch_size": 32, "n_epochs": 1, "timesteps": 256, "eval_freq": 0, "tensorboard": False}
    result = corral.train(Counter, n_envs="auto", seed=1, **settings)
    output = capsys.readouterr().out
    assert f"--n-envs {result.summary.n_envs}" in output and "measuring a step of" in output
    config_text = (result.run_dir / "config.yaml").read_text(encoding="utf-8")
    assert "# auto: a step costs" in config_text and f"n_envs: {result.summary.n_envs}" in config_text
    repeated = corral.train(Counter, n_envs=result.summary.n_envs, seed=1, quiet=True, output_dir="again", **settings)
    assert repeated.summary.weights_sha256 == result.summary.weights_sha256


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="processes cannot be bound to a core here")
def test_bound_to_one_core_auto_chooses_serial():
    code = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "import corral; print(corral.train('toy-work', timesteps=2000, n_steps=32, batch_size=64, eval_freq=0,"
        "tensorboard=False, env_kwargs={'step_ms': 0.1}, quiet=True).summary.backend)"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(corral.__file__).parents[1])}
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, timeout=600)
    assert completed.stdout.strip() == "serial", completed.stderr


SMALL = {"n_steps": 32, "batch_size": 32, "n_epochs": 1, "timesteps": 64, "eval_freq": 0, "tensorboard": False}


class Hanging(Counter):
    """Never returns from its first step."""

    def step(self, action):
        while True:
            time.sleep(1)


def test_an_env_that_hangs_is_refused_even_if_auto_need_not_measure(monkeypatch):
    monkeypatch.setattr(hang_detector, "_MIN_TIMEOUT", 1.0)
    with pytest.raises(WorkerDied, match=r"trying out .*Hanging: .* gave no sign of life for 1 s") as refused:
        corral.train(Hanging, n_envs=1, quiet=True, **SMALL)
    assert refused.value.exit_code == 2 and not Path("runs").exists()


def test_the_env_of_a_resumed_run_is_not_tried_out_again(monkeypatch):
    first_run = corral.train(Counter, n_envs=1, quiet=True, **SMALL)
    monkeypatch.setattr(assemble, "try_env", lambda *arguments: pytest.fail("the env was tried out"))
    resumed = corral.resume(first_run.run_dir, env=Counter, backend="auto", timesteps=128, quiet=True)
    assert resumed.summary.steps == 128


class ExitsOnSecondEnv(Counter):
    """Ends its process when a second env is made in it."""

    made = False

    def __init__(self):
        if ExitsOnSecondEnv.made:
            os._exit(3)
        ExitsOnSecondEnv.made = True
        super().__init__()


def test_a_second_env_is_made_only_to_measure_its_memory():
    factory, arguments = resolve_env(ExitsOnSecondEnv), (1, None, RecoveryConfig(recover=True), "auto")
    assert measure_env(factory, *arguments).memory_mb == 0
    with pytest.raises(WorkerDied, match="exited with code 3"):
        measure_env(factory, *arguments, memory=True)


@pytest.mark.parametrize(
    "settings",
    [{"n_envs": 2, "eval_freq": 0}, {"n_envs": 1, "eval_freq": 64}],
    ids=["two envs", "one env and evaluation"],
)
def test_a_second_env_that_ends_its_process_does_not_end_the_trainer(settings):
    with pytest.raises(
        WorkerDied,
        match=r"trying out .*ExitsOnSecondEnv, 2 envs in one process .*set --num-workers .* exited with code 3",
    ):
        corral.train(ExitsOnSecondEnv, quiet=True, **{**SMALL, **settings})
    one_worker_each = {**settings, "num_workers": settings["n_envs"]}
    assert corral.train(ExitsOnSecondEnv, quiet=True, **{**SMALL, **one_worker_each}).summary.steps == 64


class RaisesOnSecondEnv(Counter):
    """Raises when a second env is made in its process."""

    made = False

    def __init__(self):
        if RaisesOnSecondEnv.made:
            raise RuntimeError("there can be only one")
        RaisesOnSecondEnv.made = True
        super().__init__()


@pytest.mark.parametrize("settings", [{"backend": "serial"}, {"num_workers": 1}], ids=["serial", "one worker"])
def test_envs_that_cannot_share_a_process_raise_with_advice_to_use_a_worker_each(settings, monkeypatch):
    monkeypatch.setattr(RaisesOnSecondEnv, "made", False)
    with pytest.raises(EnvFault, match=r"(?s)only one.*--num-workers to the number of --n-envs"):
        corral.train(RaisesOnSecondEnv, n_envs=2, quiet=True, **SMALL, **settings)
    monkeypatch.setattr(RaisesOnSecondEnv, "made", False)
    assert corral.train(RaisesOnSecondEnv, n_envs=2, num_workers=2, quiet=True, **SMALL).summary.steps == 64


def test_the_process_that_measures_is_restarted_at_most_max_restarts_times():
    class Killed(Counter):
        def step(self, action):
            os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(WorkerDied, match="the limit of 1 restarts"):
        corral.train(Killed, n_envs="auto", max_restarts=1, quiet=True, **SMALL)


def test_padding_rows_of_a_tile_cost_as_much_as_other_rows():
    costs = dataclasses.replace(CHEAP, act=100, act_per_env=10, tile=4)
    assert [costs.act_time(n) for n in (1, 4, 5, 8, 9)] == [100, 100, 140, 140, 180]
