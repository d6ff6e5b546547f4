"""The supervisor of env groups as a pure state machine: a cluster in memory, no processes and no real time."""

import heapq
import math
import time
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.core.errors import CorralError, DeadlinePassed, EnvFault, EnvLocation, UsageError, WorkerDied
from corral.core.types import FaultCounts, NodeUse
from corral.processes.recovery_config import RecoveryConfig
from corral.processes.worker_bootstrap import pickle_error
from corral.rollout.group_host import HostReply
from corral.rollout.group_supervisor import GroupSupervisor
from corral.rollout.host_cluster import HostLost, Node, NodeRefused
from corral.rollout.host_places import Request

INF = math.inf
RESERVATION_SECONDS = 0.5  # after a host was started or ended, until the cluster counts its core
LOOK_SECONDS = 2.0  # between two looks of the cluster at its nodes
SECONDS = dict.fromkeys(["connect", "fingerprint", "restore", "close"], 0.1) | {"open": 1.0, "collect": 2.0}
PREPARATION = [("open", ()), ("connect", ()), ("fingerprint", ())]
FAULT = EnvFault("step() raised ValueError: x", EnvLocation(0, 2, 5, 3, "1"))


@dataclass(eq=False)
class FakeHost:
    """A host in memory. It fails the test if its calls come in an impossible order."""

    number: int  # of the hosts of the run, from 0
    group: int
    node: str
    has_core: bool
    started_at: float
    free_at: float  # when it will have executed its calls
    seconds: dict[str, float] = field(default_factory=SECONDS.copy)
    heartbeat_seconds: float = 0.01
    errors: dict[str, Exception] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    lost: tuple[float, bool] = (INF, False)  # when, and whether with its node
    silent: tuple[float, float] = (INF, INF)  # from when and until when it answers nothing
    ended_at: float = INF
    methods: list[str] = field(default_factory=list)
    position: int | None = None  # rollouts that its envs have made; None until it is connected

    def execute(self, method, args):
        """Return the reply to a call."""
        self.methods.append(method)
        if not self.errors.keys().isdisjoint(self.methods):  # after an error, all other calls fail too
            return HostReply(error=pickle_error(self.errors.get(method, WorkerDied("an earlier call failed"))))
        if method in ("open", "connect"):
            assert self.methods in (["open"], ["open", "connect"])
            self.position = 0 if method == "connect" else None
        elif method != "close":
            assert self.position is not None
        if method == "restore":
            (self.position,) = args
        if method != "collect":
            return HostReply(method)
        assert args == (self.position,), "the envs are not where the rollout begins"
        self.position += 1
        return HostReply((self.group, self.position - 1), self.warnings)


@dataclass(eq=False)
class FakeCall:
    host: FakeHost
    called_at: float
    answered_at: float
    reply: HostReply

    def due(self):
        """Return when the outcome is known, and the outcome."""
        (silent_from, silent_until), (lost_at, with_node) = self.host.silent, self.host.lost
        answered_at = silent_until if silent_from <= self.answered_at < silent_until else self.answered_at
        lost_at = max(self.called_at, lost_at)
        return (answered_at, self.reply) if answered_at < lost_at else (lost_at, HostLost("was lost", with_node))


