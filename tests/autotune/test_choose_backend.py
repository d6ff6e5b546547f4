"""What auto chooses, from costs that are given and from costs that are measured."""

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
from corral.processes import supervision
from corral.processes.supervision import RecoveryConfig
from corral.training import assemble
from tests.toy_envs import Counter

CHEAP = Costs(step=12, step_deviation=5, act=45, act_per_env=1, gradient_per_row=2, memory_mb=0.1)
SLOW = dataclasses.replace(CHEAP, step=800, step_deviation=100, memory_mb=5)


def config(**settings):
    return parse_config({"env": "x", "n_steps": 128, "batch_size": 256, "n_epochs": 4, "timesteps": 10**7, **settings})


@contextlib.contextmanager
def machine_with(cores):
    choosing.available_cores, real = (lambda: cores), choosing.available_cores
    try:
        yield
    finally:
        choosing.available_cores = real


def chosen(costs, cores=2, on_accelerator=False, **settings):
    with machine_with(cores):
        return choose_backend(config(**settings), lambda: costs, on_accelerator)


def test_a_slow_env_gets_a_worker_for_each_core():
    for cores in (2, 4, 8):
        choice = chosen(SLOW, cores)
        assert (choice.backend, choice.num_workers) == ("worker", cores)
    assert "a step costs 800 µs" in choice.why and "with serial" in choice.why and "8 workers" in choice.why


def test_workers_are_for_envs_to_share():
    assert chosen(SLOW, 16, n_envs=4, batch_size=128).num_workers == 4
    assert chosen(SLOW, 4, n_envs=1, batch_size=128).backend == "serial"


def test_one_core_needs_no_workers_and_no_measuring():
    choice = choose_backend(config(backend="serial"), lambda: pytest.fail("measured"), False)
    assert choice.backend == "serial"
    with machine_with(1):
        choice = choose_backend(config(), lambda: pytest.fail("measured"), False)
    assert choice.backend == "serial" and "one core" in choice.why


def test_what_is_as_fast_alone_stays_alone():
    nothing = dataclasses.replace(CHEAP, step=1, gradient_per_row=0.4)
    assert chosen(nothing).backend == "serial"
    near = [chosen(dataclasses.replace(CHEAP, step=step, workers_compute_gradients=False)) for step in range(1, 40)]
    little = [choice for choice in near if choice.why.endswith("which is less than 5% faster")]
    assert little and all(choice.backend == "serial" for choice in little) and near[-1].backend == "worker"
    choice = chosen(SLOW, timesteps=1000)
    assert choice.backend == "serial" and choice.why.endswith("the run is too short to make up for their start")


def test_a_policy_on_an_accelerator_stays_in_one_place():
    assert chosen(SLOW, 4, on_accelerator=True).backend == "process"


def test_what_was_asked_for_is_done_with_advice():
    choice = chosen(SLOW, 2, num_workers=4)
    assert (choice.backend, choice.num_workers) == ("worker", 4)
    assert "more than the 2 cores" in choice.advice
    assert chosen(SLOW, 2, num_workers=2).advice is None
    assert chosen(CHEAP, 2, backend="process").backend == "process"
    choice = chosen(CHEAP, 2, parallel_start_method="spawn", timesteps=1000)
    assert choice.backend == "worker" and choice.why == "auto: parallel_start_method needs workers"


def test_too_many_envs_are_told_so():
    settings = {"n_envs": 512, "batch_size": 128 * 128}
    costs = dataclasses.replace(SLOW, act_per_env=0.1, gradient_per_row=0.01)
    assert "n_envs 512 is past the point of diminishing returns: 256" in chosen(costs, 2, **settings).advice
    assert chosen(costs, 2, n_envs=8).advice is None


def test_the_number_of_envs_follows_from_what_they_cost():
    def best(costs, cores=2, **settings):
        with machine_with(cores):
            return choose_n_envs({"env": "x", "n_steps": 128, "batch_size": 64, **settings}, lambda found: costs)

    many, few = best(CHEAP), best(SLOW)
    assert many.n_envs > few.n_envs >= 2
    assert "steps/s" in many.why
    large = dataclasses.replace(CHEAP, memory_mb=10**6)
    assert best(large).n_envs <= 4
    assert best(SLOW, cores=16).n_envs % 16 == 0
    with pytest.raises(UsageError, match=r"no number of envs fits .*batch_size 97 does not divide"):
        best(CHEAP, batch_size=97)
    with pytest.raises(UsageError, match="gamma"):
        best(CHEAP, gamma=5)


def test_the_number_of_envs_is_for_the_backend_that_was_asked_for():
    def rate(**settings):
        with machine_with(8):
            why = choose_n_envs({"env": "x", "n_steps": 128, "batch_size": 64, **settings}, lambda found: SLOW).why
        return float(why.split(" should reach ")[1].split(" steps/s")[0].replace(",", ""))

    assert rate() > 4 * rate(backend="serial")
    assert rate() > 2 * rate(num_workers=2)


