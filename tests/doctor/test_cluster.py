"""``corral doctor --cluster``: a table of the nodes of a Ray cluster, and what is wrong with them."""

import dataclasses
import platform
import sys
import time
from pathlib import Path

import psutil
import pytest

from corral.cli.main import main
from corral.core.errors import UsageError
from corral.doctor import cluster as doctor
from corral.doctor.cluster import examine_cluster
from corral.doctor.node_probe import NodeProbe
from corral.processes.worker_bootstrap import pickle_error
from corral.rollout.group_host import HostReply
from corral.rollout.host_cluster import HostLost, Node
from corral.rollout.source import ClusterConfig

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")


@pytest.fixture
def local_ray(module_ray, monkeypatch):
    """Let the doctor use the Ray of this file; check afterwards that it has left no probe."""
    monkeypatch.setenv("COLUMNS", "80")
    yield
    end = time.monotonic() + 5
    while probes := [p for p in psutil.Process().children(recursive=True) if "NodeProbe" in p.name()]:
        assert time.monotonic() < end, probes
        time.sleep(0.05)


@pytest.fixture(scope="module")
def module_ray():
    """Start one Ray for all tests of this file; the doctor connects to it instead of starting its own."""
    from corral.rollout.ray_cluster import RayCluster

    cluster = RayCluster(ClusterConfig(), cores=2)
    yield
    cluster.close()


def test_the_nodes_of_a_cluster_are_in_a_table_and_pass(local_ray, capsys):
    assert main(["doctor", "CartPole-v1", "--cluster", "--ray-address", "local"]) == 0
    out = capsys.readouterr().out
    (row,) = [line for line in out.splitlines() if "(here)" in line]
    for unit in ("2/2", "ms", "MB/s"):
        assert unit in row
    assert "all nodes: python" in out and "differs" not in out
    assert "pass same results: a gradient and a rollout of CartPole-v1, on 1 node" in out and "2 pass" in out


def test_a_package_that_is_missing_on_a_node_is_named_with_the_node(local_ray, capsys):
    Path("only_here.py").write_text("from gymnasium.envs.classic_control import CartPoleEnv as make\n")
    assert main(["doctor", "only_here:make", "--cluster"]) == 2
    out = capsys.readouterr().out
    assert "fail only_here:make on node" in out and "the module 'only_here' is missing there" in out
    assert "--ray-working-dir" in out and "1 pass, 1 fail" in out


def test_an_env_that_fails_on_this_machine_is_not_tried_on_the_nodes(local_ray, capsys):
    Path("bad.py").write_text("def make():\n    raise OSError('no rom found')\n")
    assert main(["doctor", "bad.py:make", "--cluster"]) == 2
    out = capsys.readouterr().out
    assert "fail bad.py:make on this machine" in out and "no rom found" in out and "`corral doctor bad.py:make`" in out
    assert "pass same results: a gradient, on 1 node" in out


class FakeCluster:
    """Nodes in this process. ``outcomes`` has what a node answers to a method instead of what its probe would."""

    own_node = "a"

    def __init__(self, **outcomes):
        self.outcomes, self.calls, self.killed = outcomes, [], []

    def nodes(self, refresh):
        return [Node(name, f"10.0.0.{i}", cores=2.0, free_cores=float(i)) for i, name in enumerate("abc")]

    def start_actor(self, node, actor_class, reserve_core):
        return node.id, actor_class()

    def call(self, probe, method, *args):
        name, actor = probe
        change = self.outcomes.get(name, {}).get(method, lambda reply: reply)
        self.calls.append(change(getattr(actor, method)(*args)))
        return len(self.calls) - 1

    def replies(self, calls, seconds):
        answered = [(call, self.calls[call]) for call in calls if self.calls[call] is not None]
        if not answered:
            time.sleep(seconds)
        return answered

    def kill(self, probe):
        self.killed.append(probe[0])


def silent(reply):
    return None


def with_error(error):
    return lambda reply: HostReply(error=pickle_error(error))


def other_machine(reply):
    """Return the description of a machine with other numbers, versions and processor."""
    fingerprint = reply.value.fingerprint
    versions = [version for version in fingerprint.versions if not version.startswith("numpy")]
    other = dataclasses.replace(
        fingerprint, gradient="other", versions=(*versions, "numpy 1.26.4"), processor=f"{platform.machine()} (X86_V0)"
    )
    return HostReply(dataclasses.replace(reply.value, fingerprint=other))


