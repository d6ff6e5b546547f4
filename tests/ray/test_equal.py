"""Runs have the same result on every number of nodes and of actors, and when they are continued elsewhere."""

from __future__ import annotations

import signal

import pytest

from tests.ray.harness import flags
from tests.ray.local_cluster import LocalCluster
from tests.ray.processes import check_no_process_is_left

pytestmark = pytest.mark.deep

COMMON = {"n_envs": 8, "n_steps": 128, "eval_freq": 0, "tensorboard": False, "seed": 5}
CASES = {
    "cartpole": ("CartPole-v1", {}),
    "normalized": ("CartPole-v1", {"normalize_obs": True}),
    "overlap": ("CartPole-v1", {"overlap": True}),
    "card battle": (
        "card-battle",
        {
            "opponent": "mixed:current=1,checkpoint=1,random=1",
            "n_steps": 48,
            "batch_size": 192,
            "checkpoint_freq": 384,
        },
    ),
    "territory": ("territory", {"n_steps": 32, "batch_size": 128}),
    "lstm": ("toy-recall", {"recurrent": "lstm"}),
}
ITERATIONS = 16


def settings_of(case):
    env, settings = CASES[case]
    settings = {**COMMON, **settings}
    return env, {**settings, "timesteps": ITERATIONS * settings["n_envs"] * settings["n_steps"]}


@pytest.fixture(scope="module", params=[1, 3], ids=["1 node", "3 nodes"])
def nodes(request, ray_environment):
    """Start a cluster of one or three nodes for a module."""
    cluster = LocalCluster(request.param - 1)
    yield cluster
    cluster.close()


@pytest.mark.parametrize("case", CASES)
def test_the_number_of_nodes_and_actors_does_not_matter(nodes, case, make_run):
    env, settings = settings_of(case)
    for num_workers in (1, 2, 4):
        run = make_run(env, **settings)
        run.train(*flags(nodes.address, num_workers)).wait()
        run.check_equal()
        check_no_process_is_left(nodes.processes_of_runs)


@pytest.mark.parametrize("case", CASES)
def test_a_run_may_be_continued_with_every_other_backend(case, cluster, make_run):
    env, settings = settings_of(case)
    run = make_run(env, **settings)
    worker = ["--backend", "worker", "--num-workers", "3"]
    backends = [["--backend", "serial"], flags(cluster.address, 4), worker, flags(cluster.address, 2)]
    for n_rows, backend in enumerate(backends):
        trainer = run.resume(*backend) if n_rows else run.train(*backend)
        trainer.wait_for(lambda: len(run.rows) >= 2 * n_rows + 2)
        trainer.signal(signal.SIGTERM)
        trainer.wait(143)
    run.resume("--backend", "serial").wait()
    run.check_equal()


@pytest.mark.parametrize("case", CASES)
def test_one_process_has_the_same_result(case, make_run):
    env, settings = settings_of(case)
    run = make_run(env, **settings)
    run.train("--backend", "serial").wait()
    run.check_equal()
