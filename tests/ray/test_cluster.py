"""Processes and nodes of a Ray cluster are lost while a run trains: its result is that of an undisturbed run."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ray.harness import LARGE_WALK, SEEDS, flags, longest_pause, moment, wait_for_moment
from tests.ray.processes import check_no_process_is_left

pytestmark = pytest.mark.deep

SILENT_SECONDS = 5.0
"""The ``--node-timeout`` of runs with a host that stops without an end of its process."""
HEALED_SECONDS = 60.0
"""A run must go on after this time, whatever happened. It takes a few seconds on a machine that does nothing else."""


def kill_actor(cluster, rng):
    rng.choice(cluster.actors()).kill()


def terminate_actor(cluster, rng):
    rng.choice(cluster.actors()).terminate()


def stop_actor(cluster, rng):
    rng.choice(cluster.actors()).suspend()


def kill_raylet(cluster, rng):
    cluster.end(rng.choice(cluster.nodes), "raylet", signal.SIGKILL)


def terminate_raylet(cluster, rng):
    cluster.end(rng.choice(cluster.nodes), "raylet", signal.SIGTERM)


def remove_node(cluster, rng):
    cluster.remove_node(rng.choice(cluster.nodes))


FAULTS = [kill_actor, terminate_actor, stop_actor, kill_raylet, terminate_raylet, remove_node]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_lost_host_leaves_no_trace_in_the_result(fault, seed, cluster, make_run):
    rng, run = moment(fault.__name__, seed), make_run()
    trainer = run.train(*flags(cluster.address, node_timeout=SILENT_SECONDS))
    wait_for_moment(trainer, rng)
    longest_pause(trainer, lambda: fault(cluster, rng), HEALED_SECONDS)
    trainer.wait()
    run.check_equal()
    assert run.summary["restarts"] <= 3, "more hosts were replaced than there are"


@pytest.mark.parametrize("seed", SEEDS)
def test_a_run_whose_trainer_is_killed_resumes_on_other_nodes(seed, cluster, make_run):
    rng, run = moment("trainer killed", seed), make_run()
    trainer = run.train(*flags(cluster.address))
    wait_for_moment(trainer, rng)
    assert len(cluster.processes_of_runs()) > len(cluster.actors()) >= 3
    trainer.kill()
    print(f"its actors ended after {check_no_process_is_left(cluster.processes_of_runs):.1f} s;", end=" ")
    cluster.remove_node(rng.choice(cluster.nodes))
    resumed_on = [
        flags(cluster.address, 2),
        flags(cluster.address, 4),
        flags("local", 2),
        ["--backend", "worker", "--num-workers", "3"],
        ["--backend", "serial"],
    ][seed]
    print("resumed with", *resumed_on)
    run.resume(*resumed_on).wait()
    run.check_equal()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_full_object_store_leaves_no_trace_in_the_result(seed, cluster, make_run):
    rng, run = moment("full object store", seed), make_run(LARGE_WALK, timesteps=15360)
    trainer = run.train(*flags(cluster.address))
    wait_for_moment(trainer, rng)
    script = Path(__file__).with_name("fill_object_stores.py")
    filler = subprocess.Popen([sys.executable, script, cluster.address], stdout=subprocess.PIPE, text=True)
    try:
        print(filler.stdout.readline().strip(), end="; ")
        assert trainer.process.poll() is None, "the run ended before the object stores were full"
        longest_pause(trainer, seconds=HEALED_SECONDS)
    finally:
        filler.kill()
        filler.communicate()
    trainer.wait()
    run.check_equal()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_node_that_joins_is_used(seed, cluster, make_run):
    rng, run = moment("node joins", seed), make_run(timesteps=15360)
    cluster.mend(1)
    trainer = run.train(*flags(cluster.address))
    wait_for_moment(trainer, rng)
    node = cluster.add_node()
    trainer.wait_for(lambda: cluster.actors_on(node), "an actor is on the new node")
    longest_pause(trainer)
    assert f"node {node.node_ip_address}" in trainer.wait().out, "the new node is not in the closing table"
    run.check_equal()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_node_that_is_drained_is_vacated(seed, cluster, make_run):
    rng, run = moment("node drained", seed), make_run(timesteps=15360)
    trainer = run.train(*flags(cluster.address))
    wait_for_moment(trainer, rng)
    node = rng.choice(cluster.nodes)
    assert cluster.actors_on(node)
    cluster.drain(node)
    trainer.wait_for(lambda: not cluster.actors_on(node), "the drained node has no actor")
    longest_pause(trainer)
    trainer.wait()
    run.check_equal()
    cluster.remove_node(node)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("processes", [["gcs_server"], ["gcs_server", "raylet"]], ids="+".join)
def test_a_run_whose_cluster_lost_its_head_stops_and_resumes(processes, seed, own_cluster, make_run):
    rng, run = moment(f"head lost ({processes})", seed), make_run(timesteps=53760)  # 40 s: a loss is noticed after 30
    trainer = run.train(*flags(own_cluster.address))
    wait_for_moment(trainer, rng)
    for name in processes:
        own_cluster.end(own_cluster.head, name, signal.SIGKILL)
    longest_pause(trainer, seconds=120)
    print(trainer.wait(code=1).err.strip().splitlines()[-1])
    run.resume("--backend", "worker", "--num-workers", "6").wait()
    run.check_equal()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_run_goes_on_or_resumes_after_the_loss_of_the_raylet_on_its_own_machine(seed, own_cluster, make_run):
    rng, run = moment("own raylet lost", seed), make_run()
    trainer = run.train(*flags(own_cluster.address))
    wait_for_moment(trainer, rng)
    own_cluster.end(own_cluster.head, "raylet", signal.SIGKILL)
    longest_pause(trainer, seconds=120)
    ended = trainer.wait(code=None)
    if ended.code != 0:
        print(ended.err.strip().splitlines()[-1])
        run.resume("--backend", "worker", "--num-workers", "6").wait()
    run.check_equal()
