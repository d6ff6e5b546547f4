"""``corral node`` on two hosts, as docs/cluster.md shows it: a node that is told to end loses no step."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time

import pytest

from tests.ray.harness import SETTINGS, WALK, wait_for_moment
from tests.ray.namespaces import Network, missing

pytestmark = [pytest.mark.deep, pytest.mark.skipif(bool(missing()), reason=missing())]


def start_node(host, home, *flags):
    """Start ``corral node`` on a host, and return its process when it has joined."""
    command = [*host.enter(), sys.executable, "-m", "corral", "node", "--num-cpus", "1", *flags]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    node = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment | {"HOME": str(home)})
    assert "Ray cluster" in node.stdout.readline()
    return node


@pytest.fixture
def network():
    """Connect two hosts; end all their processes afterwards."""
    network = Network(2)
    yield network
    for host in network.hosts:
        host.kill()
    network.close()


def test_a_node_that_is_told_to_end_is_vacated_and_leaves_no_trace_in_the_result(network, tmp_path, make_run):
    first, second = network.hosts
    homes = [tmp_path / "first", tmp_path / "second"]
    for home in homes:
        home.mkdir()
    head = start_node(first, homes[0], "--head")
    shutil.copytree(homes[0] / ".corral", homes[1] / ".corral")
    joined = start_node(second, homes[1], "--join", f"{first.address}:6379")
    run = make_run(WALK, timesteps=4 * SETTINGS["timesteps"])
    words = ["env", f"HOME={homes[0]}", "RAY_AUTH_MODE=token", f"RAY_AUTH_TOKEN_PATH={homes[0]}/.corral/ray-token"]
    address = f"{first.address}:6379"
    trainer = run.train(
        "--backend", "ray", "--ray-address", address, "--num-workers", "2", wrap=[*first.enter(), *words]
    )
    wait_for_moment(trainer, random.Random(1))
    joined.send_signal(signal.SIGTERM)
    assert joined.wait(30) == 128 + signal.SIGTERM
    trainer.wait()
    run.check_equal()
    assert run.summary["restarts"] == 0 and run.summary["nodes"][second.address]["moved"] == 1
    head.send_signal(signal.SIGINT)
    assert head.wait(30) == 128 + signal.SIGINT
    deadline = time.monotonic() + 30
    while (left := [host.processes() for host in network.hosts if host.processes()]) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not left
