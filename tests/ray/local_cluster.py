"""A Ray cluster of several raylets on this machine, each of which can be killed. All use loopback addresses."""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import psutil

from tests.ray.processes import descendants, is_actor, is_of_run, processes_in

STORE_BYTES = 80 << 20


def set_environment(directory: Path) -> None:
    """Set the variables of every Ray that tests start, and of every run: a secret token, and no reports to anybody."""
    token = directory / "token"
    token.touch(mode=0o600)
    token.write_text(secrets.token_hex(32))
    os.environ |= {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_AUTO_CONNECT": "0",
        "RAY_worker_niceness": "0",
    }


def read_environment() -> None:
    """Have Ray read its variables again, if another test has imported it before they were set."""
    if "ray" in sys.modules:
        from ray._private.authentication_test_utils import reset_auth_token_state

        reset_auth_token_state()


class LocalCluster:
    """A head and other nodes, with one core each."""

    def __init__(self, n_nodes: int = 2) -> None:
        from ray.cluster_utils import Cluster  # Ray reads the environment variables when it is imported

        self.directory = Path(tempfile.mkdtemp(prefix="corral-rt-"))
        self._addresses = (
            f"127.0.0.{i}" for i in itertools.count(2)
        )  # Ray replaces 127.0.0.1 by the address of the machine
        self.nodes: list[Any] = []
        """The nodes besides the head."""
        self._cluster = Cluster()
        try:
            self._cluster.add_node(**self._node_arguments(include_dashboard=False))
            self.mend(n_nodes)
        except BaseException:
            self.close()
            raise

    def _node_arguments(self, **arguments: Any) -> dict[str, Any]:
        return {
            "num_cpus": 1,
            "object_store_memory": STORE_BYTES,
            "temp_dir": str(self.directory),
            "node_ip_address": next(self._addresses),
            **arguments,
        }

    @property
    def address(self) -> str:
        """Return the address of the head, for ``--ray-address``."""
        return str(self._cluster.address)

    @property
    def head(self) -> Any:
        """Return the node of the head."""
        return self._cluster.head_node

    def add_node(self) -> Any:
        """Start another node."""
        self.nodes.append(self._cluster.add_node(**self._node_arguments()))
        return self.nodes[-1]

    def remove_node(self, node: Any) -> None:
        """Kill all processes of a node."""
        workers = descendants(raylet_of(node))
        self._cluster.remove_node(node, allow_graceful=False)
        self.nodes.remove(node)
        for process in workers:  # Ray does not count them as its own
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    def drain(self, node: Any) -> None:
        """Tell Ray that a node will be switched off in a minute."""
        reason = ["--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "test"]
        command = [str(Path(sys.executable).with_name("ray")), "drain-node", "--address", self.address]
        command += ["--node-id", node.node_id, *reason, "--deadline-remaining-seconds", "60"]
        subprocess.run(command, check=True, capture_output=True)

    def end(self, node: Any, name: str, number: int) -> None:
        """End a process of a node with a signal. It must not stay a zombie: actors would take it for alive."""
        process = node.all_processes[name][0].process
        process.send_signal(number)
        threading.Thread(target=process.wait, daemon=True).start()

    def mend(self, n_nodes: int = 2) -> None:
        """Remove nodes that have ended, and others that are too many; add those that are missing."""
        for node in list(self.nodes):
            if node.all_processes["raylet"][0].process.poll() is not None or len(self.nodes) > n_nodes:
                self.remove_node(node)
        while len(self.nodes) < n_nodes:
            self.add_node()

    def actors_on(self, node: Any) -> list[psutil.Process]:
        """Return the actors of runs on a node."""
        return [process for process in descendants(raylet_of(node)) if is_actor(process)]

    def actors(self) -> list[psutil.Process]:
        """Return the actors of runs on all nodes."""
        return [process for process in processes_in(self.directory) if is_actor(process)]

    def processes_of_runs(self) -> list[psutil.Process]:
        """Return the actors of runs on all nodes, and the processes that they started."""
        return [process for process in processes_in(self.directory) if is_of_run(process)]

    def close(self) -> None:
        """End all nodes and delete their files."""
        with contextlib.suppress(Exception):  # of a head that was killed
            self._cluster.shutdown()
        for process in processes_in(self.directory):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        shutil.rmtree(self.directory, ignore_errors=True)


def raylet_of(node: Any) -> int:
    """Return the process id of a node's raylet."""
    return int(node.all_processes["raylet"][0].process.pid)
