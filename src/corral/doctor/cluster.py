"""Examines the machines of a Ray cluster: whether they answer, what they have, and whether they compute the same.

A probe runs on every node (``doctor/node_probe``). It runs the user's env if there is one. A node that does not answer
gives a finding and does not delay the others.
"""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cloudpickle
import numpy as np
import torch

from corral.config.schema import parse_config
from corral.core.errors import CorralError, WorkerDied
from corral.core.machine import limit_compute_threads
from corral.doctor.finding import Finding
from corral.doctor.isolation import call_isolated
from corral.doctor.node_probe import EnvTrial, NodeDescription, NodeProbe, read_env_info
from corral.envs.factory import EnvFactory
from corral.policy.factory import build_policy
from corral.processes.worker_bootstrap import unpickle_error
from corral.rollout.actors import actor_spec
from corral.rollout.fingerprint import Fingerprint, differences, gradient_hash
from corral.rollout.host_cluster import Call, HostLost, Node
from corral.rollout.ray_cluster import RayCluster

__all__ = ["ClusterReport", "NodeReport", "examine_cluster"]

_SILENT_SECONDS = 20.0
"""A node that has not answered anything for so long fails."""
_HEARTBEAT_SECONDS = 1.0
"""A probe that takes longer for an answer is asked for a sign of life, again and again."""
_POLL_SECONDS = 0.2
_ROUND_TRIPS, _TRANSFERS = 21, 3
"""Calls from which the latency and the bandwidth are measured."""
_TRANSFER_BYTES = 8 * 10**6
_SAME_RESULTS = "same results"
_MISSING_MODULE = re.compile(r"[Nn]o module named '([\w.]+)'")


@dataclass(slots=True)
class NodeReport:
    """What was found out about a node; None for what could not be."""

    node: Node
    is_here: bool
    """Whether the node is this machine."""
    probe: Any
    """The actor on the node, for ``RayCluster.call``."""
    description: NodeDescription | None = None
    latency: float | None = None
    """Median seconds of a call and its answer."""
    bandwidth: float | None = None
    """Median bytes per second of an array that is sent there and back."""
    fingerprint: Fingerprint | None = None
    """What the node computes; with a rollout if there is an env."""
    failure: Finding | None = None
    """Why no more is known."""


@dataclass(frozen=True, slots=True)
class ClusterReport:
    """The nodes of a cluster, and what the doctor thinks of them."""

    here: Fingerprint
    """What this machine computes."""
    nodes: list[NodeReport]
    findings: list[Finding]


def examine_cluster(cluster: RayCluster, factory: EnvFactory | None) -> ClusterReport:
    """Examine all nodes; with ``factory``, every node makes the env and collects a short rollout."""
    limit_compute_threads()  # as the probes do: the number of threads changes the last bits of a gradient
    findings: list[Finding] = []
    here, trial = Fingerprint(gradient_hash()), None
    if factory is not None:
        try:
            trial = _make_trial(factory)
            here = trial.fingerprint()
        except CorralError as error:
            advice = f"`corral doctor {factory.name}` examines it"
            findings.append(Finding("fail", f"{factory.name} on this machine", str(error), advice))
            trial = None
    nodes = [
        NodeReport(node, node.id == cluster.own_node, cluster.start_actor(node, NodeProbe, False))
        for node in cluster.nodes(refresh=True)
    ]
    try:
        _ask(cluster, nodes, "describe")
        for report in nodes:
            _measure_connection(cluster, report)
        if trial is not None:
            _ask(cluster, nodes, "try_env", cloudpickle.dumps(trial), env=trial.factory.name)
    finally:
        for report in nodes:
            cluster.kill(report.probe)
    return ClusterReport(here, nodes, [*findings, *_judge(here, nodes, None if trial is None else trial.factory.name)])


def _make_trial(factory: EnvFactory) -> EnvTrial:
    """Make the env here, for its spaces; return what a node needs to collect a rollout with a small policy."""
    env_info = call_isolated(read_env_info, factory)
    config = parse_config({"env": factory.name})
    policy = build_policy(config, env_info.observation_space, env_info.action_space, None)
    weights = {name: weight.numpy() for name, weight in policy.state_dict().items()}
    return EnvTrial(factory, actor_spec(policy, None, torch.device("cpu"), 1), weights)


# ---- questions to nodes ----------------------------------------------------------------------------------------


class _NodeLost(WorkerDied):
    """The probe of a node ended, or the node does not answer."""


class _Question:
    """A call to the probe of a node, and heartbeats while the answer is awaited."""

    def __init__(self, cluster: RayCluster, report: NodeReport, method: str, args: tuple[Any, ...]) -> None:
        self.report = report
        self.is_over = False
        self.value: Any = None
        """The answer."""
        self.error: BaseException | None = None
        """Why there is no answer."""
        self._cluster = cluster
        self._call = cluster.call(report.probe, method, *args)
        self._heartbeat: Call | None = None
        self._asked_at = self._last_heard = time.monotonic()

    def poll(self, seconds: float) -> None:
        """Wait for the answer for up to ``seconds``."""
        try:
            calls = [self._call] if self._heartbeat is None else [self._call, self._heartbeat]
            for call, outcome in self._cluster.replies(calls, seconds):
                self._last_heard = time.monotonic()
                if isinstance(outcome, HostLost):
                    raise _NodeLost(f"the process that examines it {outcome}")
                if outcome.error is not None:
                    raise unpickle_error(outcome.error)
                if call == self._call:
                    self.value, self.is_over = outcome.value, True
                else:
                    self._heartbeat = None
        except Exception as error:  # errors of the env can have any class
            self.error, self.is_over = error, True
        now = time.monotonic()
        if not self.is_over and now - self._last_heard > _SILENT_SECONDS:
            self.error, self.is_over = _NodeLost(f"does not answer for {_SILENT_SECONDS:g} s"), True
        elif not self.is_over and self._heartbeat is None and now - self._last_heard > _HEARTBEAT_SECONDS:
            self._heartbeat = self._cluster.call(self.report.probe, "heartbeat")


