"""Fixtures for tests on Ray clusters. They check after each test that no process of a run is left."""

from __future__ import annotations

import importlib.util
import os
import sys

import pytest

from tests.faults.system import is_mapped, shared_memory
from tests.ray.harness import WALK, RayRun
from tests.ray.local_cluster import LocalCluster, read_environment, set_environment
from tests.ray.processes import check_no_process_is_left

if importlib.util.find_spec("ray") is None or sys.platform == "win32":
    collect_ignore_glob = ["test_*.py"]  # these tests need the package ray and POSIX signals


@pytest.fixture(scope="package", autouse=True)
def ray_environment(tmp_path_factory):
    """Set the environment variables of Ray, and check in the end that no shared memory is left."""
    before, memory = dict(os.environ), shared_memory()
    set_environment(tmp_path_factory.mktemp("ray"))
    read_environment()
    yield
    os.environ.clear()
    os.environ |= before
    read_environment()
    left = [name for name in shared_memory() - memory if not is_mapped(name)]
    assert not left, f"left in shared memory: {left}"


@pytest.fixture(scope="module")
def module_cluster(ray_environment):
    """Start a cluster of three nodes for a module."""
    cluster = LocalCluster()
    yield cluster
    cluster.close()


@pytest.fixture
def cluster(module_cluster):
    """Return the module's cluster, with three nodes; check after the test that its runs have left no process."""
    module_cluster.mend()
    yield module_cluster
    check_no_process_is_left(module_cluster.processes_of_runs)


@pytest.fixture
def own_cluster():
    """Start a cluster of three nodes for one test."""
    cluster = LocalCluster()
    yield cluster
    cluster.close()


@pytest.fixture
def make_run(tmp_path):
    """Return a function that makes runs, whose processes are killed after the test."""
    runs = []

    def make(env=WALK, **settings):
        runs.append(RayRun(tmp_path / f"run{len(runs)}", env, **settings))
        return runs[-1]

    yield make
    for run in runs:
        for trainer in run.trainers:
            trainer.kill_all()
