"""The ``ray`` source: the rollouts of other backends, also if hosts or their workers are lost. All use one local Ray."""

import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

import corral
from corral.core.errors import EnvFault, UsageError, WorkerDied
from corral.core.types import FaultCounts
from corral.processes.recovery_config import RecoveryConfig
from corral.rollout.source import ClusterConfig
from tests.rollout.test_recovery import assert_same_rollouts, collect_with, do_nothing
from tests.rollout.test_source_workers import make_source
from tests.toy_envs import Broken, Counter, Deadly, Masked, OnceBroken, Slow

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")


@pytest.fixture(scope="module", autouse=True)
def local_ray():
    """Start one Ray for all tests of this file; sources connect to it instead of starting their own."""
    from corral.rollout.ray_cluster import RayCluster

    cluster = RayCluster(ClusterConfig(), cores=2)
    yield
    cluster.close()


def kill(which, group=1, at_iteration=2, number=signal.SIGKILL):
    """Return a function that kills a group's host (0) or its worker process (1) while it collects a rollout."""

    def disturb(source, crew, iteration):
        if iteration == at_iteration:
            time.sleep(0.05)
            os.kill(source.pids()[2 * group + which], number)

    return disturb


@pytest.mark.parametrize("which", [0, 1], ids=["host", "worker"])
@pytest.mark.parametrize("settings", [{}, {"overlap": True}, {"recurrent": "lstm"}], ids=["plain", "overlap", "lstm"])
def test_the_rollout_is_the_same_as_with_workers_if_a_host_or_its_worker_is_killed(which, settings):
    def env():
        return Slow(length=11, truncate=True)

    undisturbed, _ = collect_with(env, do_nothing, **settings)
    recovered, fault_counts = collect_with(env, kill(which), backend="ray", **settings)
    assert_same_rollouts(undisturbed, recovered)
    assert fault_counts == FaultCounts(restarts=1)


def test_a_host_that_dies_between_rollouts_is_replaced():
    undisturbed, _ = collect_with(Slow, do_nothing)
    source, _ = make_source(Slow, backend="ray")
    for iteration in range(4):
        if iteration == 2:
            os.kill(source.pids()[0], signal.SIGKILL)
            time.sleep(0.2)
        source.begin(iteration)
        recovered = source.collect()
    assert_same_rollouts(undisturbed, recovered)
    (use,) = source.node_use().values()
    assert (use.lost, use.groups, use.rollouts) == (1, 2, 8)
    source.close()


def test_a_stopped_host_is_silent_and_its_envs_are_stepped_elsewhere_too():
    warnings = []
    settings = {
        "recovery": RecoveryConfig(recover=True, warn=warnings.append),
        "cluster": ClusterConfig(node_timeout=1.5),
    }
    undisturbed, _ = collect_with(Slow, do_nothing)
    recovered, fault_counts = collect_with(Slow, kill(0, number=signal.SIGSTOP), backend="ray", **settings)
    assert_same_rollouts(undisturbed, recovered)
    assert fault_counts == FaultCounts()  # nothing died
    assert len(warnings) == 1 and "its part of the rollout is collected elsewhere too" in warnings[0]


def test_masks_and_envs_that_recover_are_reported_as_by_workers(tmp_path):
    rollout, _ = collect_with(lambda: Masked("method"), do_nothing, backend="ray")
    expected, _ = collect_with(lambda: Masked("method"), do_nothing)
    assert_same_rollouts(expected, rollout)
    assert rollout.masks is not None
    marker = tmp_path / "broken"
    _, fault_counts = collect_with(lambda: OnceBroken("step", marker), do_nothing, backend="ray", n_steps=40)
    assert fault_counts == FaultCounts(retries=1)


def test_an_env_that_cannot_be_made_stops_the_run_once_with_its_own_traceback():
    with pytest.raises(EnvFault, match="no rom found") as caught:
        make_source(lambda: Broken("constructor"), backend="ray")
    assert caught.value.exit_code == 2


def test_an_env_that_kills_its_worker_again_and_again_ends_the_run_and_the_error_names_the_step():
    with pytest.raises(EnvFault, match=r"exited with code 7.*3 times in a row at the same step") as caught:
        collect_with(Deadly, do_nothing, iterations=10, backend="ray")
    fault = caught.value
    assert fault.location.step == 2 and fault.location.seed % 5 == 0 and fault.exit_code == 1