class FakeCluster:
    """A cluster in memory: nodes with so many cores. Waiting for replies advances its clock."""

    own_node = "a"

    def __init__(self, **cores):
        self.now, self.end = 100.0, INF
        self.cores, self.leaving, self.dead = dict(cores), set(), set()
        self.used_by_others = dict.fromkeys(cores, 0)
        self.hosts: list[FakeHost] = []
        self.on_start = lambda host: None
        self._events = []  # a heap of (time, number, function, arguments)
        self._seen, self._seen_at = [], -INF

    def alive(self, group=None):
        return [host for host in self.hosts if host.ended_at == INF and group in (None, host.group)]

    def at(self, seconds, function, *args):
        """Call a function when the clock has advanced by so many seconds."""
        heapq.heappush(self._events, (self.now + seconds, id(args), function, args))

    def advance(self, seconds):
        end = self.now + seconds
        while self._events and self._events[0][0] <= end:
            self.now, _, function, args = heapq.heappop(self._events)
            function(*args)
        self.now = end

    def change(self, leaving="", **cores):
        """Let nodes join or leave, and let the cluster notice."""
        self.cores |= cores
        self.leaving |= set(leaving)
        self.advance(LOOK_SECONDS)

    def lose(self, host, with_node=False):
        host.lost = min((self.now, with_node), host.lost)

    def lose_node(self, node):
        """Lose all hosts of a node, and all that are started there as long as it is listed."""
        self.dead.add(node)
        for host in self.alive():
            if host.node == node:
                self.lose(host, with_node=True)

    def silence(self, host, seconds=INF):
        host.silent = self.now, self.now + seconds

    def nodes(self, refresh=False):
        if refresh or self.now >= self._seen_at + LOOK_SECONDS:
            self._seen_at, before = self.now, self.now - RESERVATION_SECONDS
            reserved = [h.node for h in self.hosts if h.has_core and h.started_at <= before < h.ended_at]
            self._seen = [
                Node(f"id of {name}", name, cores, cores - used - reserved.count(name), name in self.leaving)
                for name, cores in self.cores.items()
                for used in [self.used_by_others.get(name, 0)]
            ]
        return list(self._seen)

    def start_host(self, node, reserve_core, pickled_spec):
        host = FakeHost(len(self.hosts), pickled_spec[0] // 2, node.address, reserve_core, self.now, self.now)
        self.hosts.append(host)
        reserved = sum(other.has_core for other in self.alive() if other.node == host.node)
        assert reserved <= node.cores, "more cores are reserved than the node has"
        if host.node in self.dead:
            self.lose(host, with_node=True)
        self.on_start(host)
        return host

    def call(self, host, method, *args):
        assert host.ended_at == INF, "a host was called after its end"
        if method == "heartbeat":
            return FakeCall(host, self.now, self.now + host.heartbeat_seconds, HostReply())
        host.free_at = max(self.now, host.free_at) + host.seconds[method]
        return FakeCall(host, self.now, host.free_at, host.execute(method, args))

    def replies(self, calls, seconds):
        times = [self.now + seconds, *(call.due()[0] for call in calls), *(event[0] for event in self._events)]
        self.advance(max(0.0, min(times) - self.now))
        assert self.now < self.end, "the rollout does not end"
        return [(call, call.due()[1]) for call in calls if call.due()[0] <= self.now + 1e-9]

    def kill(self, host):
        assert host.ended_at == INF, "a host was ended twice"
        host.ended_at = self.now


class Run:
    """A run with two envs in each group. Its requests are those of ``rollout/source_ray``; it checks all rollouts."""

    def __init__(self, n_groups, cluster, **recovery):
        self.cluster, self.warnings, self.rollouts, self.refused = cluster, [], 0, set()
        settings = {"recover": True, "env_known_to_work": True, "warn": self.warnings.append, **recovery}
        self.supervisor = GroupSupervisor(
            cluster, [range(2 * i, 2 * i + 2) for i in range(n_groups)], bytes, RecoveryConfig(**settings),
            node_timeout=3.0, clock=lambda: cluster.now, check=self.check,
        )  # fmt: skip
        self.request("open", [])
        self.request("connect", PREPARATION[:1])

    def request(self, method, preparation):
        self.begin(Request(method, lambda host: (), lambda host: preparation))
        assert self.supervisor.gather() == [method] * len(self.supervisor.groups)

    def check(self, host, method, value):
        if method == "collect":  # ``gather`` is checked for the right rollout
            assert value in [(host.group, number) for number in range(self.rollouts + 1)]
        else:
            assert value == method
        if method == "fingerprint" and host.node.address in self.refused:
            raise NodeRefused(f"node {host.node.address} differs")

    def begin(self, request=None):
        start = (self.rollouts,)
        self.cluster.end = self.cluster.now + 500
        collect = Request("collect", lambda host: start, lambda host: PREPARATION, lambda host: start, is_rollout=True)
        self.supervisor.begin(request or collect)

    def collect(self):
        answers = self.supervisor.gather()
        assert answers == [(group, self.rollouts) for group in range(len(self.supervisor.groups))]
        self.rollouts += 1

    def rollout(self, times=1):
        for _ in range(times):
            self.begin()
            self.collect()

    def faults_on(self, node):
        use = self.supervisor.node_use().get(node, NodeUse())
        return use.lost, use.silent, use.slow


def open_run(n_groups=3, recovery=None, **cores):
    """Return a run whose hosts are connected, and its cluster. Of 3 groups, the second one is on node b."""
    cluster = FakeCluster(**(cores or {"a": 2, "b": 2}))
    return Run(n_groups, cluster, **(recovery or {})), cluster


# ---- answers and errors --------------------------------------------------------------------------------------


def test_the_answers_come_in_the_order_of_the_groups():
    run, cluster = open_run(4)
    for host in cluster.hosts:
        host.seconds["collect"] = 4.0 - host.number
    cluster.hosts[1].warnings = ["env 2 was restarted"]
    for _ in range(3):
        run.rollout()
        cluster.advance(10)  # no host is silent because it was not asked for so long
    assert len(cluster.hosts) == 4 and run.warnings == ["node b: env 2 was restarted"] * 3
    assert run.supervisor.node_use() == dict.fromkeys("ab", NodeUse(groups=2, rollouts=6))


def test_a_request_that_is_not_complete_at_its_deadline_can_be_gathered_later():
    run, _ = open_run()
    run.begin()
    with pytest.raises(DeadlinePassed):
        run.supervisor.gather(time.perf_counter() - 1)
    run.collect()


@pytest.mark.parametrize("error", [FAULT, WorkerDied("died"), UsageError("no rom"), ZeroDivisionError("x")], ids=type)
@pytest.mark.parametrize("cores", [{"a": 3}, {"a": 2, "b": 1}], ids=["one node", "two nodes"])
def test_an_error_that_answers_the_request_is_raised_with_its_type_and_its_node(error, cores):
    run, cluster = open_run(3, **cores)
    host = cluster.hosts[2]
    host.errors["collect"] = error
    has_node = len(cores) == 2 and isinstance(error, UsageError | EnvFault)
    with pytest.raises(type(error)) as caught:
        run.rollout()
    assert str(caught.value) == (f"node {host.node}: " if has_node else "") + str(error) and len(cluster.hosts) == 3


# ---- hosts that are lost -------------------------------------------------------------------------------------


def test_a_lost_host_is_replaced_and_its_group_answers_the_same():
    run, cluster = open_run()
    run.rollout()
    cluster.at(0.5, cluster.lose, cluster.hosts[1])
    run.rollout()
    assert cluster.hosts[3].methods == ["open", "connect", "fingerprint", "restore", "collect"]
    assert run.warnings == ["the host of envs 2 to 3 on node b was lost; restarted, 1 restart so far"]
    assert run.supervisor.take_fault_counts() == FaultCounts(restarts=1)
    run.rollout(times=2)
    assert [host.group for host in cluster.hosts] == [0, 1, 2, 1] and len(cluster.alive()) == 3
    assert run.supervisor.take_fault_counts() == FaultCounts() and run.faults_on("b") == (1, 0, 0)


@pytest.mark.parametrize("method", ["open", "connect", "fingerprint", "restore"])
@pytest.mark.parametrize("fault", ["lost", "error"])
def test_a_replacement_that_cannot_be_prepared_is_replaced_too(method, fault):
    def disturb(host):
        if host.number == 3 and fault == "error":
            host.errors[method] = FAULT
        elif host.number == 3:
            delays = {"open": 0.5, "connect": 1.05, "fingerprint": 1.15, "restore": 1.25}
            cluster.at(delays[method], cluster.lose, host)

    run, cluster = open_run()
    cluster.on_start = disturb
    cluster.lose(cluster.hosts[1])
    run.rollout(times=2)
    assert [host.group for host in cluster.hosts] == [0, 1, 2, 1, 1] and len(cluster.alive()) == 3
    assert len(run.warnings) == 2 and ("ValueError: x" in run.warnings[1]) == (fault == "error")


def test_hosts_that_are_lost_between_rollouts_are_replaced_as_often_as_allowed():
    run, cluster = open_run(recovery={"max_restarts": 5})
    for lost in range(5):
        run.rollout()
        cluster.lose(cluster.alive()[lost % 3])
    run.rollout()
    assert run.supervisor.take_fault_counts() == FaultCounts(restarts=5)
    cluster.lose(cluster.alive()[0])
    with pytest.raises(WorkerDied, match=r"the limit of 5 restarts \(--max-restarts\) is reached"):
        run.rollout()


@pytest.mark.parametrize("seconds", [0.5, 1.05], ids=["open", "connect"])
def test_hosts_that_are_lost_before_the_first_rollout_are_replaced(seconds):
    cluster = FakeCluster(a=2, b=2)
    cluster.on_start = lambda host: host.number == 1 and cluster.at(seconds, cluster.lose, host)
    Run(3, cluster, env_known_to_work=False).rollout(times=2)
    assert [host.group for host in cluster.hosts] == [0, 1, 2, 1]


def test_a_node_that_was_lost_is_avoided_for_a_minute_though_it_is_still_listed():
    run, cluster = open_run(4, a=2, b=2, c=1)
    cluster.lose_node("a")
    run.rollout(times=2)
    n_lost, *_ = run.faults_on("a")
    assert n_lost and len(cluster.hosts) == 4 + n_lost and not any(host.node == "a" for host in cluster.hosts[4:])
    cluster.dead.clear()
    cluster.advance(60)
    cluster.lose_node("b")
    run.rollout(times=2)
    assert {host.node for host in cluster.alive()} == {"a", "c"}


@pytest.mark.parametrize("fault, text", [("lose", "was lost$"), ("silence", "has given no sign of life for 3 s")])
def test_without_recovery_a_lost_or_silent_host_ends_the_run(fault, text):
    run, cluster = open_run(recovery={"recover": False})
    getattr(cluster, fault)(cluster.hosts[0])
    with pytest.raises(WorkerDied, match=f"^the host of envs 0 to 1 on node a {text}"):
        run.rollout()
    assert len(cluster.hosts) == 3


def test_the_run_ends_if_no_node_is_alive():
    run, cluster = open_run()
    cluster.cores.clear()
    cluster.lose_node("a")
    with pytest.raises(WorkerDied, match="no node of the cluster"):
        run.rollout()


@pytest.mark.parametrize("rollouts", [0, 1])
def test_the_run_ends_with_the_error_of_replacements_that_cannot_make_their_envs(rollouts):
    run, cluster = open_run(1, {"env_known_to_work": False})
    run.rollout(rollouts)
    cluster.on_start = lambda host: host.errors.update(open=FAULT)
    cluster.lose(cluster.hosts[0])
    with pytest.raises(EnvFault, match="ValueError: x") as caught:
        run.rollout()
    assert caught.value.exit_code == (1 if rollouts else 2)
    assert 3 <= len(cluster.hosts) <= 8 if rollouts else len(cluster.hosts) == 2


def test_a_host_that_is_lost_after_it_answered_is_replaced_in_the_next_rollout():
    run, cluster = open_run()
    cluster.hosts[0].heartbeat_seconds = 3.0  # it is asked before the answer, and its end is noticed after it
    cluster.hosts[1].seconds["collect"] = 4.0
    cluster.at(2.5, cluster.lose, cluster.hosts[0])
    run.rollout()
    assert len(cluster.hosts) == 3 and len(cluster.alive()) == 2
    run.rollout(times=2)
    assert [host.group for host in cluster.hosts] == [0, 1, 2, 0]


@pytest.mark.parametrize("nodes, n, text", [("a", 3, "3 times in a row without"), ("abcdefghi", 7, "6 hosts of these")])
def test_the_run_ends_if_hosts_of_a_group_are_lost_on_the_only_node_or_on_one_after_another(nodes, n, text):
    run, cluster = open_run(1, **dict.fromkeys(nodes, 1))
    cluster.on_start = lambda host: cluster.lose_node(host.node)
    cluster.lose_node("a")
    with pytest.raises(WorkerDied, match=text):
        run.rollout()
    assert len(cluster.hosts) == n and len({host.node for host in cluster.hosts}) == min(n, len(nodes))


def test_a_node_on_which_every_host_is_lost_is_given_up_for_one_that_works():
    run, cluster = open_run(1)
    cluster.on_start = lambda host: host.node == "a" and cluster.at(0.5, cluster.lose, host)
    cluster.lose(cluster.hosts[0])
    run.rollout()
    assert [host.node for host in cluster.alive()] == ["b"]


@pytest.mark.parametrize("stuck, slowest, limit", [(0, 40.0, 50), (1, 0.5, 10), (1, 4.0, 20)])
def test_a_host_that_does_not_start_in_time_is_replaced(stuck, slowest, limit):
    """The time is ``start_timeout`` for the first host, then 5 times the slowest start, and at least 10 seconds."""
    cluster = FakeCluster(a=2, b=2)
    cluster.on_start = lambda host: host.seconds.update(open=INF if host.number == stuck else slowest)
    run = Run(1, cluster, start_timeout=50.0)
    if stuck == 1:
        cluster.lose(cluster.hosts[0])
    run.rollout(times=2)
    host = cluster.hosts[stuck]
    assert limit < host.ended_at - host.started_at < limit + 1 and cluster.alive()[0].node != host.node
    assert f"did not start in {limit} s" in run.warnings[-1]


# ---- hosts that are silent or slow ---------------------------------------------------------------------------


@pytest.mark.parametrize("fault, seconds", [("silent", INF), ("silent", 5), ("slow", 60), ("slow", 9)])
def test_a_group_is_collected_elsewhere_too_if_its_host_is_silent_or_slow_and_the_first_answer_counts(fault, seconds):
    run, cluster = open_run()
    suspected = cluster.hosts[0]
    if fault == "silent":
        cluster.silence(suspected, seconds)
    else:
        suspected.seconds["collect"] = seconds
    run.rollout()
    assert cluster.now < 101.1 + (8 if fault == "silent" else 12)
    other = cluster.hosts[3]
    assert other.node == "b" and cluster.alive(0) == ([other] if seconds >= 60 else [suspected, other])
    assert run.faults_on("a") == (0, fault == "silent", fault == "slow") and run.faults_on("b") == (0, 0, 0)
    text = "has given no sign of life for 3 s (--node-timeout)" if fault == "silent" else "takes longer than 8.0 s"
    assert len(run.warnings) == 1 and f"envs 0 to 1 on node a {text}" in run.warnings[0]
    suspected.seconds["collect"] = 2.0
    run.rollout(times=3)
    assert cluster.alive(0) == [other]  # which the next rollout does not wait for the slow one again
    assert len(cluster.hosts) == 4 and run.supervisor.take_fault_counts() == FaultCounts()  # nothing was lost


@pytest.mark.parametrize("lost", [0, 3], ids=["the silent host", "the other host"])
def test_one_of_two_hosts_of_a_group_may_be_lost(lost):
    run, cluster = open_run()
    cluster.silence(cluster.hosts[0])
    cluster.at(5.0, lambda: cluster.lose(cluster.hosts[lost]))
    run.rollout(times=2)
    assert [host.group for host in cluster.hosts] == [0, 1, 2, 0] + [0] * (lost == 3) and len(cluster.alive()) == 3
    assert run.supervisor.take_fault_counts() == FaultCounts(restarts=1)


@pytest.mark.parametrize("last", ["answers", "is lost"])
def test_a_group_whose_hosts_are_silent_one_after_another_is_collected(last):
    def disturb(host):
        if host.number == 3:
            cluster.at(1.5, cluster.silence, host)
        elif host.number == 4 and last == "is lost":
            cluster.at(0.5, cluster.lose, host)

    run, cluster = open_run(3, a=2, b=2, c=1)
    cluster.on_start = disturb
    cluster.silence(cluster.hosts[0])
    run.rollout(times=2)
    assert {host.node for host in cluster.hosts if host.group == 0} == {"a", "b", "c"} and len(cluster.alive()) == 3


def test_without_recovery_a_slow_host_is_awaited():
    run, cluster = open_run(recovery={"recover": False})
    cluster.hosts[0].seconds["collect"] = 60.0
    run.rollout()


def test_hosts_are_not_silent_because_the_trainer_was_busy():
    run, cluster = open_run()
    for host in cluster.hosts:
        host.seconds["collect"] = 35.0
    run.begin()
    cluster.advance(30)  # with ``overlap``, the trainer learns while the hosts collect
    run.collect()
    assert len(cluster.hosts) == 3 and not run.warnings


@pytest.mark.parametrize("seconds", [[60], [60, 60], [1, 60, 90], [1, 4.8], [1, 2.5, 9], [1, 1, 4.8, 4.9]], ids=str)
def test_no_host_is_slow_unless_half_of_the_groups_have_answered_in_less_than_a_third_of_its_time(seconds):
    run, cluster = open_run(len(seconds))
    for host, needed in zip(cluster.hosts, seconds, strict=True):
        host.seconds["collect"] = needed
    run.rollout(times=2)
    assert len(cluster.hosts) == len(seconds) and not run.warnings


def test_only_one_more_host_is_started_for_a_group_that_is_slow_everywhere():
    run, cluster = open_run(3, a=2, b=2, c=2)
    cluster.hosts[0].seconds["collect"] = 60.0
    cluster.on_start = lambda host: host.seconds.update(collect=60.0)
    run.rollout()
    assert [host.group for host in cluster.hosts] == [0, 1, 2, 0]


def test_the_time_in_which_the_trainer_was_busy_is_not_part_of_a_start():
    run, cluster = open_run(2, a=1)
    cluster.on_start = lambda host: host.seconds.update(open=3.0)
    cluster.change(b=1)
    run.rollout()  # a group begins to move
    cluster.advance(100)
    run.rollout()
    cluster.hosts[0].seconds["collect"] = 100.0
    run.rollout()
    assert run.faults_on("a") == (0, 0, 1)


def test_a_node_on_which_a_host_was_slow_is_better_than_one_that_was_lost():
    run, cluster = open_run()
    cluster.hosts[1].seconds["collect"] = 60.0  # on node b
    run.rollout()
    cluster.lose_node("a")
    run.rollout()
    assert {host.node for host in cluster.alive()} == {"b"}


# ---- places --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pause", [0.0, 10.0])
def test_no_more_cores_are_reserved_on_a_node_than_it_has(pause):
    run, cluster = open_run(6, a=2, b=1)  # ``start_host`` checks it
    for round_ in range(8):
        cluster.advance(pause)
        cluster.lose(cluster.alive(round_ % 6)[0])
        run.rollout()
        assert sum(host.has_core for host in cluster.alive()) == 3


def test_hosts_get_free_cores_first():
    cluster = FakeCluster(a=4, b=1, c=2)
    cluster.used_by_others["a"] = 4
    Run(4, cluster)
    assert {(host.node, host.has_core) for host in cluster.hosts} == {("a", False), ("b", True), ("c", True)}


def test_a_group_without_a_core_moves_to_a_node_that_joins():
    run, cluster = open_run(2, a=1)
    cluster.change(b=1)
    run.rollout()
    _, old, new = cluster.hosts
    assert (old.has_core, new.has_core, new.node, len(new.methods)) == (False, True, "b", len(PREPARATION))
    assert old.methods[-1] == "collect" and cluster.alive(1) == [old, new]  # the old one collected, the new one waits
    run.rollout(times=3)
    assert new.methods[len(PREPARATION) :] == ["restore", "collect", "collect", "collect"]
    assert cluster.alive(1) == [new] and len(cluster.hosts) == 3
    assert run.supervisor.node_use() == {"a": NodeUse(groups=1, rollouts=5, moved=1), "b": NodeUse(1, 3)}
    assert run.supervisor.take_fault_counts() == FaultCounts() and not run.warnings


@pytest.mark.parametrize("before, leaving, joining, after", [
    ({"a": 2}, "a", {"b": 2}, "bb"), ({"a": 2}, "a", {"b": 1}, "bb"), ({"a": 2}, "a", {"b": 0}, "bb"),
    ({"a": 1, "b": 1}, "ab", {}, "aabb"), ({"a": 1, "b": 1}, "", {}, "aabb"), ({"a": 2, "b": 1}, "a", {"c": 1}, "bbc"),
])  # fmt: skip
def test_groups_move_away_from_nodes_that_are_leaving_unless_there_is_no_better_place(before, leaving, joining, after):
    run, cluster = open_run(len(after), **before)
    cluster.change(leaving, **joining)
    if leaving == "a":
        cluster.lose(cluster.hosts[0])
    run.rollout(times=5)
    assert leaving != "a" or not any(host.node == "a" for host in cluster.hosts[len(after) :])
    assert "".join(sorted(host.node for host in cluster.alive())) == after
    assert leaving != "ab" or len(cluster.hosts) == len(after)


@pytest.mark.parametrize("fault", ["error", "never starts", "lost", "silent"])
def test_a_move_that_fails_costs_only_a_warning_and_is_tried_again_after_a_minute(fault):
    def disturb(host):
        if fault == "error":
            host.errors["open"] = FAULT
        elif fault == "never starts":
            host.seconds["open"] = INF
        else:
            cluster.at(1.05, cluster.lose if fault == "lost" else cluster.silence, host)

    run, cluster = open_run(1, a=1)
    cluster.on_start = disturb
    cluster.change(leaving="a", b=1)
    run.rollout(times=10)
    assert len(cluster.hosts) == 2 and len(cluster.alive()) == 1 and len(run.warnings) == 1
    assert run.supervisor.take_fault_counts() == FaultCounts()
    cluster.on_start = lambda host: None
    cluster.advance(60)
    run.rollout(times=3)
    assert [host.node for host in cluster.alive()] == ["b"]


@pytest.mark.parametrize("reason", ["move", "loss"])
def test_a_node_that_is_refused_is_never_used_again(reason):
    run, cluster = open_run(1 if reason == "loss" else 2, a=1)
    run.refused.add("b")
    cluster.change(b=2)
    for _ in range(3):
        if reason == "loss":
            cluster.lose(cluster.alive(0)[0], with_node=True)
        run.rollout(times=2)
        cluster.advance(60)
    assert [host.node for host in cluster.hosts].count("b") == 1 and {host.node for host in cluster.alive()} == {"a"}


def test_groups_that_cannot_be_restored_move_only_from_a_node_that_ends():
    run, cluster = open_run(1, a=1)
    run.supervisor._can_restore = lambda envs: False
    cluster.change(leaving="a", b=1)
    run.rollout(times=3)
    assert [host.node for host in cluster.hosts] == ["a", "b"]
    run, cluster = open_run(2, a=1)
    run.supervisor._can_restore = lambda envs: False
    cluster.change(b=1)
    run.rollout(times=3)
    assert [host.node for host in cluster.hosts] == ["a", "a"]


def test_a_slow_group_that_cannot_be_restored_is_awaited():
    run, cluster = open_run()
    run.supervisor._can_restore = lambda envs: False
    cluster.hosts[0].seconds["collect"] = 60.0
    run.rollout()
    assert len(cluster.hosts) == 3


def test_a_node_that_joins_with_other_spaces_or_a_broken_package_does_not_end_the_run():
    run, cluster = open_run(2, a=1)
    checked = run.check

    def check(host, method, value):
        if host.node.address == "b":
            raise UsageError("the spaces of env 2 differ")
        checked(host, method, value)

    run.supervisor._check = check
    cluster.change(b=1)
    run.rollout(times=3)
    assert "could not be prepared: node b: the spaces of env 2 differ" in run.warnings[0]
    run, cluster = open_run(2, a=1)
    cluster.on_start = lambda host: host.errors.update(connect=OSError("no space left on device"))
    cluster.change(b=1)
    run.rollout(times=3)
    assert "OSError: no space left on device" in run.warnings[0]


# ---- the end, and all faults together ------------------------------------------------------------------------


def test_close_closes_the_envs_and_ends_all_hosts_also_those_of_a_move():
    run, cluster = open_run(2, a=1)
    cluster.change(b=1)
    run.rollout()
    run.supervisor.close(seconds=5.0)
    assert [host.methods[-1] for host in cluster.hosts] == ["close"] * 3
    assert not cluster.alive() and not run.supervisor.hosts()


def test_close_after_an_error_does_not_wait_for_hosts_that_are_silent_or_have_not_started():
    run, cluster = open_run()
    cluster.silence(cluster.hosts[0])
    cluster.on_start = lambda host: host.seconds.update(open=INF)
    cluster.hosts[1].seconds["collect"] = 5.0
    cluster.hosts[1].errors["collect"] = FAULT
    with pytest.raises(EnvFault):
        run.rollout()
    run.supervisor.close(seconds=60.0)
    assert [host.methods[-1] for host in cluster.hosts] == ["collect", "close", "close", "collect"]
    assert not cluster.alive()


FAULTS = {
    "lost": lambda cluster, host, choice: cluster.lose(host),
    "silent": lambda cluster, host, choice: cluster.silence(host),
    "silent for a while": lambda cluster, host, choice: cluster.silence(host, choice),
    "slow": lambda cluster, host, choice: host.seconds.update(collect=10.0 * choice),
    "is leaving": lambda cluster, host, choice: cluster.leaving.add(host.node),
    "node is lost": lambda cluster, host, choice: cluster.lose_node(host.node),
    "node is no longer listed": lambda cluster, host, choice: cluster.cores.pop(host.node, None),
    "node joins": lambda cluster, host, choice: cluster.cores.update({f"n{cluster.now}": choice % 3}),
}


@given(
    st.lists(st.tuples(st.integers(0, 4), st.floats(0, 12), st.sampled_from([*FAULTS]), st.integers(0, 9))),
    st.sampled_from([0, 20]),
)
def test_every_group_answers_every_rollout_once_whatever_happens_to_all_nodes_but_one(schedule, busy):
    def disturb(fault, choice):
        hosts = [host for host in cluster.alive() if host.node != "a"]  # node a always works
        if hosts:
            FAULTS[fault](cluster, hosts[choice % len(hosts)], choice)

    run, cluster = open_run(5, a=1, b=2, c=1)
    try:
        for rollout in range(6):
            for when, delay, fault, choice in schedule:
                if when == rollout:
                    cluster.at(delay, disturb, fault, choice)
            cluster.advance(LOOK_SECONDS)
            run.begin()
            cluster.advance(busy)  # the trainer learns meanwhile
            run.collect()
            assert all(1 <= len(cluster.alive(group)) <= 2 for group in range(5))  # owners and successors
    except CorralError:  # the run may give up only after three losses of one group
        assert max([host.group for host in cluster.hosts if host.lost[0] < INF].count(i) for i in range(5)) >= 3
    assert {host.handle for host in run.supervisor.hosts()} == set(cluster.alive())
    run.supervisor.close()
    assert not cluster.alive()
