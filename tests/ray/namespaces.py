"""Real hosts of a Ray cluster: network namespaces that are connected by virtual cables to a switch.

The switch is a bridge in a namespace of its own, so nothing here reaches any other network.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from tests.faults.system import process_name
from tests.ray.local_cluster import STORE_BYTES
from tests.ray.processes import is_of_run

RAY = Path(sys.executable).with_name("ray")
PORT = 6379


@functools.cache
def missing() -> str:
    """Return what this machine lacks for network namespaces; an empty string if it lacks nothing."""
    if sys.platform != "linux":
        return "needs network namespaces, which only Linux has"
    if absent := [command for command in ("ip", "tc") if shutil.which(command) is None]:
        return f"needs the commands {' and '.join(absent)} (package iproute2)"
    if os.geteuid() != 0:
        return "needs root, to make network namespaces"
    try:
        Network(1).close()
    except subprocess.CalledProcessError as error:
        return f"cannot make network namespaces and connect them: {error.stderr.strip()}"
    return ""


class Host:
    """A network namespace with one core for Ray."""

    def __init__(self, prefix: str, index: int) -> None:
        self.name, self.address = f"{prefix}-{index}", f"10.77.0.{index + 1}"
        self.port = f"port{index}"
        """The switch's end of the host's cable."""
        self.is_broken = True
        """Whether Ray must be started here again."""

    def enter(self) -> list[str]:
        """Return the beginning of a command that is run on this host."""
        return ["ip", "netns", "exec", self.name]

    def processes(self) -> list[psutil.Process]:
        """Return all live processes on this host."""
        pids = subprocess.run(["ip", "netns", "pids", self.name], capture_output=True, text=True).stdout.split()
        processes = []
        for pid in map(int, pids):
            with contextlib.suppress(psutil.NoSuchProcess):
                processes.append(psutil.Process(pid))
        return [process for process in processes if process_name(process)]

    def signal(self, number: int) -> None:
        """Send a signal to all processes on this host."""
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def kill(self) -> None:
        """Kill all processes on this host."""
        deadline = time.monotonic() + 20
        while self.processes() and time.monotonic() < deadline:
            self.signal(signal.SIGKILL)
            time.sleep(0.05)


class Network:
    """Hosts that are connected to a switch."""

    def __init__(self, n_hosts: int) -> None:
        prefix = f"corral-{os.getpid()}"
        self._switch = f"{prefix}-switch"
        self.hosts = [Host(prefix, index) for index in range(n_hosts)]
        try:
            self._connect()
        except BaseException:
            self.close()
            raise

    def _connect(self) -> None:
        for name in (self._switch, *(host.name for host in self.hosts)):
            ip("netns", "add", name)
        ip("-n", self._switch, "link", "add", "name", "sw", "type", "bridge", "stp_state", "0", "forward_delay", "0")
        ip("-n", self._switch, "link", "set", "sw", "up")
        for host in self.hosts:
            there = ["peer", "name", "eth0", "netns", host.name]
            ip("link", "add", host.port, "netns", self._switch, "type", "veth", *there)
            ip("-n", self._switch, "link", "set", host.port, "master", "sw", "up")
            ip("-n", host.name, "addr", "add", f"{host.address}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                ip("-n", host.name, "link", "set", device, "up")

    def set_link(self, host: Host, state: str) -> None:
        """Pull out a host's cable (``down``), or plug it in again (``up``)."""
        ip("-n", self._switch, "link", "set", host.port, state)

    def limit_rate(self, host: Host, rate: str | None) -> None:
        """Limit what passes a host's cable in each direction, to ``1mbit`` for example; None removes the limit."""
        for name, device in ((host.name, "eth0"), (self._switch, host.port)):
            command = ["ip", "netns", "exec", name, "tc", "qdisc"]
            subprocess.run([*command, "del", "dev", device, "root"], capture_output=True)  # there may be none
            if rate is not None:
                limit = ["tbf", "rate", rate, "burst", "32kb", "latency", "400ms"]
                subprocess.run([*command, "add", "dev", device, "root", *limit], check=True)

    def close(self) -> None:
        """Kill all processes on the hosts and delete the namespaces."""
        for host in self.hosts:
            host.kill()
        for name in (self._switch, *(host.name for host in self.hosts)):
            subprocess.run(["ip", "netns", "del", name], capture_output=True)  # it may not exist


class RayHosts(Network):
    """A Ray cluster of such hosts. The first one is the head."""

    def __init__(self, n_hosts: int = 3) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="crt-"))  # short, because names of sockets must be
        super().__init__(n_hosts)
        self.head, *self.others = self.hosts
        self.address = f"{self.head.address}:{PORT}"
        try:
            self.mend()
        except BaseException:
            self.close()
            raise

    def mend(self) -> None:
        """Start Ray on the hosts that have none or whose link was cut."""
        for host in self.hosts:
            if host.is_broken:
                host.kill()
                self.set_link(host, "up")
                self._start(host)

    def _start(self, host: Host) -> None:
        directory = self._directory / host.name.rpartition("-")[2]
        shutil.rmtree(directory, ignore_errors=True)
        role = ["--head", f"--port={PORT}", "--include-dashboard=false"]
        if host is not self.head:
            role = [f"--address={self.address}"]
        size = ["--num-cpus=1", f"--object-store-memory={STORE_BYTES}", f"--temp-dir={directory}"]
        command = [*host.enter(), str(RAY), "start", *role, *size, f"--node-ip-address={host.address}"]
        started = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120)
        assert started.returncode == 0, started.stdout
        host.is_broken = False

    def actors_on(self, host: Host) -> list[psutil.Process]:
        """Return the processes of runs on a host, besides trainers."""
        return [process for process in host.processes() if is_of_run(process)]

    def processes_of_runs(self) -> list[psutil.Process]:
        """Return the processes of runs on all hosts that can be reached."""
        return [process for host in self.hosts if not host.is_broken for process in self.actors_on(host)]

    def close(self) -> None:
        """End the cluster and delete the hosts and their files."""
        super().close()
        shutil.rmtree(self._directory, ignore_errors=True)


@contextlib.contextmanager
def slowed_down(host: Host, duty: float = 0.05, seconds: float = 0.2) -> Iterator[None]:
    """Let all processes on a host run only for this part of the time."""
    ended = threading.Event()

    def stop_and_continue() -> None:
        while not ended.is_set():
            host.signal(signal.SIGSTOP)
            ended.wait((1 - duty) * seconds)
            host.signal(signal.SIGCONT)
            ended.wait(duty * seconds)

    thread = threading.Thread(target=stop_and_continue, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        host.signal(signal.SIGCONT)


def ip(*words: str) -> None:
    """Run the command ``ip``."""
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)
