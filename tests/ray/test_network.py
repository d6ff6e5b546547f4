"""Hosts of a Ray cluster are cut off, killed or slow while a run trains: its result is that of an undisturbed run."""

from __future__ import annotations

import contextlib
import threading

import pytest

from tests.ray.harness import SEEDS, WALK, WIDE_WALK, flags, longest_pause, moment, wait_for_moment
from tests.ray.namespaces import RayHosts, missing, slowed_down
from tests.ray.processes import check_no_process_is_left

pytestmark = pytest.mark.deep

SILENT_SECONDS = 5.0
"""The ``--node-timeout`` of the runs."""
PAUSE_SECONDS = SILENT_SECONDS + 2 + 40
"""A run must go on after this time: 2 s after the time-out, and what a slow machine needs to start another host."""
CUT_SECONDS = 20.0


@pytest.fixture(scope="module")
def module_hosts(ray_environment):
    """Start a cluster of three hosts for a module."""
    if reason := missing():
        pytest.skip(reason)
    hosts = RayHosts()
    yield hosts
    hosts.close()


@pytest.fixture
def hosts(module_hosts):
    """Return the module's hosts, all of which work; check after the test that its runs have left no process."""
    module_hosts.mend()
    yield module_hosts
    check_no_process_is_left(module_hosts.processes_of_runs)


@contextlib.contextmanager
def cut_for_a_while(hosts, host):
    hosts.set_link(host, "down")
    timer = threading.Timer(CUT_SECONDS, lambda: hosts.set_link(host, "up"))
    timer.start()
    try:
        yield
    finally:
        timer.join()


@contextlib.contextmanager
def cut_for_good(hosts, host):
    hosts.set_link(host, "down")
    host.is_broken = True
    yield


@contextlib.contextmanager
def killed(hosts, host):
    host.kill()
    host.is_broken = True
    yield


@contextlib.contextmanager
def slow_host(hosts, host):
    with slowed_down(host):
        yield


@contextlib.contextmanager
def slow_link(hosts, host):
    hosts.limit_rate(host, "1mbit")
    try:
        yield
    finally:
        hosts.limit_rate(host, None)


FAULTS = {cut_for_a_while: 26880, cut_for_good: 15360, killed: 15360, slow_host: 7680, slow_link: 7680}
"""With the number of steps of the run. It ends after a link that is cut for a while is back."""


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_host_that_fails_leaves_no_trace_in_the_result(fault, seed, hosts, make_run):
    rng, run = (
        moment(fault.__name__, seed),
        make_run(WIDE_WALK if fault is slow_link else WALK, timesteps=FAULTS[fault]),
    )
    trainer = run.train(*flags(hosts.address, node_timeout=SILENT_SECONDS), wrap=hosts.head.enter())
    wait_for_moment(trainer, rng)
    host = rng.choice(hosts.others)
    assert hosts.actors_on(host), "the host has no actor"
    with fault(hosts, host):
        longest_pause(trainer, seconds=PAUSE_SECONDS)
        trainer.wait()
    run.check_equal()
