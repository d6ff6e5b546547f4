"""``corral node``: makes this machine the head of a Ray cluster, or joins it to one, until it is told to end.

Ray runs in child processes. At SIGTERM, the cluster is told that the node is leaving. The trainer then moves its envs
to other nodes, and Ray ends when they have gone.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from corral.core.errors import CorralError, MissingPackage, UsageError
from corral.core.machine import available_cores
from corral.processes import orphan_reaper
from corral.rollout import ray_environment
from corral.rollout.ray_cluster import check_reachable, drain_node

__all__ = ["NodeRequest", "run_node"]

_POLL_SECONDS = 0.2
_START_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class NodeRequest:
    """What the user asked for."""

    join: str | None = None
    """``HOST:PORT`` of the head of the cluster; None if this machine is to be the head."""
    port: int = 6379
    """The port at which the head listens."""
    address: str | None = None
    """The address of this machine that the others use; None: that of its route to them."""
    num_cpus: int | None = None
    """Cores for workers; None: all."""
    token: Path | None = None
    """The file with the cluster's token; None: ``ray_environment.TOKEN_FILE``."""
    drain_seconds: float = 25.0
    """Seconds after SIGTERM until Ray is ended, whether the envs have gone or not."""


def run_node(request: NodeRequest, note: Callable[[str], object]) -> int:
    """Run a node of a Ray cluster until a signal ends it; return the exit code."""
    file = request.token or ray_environment.TOKEN_FILE.expanduser()
    if request.join is None:
        ray_environment.make_token(file)
    address = request.address or _own_address(request.join)
    head = request.join or f"{address}:{request.port}"
    variables = {**ray_environment.NODE, **ray_environment.token_environment(file)}
    if request.join is not None:
        check_reachable(request.join, "--join")
    else:
        _check_free(address, request.port)
    os.environ |= variables
    received: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _frame: received.append(number))
    directory = ray_environment.private_directory()
    log = directory / "log"
    process = subprocess.Popen(
        _ray_command(request, address, directory),
        stdout=log.open("wb"),
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    orphan_reaper.watch(process.pid)
    try:
        _wait_until_started(process, log, received)
        if not received:
            note(_joined(address, head) if request.join else _instructions(head, file))
        while process.poll() is None and not received:
            time.sleep(_POLL_SECONDS)
        if received and received[0] == signal.SIGTERM:
            _tell_that_it_leaves(head if request.join else None, address, request.drain_seconds, note)
            end = time.monotonic() + request.drain_seconds
            while len(received) == 1 and time.monotonic() < end and _hosts_envs(process.pid):
                time.sleep(_POLL_SECONDS)
    finally:
        _end(process)
    if received:
        return 128 + received[0]
    raise CorralError(f"Ray ended: the cluster at {head} has ended, or this node cannot reach it")


def _ray_command(request: NodeRequest, address: str, directory: Path) -> list[str]:
    """Return the command that runs Ray in the foreground."""
    role = [f"--address={request.join}"]
    if request.join is None:
        role = ["--head", f"--port={request.port}", "--include-dashboard=false"]
    cores = request.num_cpus if request.num_cpus is not None else available_cores()
    options = [
        f"--node-ip-address={address}",
        f"--num-cpus={cores}",
        f"--temp-dir={directory / 'r'}",
        "--disable-usage-stats",
        "--block",
    ]
    return [sys.executable, "-m", "ray.scripts.scripts", "start", *role, *options]


def _wait_until_started(process: subprocess.Popen[bytes], log: Path, received: list[int]) -> None:
    """Wait until Ray runs; raise an error with what it printed if it ends instead."""
    deadline = time.monotonic() + _START_SECONDS
    while not received and "Ray runtime started" not in (text := log.read_text(errors="replace")):
        if process.poll() is not None or time.monotonic() > deadline:
            if "No module named 'ray'" in text or "No module named ray" in text:
                raise MissingPackage("corral node needs the package ray: pip install 'corral[ray]'")
            if "InvalidAuthToken" in text or "Unauthenticated" in text:
                raise UsageError("the token on this machine is not that of the cluster's head; copy it again")
            lines = [line for line in text.splitlines() if line.strip()]
            raise UsageError(f"Ray did not start: {' '.join(lines[-3:]) or 'it printed nothing'}")
        time.sleep(_POLL_SECONDS)


def _tell_that_it_leaves(head: str | None, address: str, seconds: float, note: Callable[[str], object]) -> None:
    """Tell the cluster that this node ends in ``seconds``. If it is the head itself, there is nobody to tell."""
    note(f"waiting for envs to leave this node, for at most {seconds:g} s")
    if head is not None:
        with contextlib.suppress(Exception):  # the head may have ended
            drain_node(head, address, seconds)


def _hosts_envs(pid: int) -> bool:
    """Return whether a process below this one hosts envs of a run."""
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if "GroupHost" in " ".join(child.cmdline()):
                    return True
    return False


def _end(process: subprocess.Popen[bytes]) -> None:
    """End Ray and everything that it started."""
    process.terminate()
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
    orphan_reaper.end([process.pid])
    process.wait()


def _check_free(address: str, port: int) -> None:
    """Raise a UsageError if something listens at this port, probably the head of another cluster."""
    with contextlib.suppress(OSError):
        socket.create_connection((address, port), timeout=1.0).close()
        raise UsageError(f"--port {port}: in use; is this machine the head of a cluster already?")


def _own_address(head: str | None) -> str:
    """Return the address of this machine's interface towards the head, or towards the default route."""
    host = "192.0.2.1" if head is None else head.rpartition(":")[0]  # an address for documentation; nothing is sent
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, 9))
        except OSError as error:
            if head is None:  # no default route
                return next(iter(_addresses_in_networks()), "127.0.0.1")
            raise UsageError(f"--join {head}: {error.strerror or error}") from None
        return str(probe.getsockname()[0])


def _addresses_in_networks() -> list[str]:
    """Return the IPv4 addresses of this machine that other machines may reach."""
    addresses = [address for found in psutil.net_if_addrs().values() for address in found]
    ipv4 = [address.address for address in addresses if address.family == socket.AF_INET]
    return [address for address in ipv4 if not address.startswith("127.")]


def _instructions(head: str, file: Path) -> str:
    is_usual = file == ray_environment.TOKEN_FILE.expanduser()
    variables = "" if is_usual else f"RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH={shlex.quote(str(file))} "
    return (
        f"this machine is the head of a Ray cluster. On each of the others, with the same Corral and your env:\n"
        f"  1. copy {file} there, to the same place, readable by you alone (scp -p)\n"
        f"  2. corral node --join {head}\n"
        f"Train from any of them:  {variables}corral train ENV --backend ray --ray-address {head}\n"
        f"Ctrl-C ends the cluster"
    )


def _joined(address: str, head: str) -> str:
    return f"{address} has joined the Ray cluster at {head}; Ctrl-C or SIGTERM ends it"