def examine(**outcomes):
    """Return the findings about a fake cluster that failed or warned, by what they are about."""
    cluster = FakeCluster(**outcomes)
    report = examine_cluster(cluster, None)
    assert sorted(cluster.killed) == ["a", "b", "c"]
    return report, {finding.what: finding for finding in report.findings if finding.level != "pass"}


def test_a_silent_node_fails_after_a_while_and_the_others_are_examined(monkeypatch):
    monkeypatch.setattr(doctor, "_SILENT_SECONDS", 0.6)
    monkeypatch.setattr(doctor, "_HEARTBEAT_SECONDS", 0.2)
    started = time.monotonic()
    report, findings = examine(b={"describe": silent, "heartbeat": silent}, c={"echo": silent, "heartbeat": silent})
    assert time.monotonic() - started < 4
    assert findings.keys() == {"node 10.0.0.0", "node 10.0.0.1", "node 10.0.0.2"}
    assert findings["node 10.0.0.1"].result == findings["node 10.0.0.2"].result == "does not answer for 0.6 s"
    here, *others = report.nodes
    assert here.latency > 0 and here.bandwidth > 0 and not any(other.latency for other in others)


def test_a_node_that_needs_long_for_an_answer_is_not_silent(monkeypatch):
    monkeypatch.setattr(doctor, "_SILENT_SECONDS", 0.3)
    monkeypatch.setattr(doctor, "_HEARTBEAT_SECONDS", 0.05)
    cluster = FakeCluster(b={"describe": silent})
    (slow,) = [node for node in cluster.nodes(True) if node.id == "b"]
    report = doctor.NodeReport(slow, False, ("b", NodeProbe()))
    question = doctor._Question(cluster, report, "describe", ())
    end = time.monotonic() + 1
    while time.monotonic() < end:
        question.poll(0.02)
    assert not question.is_over and len(cluster.calls) > 5  # most of them are heartbeats


def test_a_node_that_ended_or_lacks_corral_fails_with_a_remedy():
    ended = lambda reply: HostLost("was lost with its node", node_is_lost=True)  # noqa: E731
    missing = UsageError("Corral is not installed there, or in another version; install the same as here")
    _, findings = examine(b={"describe": ended}, c={"describe": with_error(missing)})
    assert "was lost with its node" in findings["node 10.0.0.1"].result
    lacking = findings["node 10.0.0.2"]
    assert lacking.level == "fail" and lacking.result == "Corral is not installed there, or in another version"
    assert lacking.remedy == "install the same as here"


def test_a_node_that_computes_something_else_fails_and_the_table_says_how_it_differs(capsys):
    from rich.console import Console

    from corral.cli.cluster_table import print_nodes

    report, findings = examine(b={"describe": other_machine})
    finding = findings["same results on node 10.0.0.1"]
    assert finding.level == "fail" and "--allow-mixed-numerics" in finding.remedy
    assert "a gradient has other numbers" in finding.result and "1.26.4" in finding.result
    print_nodes(Console(width=80, soft_wrap=True), "10.0.0.0:6379", report)
    out = capsys.readouterr().out
    assert "3 nodes of the Ray cluster at 10.0.0.0:6379" in out and max(map(len, out.splitlines()[:8])) <= 80
    assert "this machine: python" in out and "10.0.0.1 differs: numpy 1.26.4; the processor lacks " in out
    assert "10.0.0.0 differs" not in out and "; the processor has X86_V0" in out


def test_a_node_without_free_cores_gives_a_warning():
    _, findings = examine()
    assert findings.keys() == {"node 10.0.0.0"} and findings["node 10.0.0.0"].level == "warn"
    assert findings["node 10.0.0.0"].result == "none of its 2 cores is free"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "which env?"),
        (["CartPole-v1", "--ray-address", "auto"], "--ray-address is for --cluster"),
        (["--cluster", "--steps", "10"], "--steps is for the checks of an env"),
        (["--cluster", "--n-envs", "8"], "--n-envs is for the checks of an env"),
        (["CartPole-v1", "--cluster", "--replay", "x.json"], "--replay is for the checks of an env"),
        (["--cluster", "--env-kwargs", "size=3"], "--env-kwargs needs an env"),
        (["--cluster", "--ray-address", "nowhere"], "should be local, auto or HOST:PORT"),
        (["NoSuchEnv-v9", "--cluster"], "unknown env"),
    ],
)
def test_flags_that_do_not_fit_are_refused(arguments, complaint, capsys):
    assert main(["doctor", *arguments]) == 2
    assert complaint in capsys.readouterr().err