def test_overlap_in_one_process_is_told_to_gain_nothing():
    assert "gains nothing" in chosen(SLOW, 1, overlap=True).advice
    assert "gains nothing" in chosen(SLOW, 2, overlap=True, backend="serial").advice
    assert chosen(CHEAP, 2, overlap=True).backend == "worker"


def test_auto_measures_says_why_and_records_it(capsys):
    settings = {"n_steps": 32, "batch_size": 32, "n_epochs": 1, "timesteps": 256, "eval_freq": 0, "tensorboard": False}
    result = corral.train(Counter, n_envs="auto", seed=1, **settings)
    said = capsys.readouterr().out
    assert f"--n-envs {result.summary.n_envs}" in said and "measuring a step of" in said
    written = (result.run_dir / "config.yaml").read_text(encoding="utf-8")
    assert "# auto: a step costs" in written and f"n_envs: {result.summary.n_envs}" in written
    again = corral.train(Counter, n_envs=result.summary.n_envs, seed=1, quiet=True, output_dir="again", **settings)
    assert again.summary.weights_sha256 == result.summary.weights_sha256


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="processes cannot be bound to a core here")
def test_bound_to_one_core_auto_chooses_serial():
    code = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "import corral; print(corral.train('toy-work', timesteps=2000, n_steps=32, batch_size=64, eval_freq=0,"
        "tensorboard=False, env_kwargs={'step_ms': 0.1}, quiet=True).summary.backend)"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(corral.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, timeout=600)
    assert done.stdout.strip() == "serial", done.stderr


SMALL = {"n_steps": 32, "batch_size": 32, "n_epochs": 1, "timesteps": 64, "eval_freq": 0, "tensorboard": False}


class Hanging(Counter):
    def step(self, action):
        while True:
            time.sleep(1)


def test_an_env_that_hangs_is_refused_where_auto_measures_nothing(monkeypatch):
    monkeypatch.setattr(supervision, "_MIN_TIMEOUT", 1.0)
    with pytest.raises(WorkerDied, match=r"trying out .*Hanging: .* gave no sign of life for 1 s") as refused:
        corral.train(Hanging, n_envs=1, quiet=True, **SMALL)
    assert refused.value.exit_code == 2 and not Path("runs").exists()


def test_an_env_that_took_steps_before_is_not_tried_out_again(monkeypatch):
    ended = corral.train(Counter, n_envs=1, quiet=True, **SMALL)
    monkeypatch.setattr(assemble, "try_env", lambda *arguments: pytest.fail("tried"))
    resumed = corral.resume(ended.run_dir, env=Counter, backend="auto", timesteps=128, quiet=True)
    assert resumed.summary.steps == 128


class Lonely(Counter):
    """Ends the process when another one is made in it."""

    made = False

    def __init__(self):
        if Lonely.made:
            os._exit(3)
        Lonely.made = True
        super().__init__()


def test_a_second_env_is_made_for_its_memory_alone():
    factory, how = resolve_env(Lonely), (1, None, RecoveryConfig(heal=True), "auto")
    assert measure_env(factory, *how).memory_mb == 0
    with pytest.raises(WorkerDied, match="exited with code 3"):
        measure_env(factory, *how, memory=True)


@pytest.mark.parametrize(
    "way", [{"n_envs": 2, "eval_freq": 0}, {"n_envs": 1, "eval_freq": 64}], ids=["two", "evaluation"]
)
def test_a_second_env_that_ends_its_process_does_not_end_the_trainer(way):
    with pytest.raises(
        WorkerDied, match=r"trying out .*Lonely, 2 envs in one process .*set --num-workers .* exited with code 3"
    ):
        corral.train(Lonely, quiet=True, **{**SMALL, **way})
    assert corral.train(Lonely, quiet=True, **{**SMALL, **way, "num_workers": way["n_envs"]}).summary.steps == 64


class Jealous(Counter):
    """Raises where a process has another one."""

    made = False

    def __init__(self):
        if Jealous.made:
            raise RuntimeError("there can be only one")
        Jealous.made = True
        super().__init__()


@pytest.mark.parametrize("way", [{"backend": "serial"}, {"num_workers": 1}], ids=["serial", "one worker"])
def test_envs_that_cannot_share_a_process_are_told_how_not_to(way, monkeypatch):
    monkeypatch.setattr(Jealous, "made", False)
    with pytest.raises(EnvFault, match=r"(?s)only one.*--num-workers to the number of --n-envs"):
        corral.train(Jealous, n_envs=2, quiet=True, **SMALL, **way)
    monkeypatch.setattr(Jealous, "made", False)
    assert corral.train(Jealous, n_envs=2, num_workers=2, quiet=True, **SMALL).summary.steps == 64


def test_a_child_that_measures_is_replaced_as_often_as_asked():
    class Killed(Counter):
        def step(self, action):
            os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(WorkerDied, match="one more than the 1 of --max-restarts"):
        corral.train(Killed, n_envs="auto", max_restarts=1, quiet=True, **SMALL)


def test_rows_that_only_fill_a_tile_cost_as_much_as_others():
    costs = dataclasses.replace(CHEAP, act=100, act_per_env=10, tile=4)
    assert [costs.act_time(n) for n in (1, 4, 5, 8, 9)] == [100, 100, 140, 140, 180]