def _ask(cluster: RayCluster, nodes: Sequence[NodeReport], method: str, *args: Any, env: str | None = None) -> None:
    """Call a method of the probes of all nodes that have not failed, and note the answers in the reports.

    A node whose probe raises an error, ends or does not answer gets a failure. ``env`` names the env that is tried.
    """
    questions = [_Question(cluster, report, method, args) for report in nodes if report.failure is None]
    while pending := [question for question in questions if not question.is_over]:
        for question in pending:
            question.poll(_POLL_SECONDS / len(pending))
    for question in questions:
        report, value = question.report, question.value
        if question.error is not None:
            report.failure = _describe_failure(report.node, question.error, env)
        elif isinstance(value, NodeDescription):
            report.description, report.fingerprint = value, value.fingerprint
        elif isinstance(value, Fingerprint):
            report.fingerprint = value


def _measure_connection(cluster: RayCluster, report: NodeReport) -> None:
    """Measure the latency of calls to a node, and the bandwidth."""
    array = np.random.default_rng(0).integers(0, 256, _TRANSFER_BYTES, np.uint8)  # no network can compress it
    latency = _seconds_of_calls(cluster, report, None, _ROUND_TRIPS)
    transfer = _seconds_of_calls(cluster, report, array, _TRANSFERS)
    if report.failure is None:
        report.latency, report.bandwidth = latency, 2 * _TRANSFER_BYTES / transfer


def _seconds_of_calls(cluster: RayCluster, report: NodeReport, value: Any, n: int) -> float:
    """Return the median seconds in which a node returns ``value``."""
    seconds = []
    for _ in range(n):
        started = time.perf_counter()
        _ask(cluster, [report], "echo", value)
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)


# ---- findings --------------------------------------------------------------------------------------------------


def _describe_failure(node: Node, error: BaseException, env: str | None) -> Finding:
    """Return a finding about a node that gave no answer, because of ``env`` if one was tried."""
    what = f"node {node.address}" if env is None else f"{env} on node {node.address}"
    text = str(error) if isinstance(error, CorralError) else f"{type(error).__name__}: {error}"
    if (missing := _MISSING_MODULE.search(text)) is not None:
        advice = "install its package there, or copy it there with --ray-working-dir"
        return Finding("fail", what, f"the module {missing[1]!r} is missing there", advice)
    result, install, package = text.partition("; install ")  # Corral, or a package without which it cannot start
    if install:
        return Finding("fail", what, result, f"install {package}")
    if env is None or isinstance(error, _NodeLost):
        advice = "check that the machine runs, that it has free memory, and that no firewall blocks Ray's ports"
    else:
        advice = "the env works on this machine, so compare the files and packages of both machines"
    return Finding("fail", what, text, advice)


def _judge(here: Fingerprint, nodes: Sequence[NodeReport], env: str | None) -> list[Finding]:
    """Return the findings about all nodes: failures, other results than those of this machine, and busy nodes."""
    answered = [report for report in nodes if report.description is not None]
    count = f"{len(answered)} of {len(nodes)} nodes" if len(answered) < len(nodes) else _count(len(nodes))
    findings = [] if not answered else [Finding("pass", "nodes", f"{count} answered")]
    findings += [report.failure for report in nodes if report.failure is not None]
    compared = [report for report in nodes if report.failure is None and report.fingerprint is not None]
    different = [finding for report in compared if (finding := _compare(here, report)) is not None]
    findings += different
    if compared and not different:
        computed = "a gradient" if env is None else f"a gradient and a rollout of {env}"
        findings.append(Finding("pass", _SAME_RESULTS, f"{computed}, on {_count(len(compared))}, as on this machine"))
    for report in answered:
        node = report.node
        if node.cores >= 1 > node.free_cores:
            busy = f"none of its {node.cores:g} cores is free"
            advice = "other runs have reserved them; workers start there all the same, and share cores"
            findings.append(Finding("warn", f"node {node.address}", busy, advice))
    return findings


def _count(n: int) -> str:
    return "1 node" if n == 1 else f"{n} nodes"


def _compare(here: Fingerprint, report: NodeReport) -> Finding | None:
    """Return a finding about a node that computes other results than this machine; None if it does not."""
    assert report.fingerprint is not None
    found = differences(here, report.fingerprint)
    if not found:
        return None
    advice = (
        "training refuses this node: install the same versions, use machines with the same processor, or allow it with "
        "--allow-mixed-numerics"
    )
    return Finding(
        "fail",
        f"{_SAME_RESULTS} on node {report.node.address}",
        f"this machine and the node differ: {'; '.join(found)}",
        advice,
    )