def test_max_restarts_limits_the_restarts_of_all_hosts_and_workers_together():
    def kill_one_in_every_iteration(source, crew, iteration):
        kill(iteration % 2, iteration % 2, iteration)(source, crew, iteration)

    recovery = RecoveryConfig(recover=True, max_restarts=2)
    with pytest.raises(WorkerDied, match="the limit of 2 restarts"):
        collect_with(Slow, kill_one_in_every_iteration, recovery=recovery, backend="ray")


def test_a_helper_of_the_learner_that_died_is_replaced():
    source, crew = make_source("CartPole-v1", backend="ray", helpers=1)
    helper = source.pids()[-1]
    os.kill(helper, signal.SIGKILL)
    for array in crew.shares.arrays.values():
        array[...] = 0
    crew.begin()
    crew.compute(0)
    crew.end()
    source.begin(0)
    source.collect()
    assert source.pids()[-1] != helper
    source.close()


def test_closing_ends_the_envs_and_leaves_no_process():
    source, _ = make_source(Counter, backend="ray")
    source.begin(0)
    source.collect()
    processes = [psutil.Process(pid) for pid in source.pids()]
    source.close()
    _, alive = psutil.wait_procs(processes, timeout=5)
    assert not [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]


def test_a_run_is_the_same_with_any_backend_and_resumed_with_any_other(tmp_path):
    settings = {"n_envs": 3, "n_steps": 32, "batch_size": 96, "seed": 3, "quiet": True, "eval_freq": 0}
    game = {"env": "card-battle", "opponent": "mixed:current=1,random=1", **settings}
    expected = corral.train(**game, backend="serial", timesteps=768, output_dir=str(tmp_path / "serial"))
    hashes = {expected.summary.weights_sha256}
    for i, (first, second) in enumerate([("ray", "worker"), ("serial", "ray")]):
        workers = {} if first == "serial" else {"num_workers": 3}
        run = corral.train(**game, backend=first, **workers, timesteps=384, output_dir=str(tmp_path / str(i)))
        resumed = corral.resume(run.run_dir, backend=second, num_workers=2, timesteps=768, quiet=True)
        hashes.add(resumed.summary.weights_sha256)
    assert len(hashes) == 1


def test_a_cluster_that_a_run_directory_names_must_be_named_again(tmp_path):
    run = corral.train("CartPole-v1", n_envs=2, n_steps=16, batch_size=32, timesteps=32, quiet=True, backend="serial")
    config = run.run_dir / "config.yaml"
    text = config.read_text().replace("backend: serial", "backend: ray")
    config.write_text(text.replace("ray_address: local", "ray_address: 192.0.2.9:6379"))
    with pytest.raises(UsageError, match=r"repeat it: --ray-address 192\.0\.2\.9:6379"):
        corral.resume(run.run_dir, timesteps=64, quiet=True)
    with pytest.raises(UsageError, match=r"repeat it: --ray-address 192\.0\.2\.9:6379"):
        corral.resume(run.run_dir, timesteps=64, quiet=True, backend="ray", num_workers=2)


def test_the_summary_and_the_metrics_say_what_happened_on_each_node(tmp_path):
    run = corral.train(
        "CartPole-v1", n_envs=2, n_steps=16, batch_size=32, timesteps=64, quiet=True, backend="ray", eval_freq=0
    )
    ((address, use),) = run.summary.nodes.items()
    assert use == {"groups": 2, "rollouts": 4, "lost": 0, "silent": 0, "slow": 0, "moved": 0, "differs": 0}
    assert f'"nodes/{address}/rollouts": 4' in (run.run_dir / "metrics.jsonl").read_text()


SCRIPT = """
import os, sys, time
from corral.rollout.ray_cluster import RayCluster
from corral.rollout.source import ClusterConfig
cluster = RayCluster(ClusterConfig(), cores=1)
print(os.environ["RAY_AUTH_TOKEN_PATH"], flush=True)
time.sleep(60)
"""


def test_a_local_ray_needs_a_secret_and_ends_with_a_killed_run():
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    script = subprocess.Popen([sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, text=True, env=environment)
    token = Path(script.stdout.readline().strip())
    children = psutil.Process(script.pid).children(recursive=True)
    assert stat.S_IMODE(token.stat().st_mode) == 0o600 and stat.S_IMODE(token.parent.stat().st_mode) == 0o700
    assert len(children) > 3
    script.kill()
    script.wait()
    _, alive = psutil.wait_procs(children, timeout=20)
    assert not alive
