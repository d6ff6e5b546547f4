"""Decides on which node the envs of each group are hosted, and starts another host where one is lost, silent or slow.

The groups of a run are fixed, so a rollout never depends on who collected it. Each group has an *owner*: the host that
has its envs at the end of the last rollout. A request goes to all owners. While their answers are awaited, this may
happen to a host:

- It is *lost*: its process ended or its node cannot be reached. Another host of the group is started on a node that
  works. It gets the calls that bring it to the beginning of the request, and then the request.
- It is *silent*: it has not answered a heartbeat for ``node_timeout`` seconds. Or it is *slow*: it needs much longer
  than all other groups did. Another host is started for the group, too, and the first answer counts, for they are
  equal. The other host is ended.

Between rollouts, groups move from nodes that are leaving, and from hosts that share a core, to nodes with a free core.
The new host is prepared while the old one collects.

Nothing here knows how hosts are reached (see ``rollout/host_cluster``). All times come from ``clock``.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from corral.core.errors import CorralError, DeadlinePassed, WorkerDied
from corral.core.types import FaultCounts, NodeUse
from corral.processes.recovery_config import RecoveryConfig
from corral.processes.worker_bootstrap import unpickle_error
from corral.rollout.group_host import HostReply
from corral.rollout.host_cluster import Call, HostCluster, HostLost, Node, NodeRefused, error_on_node
from corral.rollout.host_places import Host, HostPlaces, Mark, Request
from corral.vec.supervisor import Stop, Supervisor, WorkerDeath

__all__ = ["GroupSupervisor"]

_POLL_SECONDS = 0.25
"""Hosts are checked this often while their answers are awaited."""
_HEARTBEAT_SECONDS = 1.0
"""A host that has said nothing for so long is asked for a sign of life."""
_MIN_START_SECONDS, _TIMES_SLOWEST_START = 10.0, 5.0
"""A host must have started in 5 times the slowest start so far, and at least 10 seconds."""
_TIMES_OTHERS, _MIN_LAG_SECONDS = 3.0, 1.0
"""A host is slow if it takes 3 times as long as the slowest other group, and a second more than a new host needs."""
_MAX_LOSSES = 6
"""The run stops if more hosts of one group are lost during one request."""


@dataclass(slots=True)
class _Hosts:
    """The hosts of one group."""

    owner: Host | None = None
    others: list[Host] = field(default_factory=list)
    """Hosts that were asked too, because the owner is silent or slow."""
    successor: Host | None = None
    """A host that is being prepared to become the owner."""

    def asked(self) -> list[Host]:
        """Return the hosts that may answer the request under way."""
        return [*([self.owner] if self.owner else []), *self.others]


class GroupSupervisor:
    """The hosts of all env groups.

    ``pickled_spec_of`` returns what a host of a group is made with. ``check(host, method, value)`` gets every value
    that a host returns; if it raises ``NodeRefused``, the node of this host is not used. ``can_restore(envs)`` says
    whether another host could continue the episodes of these envs: only then is a group moved without need.
    """

    def __init__(
        self,
        cluster: HostCluster,
        groups: Sequence[range],
        pickled_spec_of: Callable[[range], bytes],
        recovery: RecoveryConfig,
        node_timeout: float,
        clock: Callable[[], float] = time.monotonic,
        check: Callable[[Host, str, Any], object] = lambda host, method, value: None,
        can_restore: Callable[[range], bool] = lambda envs: True,
    ) -> None:
        self.groups = list(groups)
        self._node_use: dict[str, NodeUse] = {}  # by address
        self.restart_rules = Supervisor(recovery)
        self._cluster, self._recovery, self._node_timeout, self._clock = cluster, recovery, node_timeout, clock
        self._pickled_spec_of, self._check, self._can_restore = pickled_spec_of, check, can_restore
        self._hosts = [_Hosts() for _ in self.groups]
        self._places = HostPlaces(cluster, clock)
        self._calls: dict[Call, tuple[Host, str, int]] = {}  # with the number of the request; 0 for other calls
        self._request: Request | None = None
        self._n_requests = 0
        self._requested_at = self._checked_at = 0.0
        self._answers: dict[int, Any] = {}  # by group
        self._answered_after: list[float] = []  # seconds, in the order of the answers
        self._losses: Counter[int] = Counter()  # during the request, by group
        self._lost_on: defaultdict[int, set[str]] = defaultdict(set)  # nodes, likewise
        self._slowest_start = 0.0

    # ---- requests --------------------------------------------------------------------------------------------

    def begin(self, request: Request) -> None:
        """Send a request to the owner of every group; start owners where there are none."""
        self._n_requests += 1
        self._request, self._answers, self._answered_after = request, {}, []
        self._requested_at = self._clock()
        self._losses.clear()
        self._lost_on.clear()
        self._places.look()
        if request.is_rollout:
            self._use_successors()
            self._prepare_successors()
        for group, hosts in enumerate(self._hosts):
            if hosts.owner is None:
                hosts.owner = self._start(group)
            else:
                self._send_request(hosts.owner)

    def gather(self, deadline: float = math.inf) -> list[Any]:
        """Return the answer of every group to the request; raise ``DeadlinePassed`` at ``deadline`` (``perf_counter``).

        An error that a host reports is raised, unless the host was just started: then it is replaced.
        """
        self._checked_at = self._clock()
        while len(self._answers) < len(self.groups):
            if (left := deadline - time.perf_counter()) < 0:
                raise DeadlinePassed
            replies = self._cluster.replies(self._calls, min(left, _POLL_SECONDS))
            self._add_waiting_time()
            for call, outcome in replies:
                if call in self._calls:  # not of a host that was ended meanwhile
                    self._handle(call, outcome)
            self._check_hosts()
        self._request = None
        return [self._answers[group] for group in range(len(self.groups))]

    def _send_request(self, host: Host) -> None:
        assert self._request is not None
        host.asked_at = self._clock()
        self._call(host, self._request.method, self._request.args_of(host), self._n_requests)

    def _call(self, host: Host, method: str, args: tuple[Any, ...], number: int = 0) -> None:
        host.unanswered += 1
        self._calls[self._cluster.call(host.handle, method, *args)] = host, method, number

    def _handle(self, call: Call, outcome: HostReply | HostLost) -> None:
        """Deal with an answer, or with the loss of a host."""
        host, method, number = self._calls.pop(call)
        if isinstance(outcome, HostLost):
            self._replace(host, outcome)
            return
        now = self._clock()
        if not host.is_up:
            host.is_up, self._slowest_start = True, max(self._slowest_start, host.start_seconds)
        host.last_heard, host.silence = now, 0.0
        if method == "heartbeat":
            host.heartbeat = None
            return
        host.unanswered -= 1
        for warning in outcome.warnings:
            self._recovery.warn(self._with_node(host, warning))
        if outcome.error is not None:
            self._handle_error(host, number, unpickle_error(outcome.error))
            return
        try:
            self._check(host, method, outcome.value)
        except CorralError as error:
            if isinstance(error, NodeRefused):
                self._places.avoid(host.node, Mark.REFUSED)
            self._handle_error(host, number, error)
            return
        if number == self._n_requests and host.group not in self._answers:
            self._accept(host, outcome.value)

    def _handle_error(self, host: Host, number: int, error: BaseException) -> None:
        """Raise an error that is the answer to the request; replace a host that could not come that far."""
        error = error_on_node(error, self._with_node(host, ""), host.node.id == self._cluster.own_node)
        if number == self._n_requests and host.group not in self._answers:
            raise error
        if not isinstance(error, CorralError):
            error = WorkerDied(f"the {host} failed: {type(error).__name__}: {error}")
        self._replace(host, error)

    def _with_node(self, host: Host, text: str) -> str:
        """Return a message with the node's address, if there are several nodes."""
        return text if len(self._places.nodes) < 2 else f"node {host.node.address}: {text}"

    def _accept(self, host: Host, answer: Any) -> None:
        """Take the first answer of a group. The host that gave it is the owner from now on."""
        self._answers[host.group] = answer
        self._answered_after.append(self._clock() - self._requested_at)
        if self._request is not None and self._request.is_rollout:
            self._use_of(host).rollouts += 1
            self.restart_rules.env_known_to_work = True
        was_suspected = host.is_suspected
        host.asked_at, host.is_suspected = math.inf, False
        hosts = self._hosts[host.group]
        spare = None  # a suspected owner that was first is not waited for in the next rollout, too
        if host is hosts.owner and was_suspected and hosts.successor is None and self._can_restore(host.envs):
            spare = next((other for other in hosts.others if not other.is_suspected), None)
        for other in hosts.asked():
            if other is not host and other is not spare:
                self._end(other)
        hosts.owner, hosts.others, hosts.successor = host, [], spare or hosts.successor

    # ---- hosts that are lost, silent or slow -----------------------------------------------------------------

    def _replace(self, host: Host, error: CorralError) -> None:
        """End a host that is lost or could not start; start another one for its group if no other was asked."""
        hosts = self._hosts[host.group]
        self._use_of(host).lost += 1
        is_first = host.node.id not in self._lost_on[host.group]
        if not (is_first and isinstance(error, HostLost) and not error.node_is_lost):
            self._places.avoid(host.node, Mark.LOST)
        self._lost_on[host.group].add(host.node.id)
        self._end(host)
        if hosts.successor is host:
            hosts.successor = None
            self._places.avoid(host.node, Mark.LOST)
            self._recovery.warn(f"the {host} could not be prepared: {str(error).splitlines()[0]}")
            return
        is_owner = hosts.owner is host
        hosts.others = [other for other in hosts.others if other is not host]
        if is_owner:
            hosts.owner = None
        self._recovery.warn(self._judge(host, error))
        if host.group in self._answers:  # the next request starts another owner
            return
        if hosts.owner is None and hosts.others:
            hosts.owner = hosts.others.pop(0)
        if hosts.owner is None:
            hosts.owner = self._start(host.group)
        elif all(other.is_suspected for other in hosts.asked()):
            hosts.others.append(self._start(host.group, but_not_on=hosts.owner.node))

    def _judge(self, host: Host, error: CorralError) -> str:
        """Raise the error that ends the run if too many hosts of a group were lost; else return what to warn of."""
        node = host.node.id  # hosts that are lost on different nodes are not lost at the same point
        if isinstance(error, HostLost):
            error = WorkerDied(f"the {host} {error}")
            error.by_signal = True
        else:
            node = ""
        self._count_loss(host, error)
        decision = self.restart_rules.decide(WorkerDeath(host.group, error, None, self._n_requests, node))
        if isinstance(decision, Stop):
            raise decision.error
        return decision.message

    def _count_loss(self, host: Host, error: CorralError) -> None:
        """Raise an error if too many hosts of a group were lost or silent while it had to answer one request."""
        self._losses[host.group] += 1
        if self._losses[host.group] > _MAX_LOSSES:
            raise WorkerDied(f"{error}; {_MAX_LOSSES} hosts of these envs were lost before without any progress")

    def _add_waiting_time(self) -> None:
        """Add the time since the last call to that of hosts that start or are silent."""
        now = self._clock()
        waited = min(now - self._checked_at, 2 * _POLL_SECONDS)  # not the time in which this process was stopped
        self._checked_at = now
        for host in self._places.hosts:
            if not host.is_up:
                host.start_seconds += waited
            elif host.heartbeat is not None:
                host.silence += waited

    def _check_hosts(self) -> None:
        """Ask silent hosts for a sign of life, and start others for groups whose hosts are silent or slow."""
        now = self._clock()
        if self._request is not None and self._request.is_rollout:
            self._places.look()
            self._prepare_successors()
        for host in self._places.hosts.copy():
            if host.unanswered and host in self._places.hosts:
                self._check_host(host, now)

    def _check_host(self, host: Host, now: float) -> None:
        hosts = self._hosts[host.group]
        if not host.is_up and host.start_seconds > (limit := self._start_limit()):
            self._replace(host, HostLost(f"did not start in {limit:.0f} s", node_is_lost=True))
            return
        if host.is_up and host.heartbeat is None and now - host.last_heard > _HEARTBEAT_SECONDS:
            host.heartbeat = self._cluster.call(host.handle, "heartbeat")
            self._calls[host.heartbeat] = host, "heartbeat", 0
        is_slow = now - host.asked_at > self._slow_limit()
        is_silent = host.silence + _HEARTBEAT_SECONDS > self._node_timeout
        silence = f"has given no sign of life for {self._node_timeout:g} s (--node-timeout)"
        if host is hosts.successor:
            if is_silent:
                self._replace(host, HostLost(silence))
        elif host.is_suspected or host.group in self._answers:
            return
        elif is_silent:
            self._use_of(host).silent += 1
            self._count_loss(host, WorkerDied(f"the {host} {silence}"))
            self._suspect(host, silence)
        elif is_slow and self._recovery.recover and not hosts.others and self._can_restore(host.envs):
            self._use_of(host).slow += 1
            self._suspect(host, f"takes longer than {self._slow_limit():.1f} s")

    def _suspect(self, host: Host, reason: str) -> None:
        """Start another host for the group of a host that is silent or slow."""
        if not self._recovery.recover:
            raise WorkerDied(f"the {host} {reason}")
        host.is_suspected = True
        self._places.avoid(host.node, Mark.SLOW)
        self._recovery.warn(f"the {host} {reason}; its part of the rollout is collected elsewhere too")
        self._hosts[host.group].others.append(self._start(host.group, but_not_on=host.node))

    def _start_limit(self) -> float:
        """Return in how many seconds a host must have started."""
        limit = self._recovery.start_timeout
        if not self._slowest_start:  # nobody knows yet how long it takes here
            return limit
        return min(limit, max(_MIN_START_SECONDS, _TIMES_SLOWEST_START * self._slowest_start))

    def _slow_limit(self) -> float:
        """Return after how many seconds of a rollout a host counts as slow; infinite until half the groups answered."""
        is_rollout = self._request is not None and self._request.is_rollout
        if not is_rollout or len(self._answered_after) < max(1, math.ceil(len(self.groups) / 2)):
            return math.inf
        return _TIMES_OTHERS * self._answered_after[-1] + self._slowest_start + _MIN_LAG_SECONDS

    # ---- places ----------------------------------------------------------------------------------------------

    def _start(self, group: int, but_not_on: Node | None = None) -> Host:
        """Start a host for a group, and send it all calls up to the request under way."""
        assert self._request is not None
        self._places.look(refresh=True)
        host = self._start_host(group, self._places.best_node(but_not_on))
        if self._request.restore_args_of is not None:
            self._call(host, "restore", self._request.restore_args_of(host))
        self._send_request(host)
        return host

    def _start_host(self, group: int, node: Node) -> Host:
        """Start a host on a node and send it the calls that prepare it."""
        assert self._request is not None
        has_core, envs, now = self._places.has_free_core(node), self.groups[group], self._clock()
        handle = self._cluster.start_host(node, has_core, self._pickled_spec_of(envs))
        host = Host(group, envs, node, has_core, handle, started_at=now, last_heard=now)
        self._places.hosts.append(host)
        for method, args in self._request.prepare_of(host):
            self._call(host, method, args)
        return host

    def _use_successors(self) -> None:
        """Let hosts that are prepared become owners, between two rollouts."""
        for hosts in self._hosts:
            owner, successor = hosts.owner, hosts.successor
            if successor is not None and not successor.unanswered:
                hosts.owner, hosts.successor = successor, None
                if owner is not None:
                    self._use_of(owner).moved += 1
                    self._end(owner)
                assert self._request is not None and self._request.restore_args_of is not None
                self._call(successor, "restore", self._request.restore_args_of(successor))

    def _prepare_successors(self) -> None:
        """Start hosts where there is a better place for a group, also during a rollout."""
        if not self._places.can_improve():
            return
        for hosts in self._hosts:
            owner = hosts.owner
            may_move = owner is not None and not hosts.others and hosts.successor is None
            if owner is not None and may_move and (node := self._better_node(owner)) is not None:
                hosts.successor = self._start_host(owner.group, node)

    def _better_node(self, owner: Host) -> Node | None:
        """Return a node to which a group should move, if moving it changes nothing or its node will end."""
        node = self._places.better_node(owner)
        must_move = self._places.is_leaving(owner.node)
        return node if node is not None and (must_move or self._can_restore(owner.envs)) else None

    def mark_as_different(self, node: Node) -> None:
        """Note that a node computes other results, and that the run allows it."""
        self._node_use.setdefault(node.address, NodeUse()).differs = 1

    def _use_of(self, host: Host) -> NodeUse:
        return self._node_use.setdefault(host.node.address, NodeUse())

    def node_use(self) -> dict[str, NodeUse]:
        """Return what happened on each node so far, by its address."""
        for use in self._node_use.values():
            use.groups = 0
        for hosts in self._hosts:
            if hosts.owner is not None:
                self._use_of(hosts.owner).groups += 1
        return self._node_use

    def hosts(self) -> list[Host]:
        """Return all hosts that were started and not ended."""
        return list(self._places.hosts)

    # ---- the end ---------------------------------------------------------------------------------------------

    def _end(self, host: Host) -> None:
        """End a host, and expect no answer from it any more."""
        self._places.hosts.remove(host)
        self._calls = {call: expected for call, expected in self._calls.items() if expected[0] is not host}
        self._cluster.kill(host.handle)

    def take_fault_counts(self) -> FaultCounts:
        """Return how many hosts were replaced since the last call."""
        return self.restart_rules.take_counts()

    def close(self, seconds: float = 0.0) -> None:
        """Close the envs of all hosts, and end the hosts after at most ``seconds``."""
        responsive = [host for host in self._places.hosts if host.is_up and not host.silence]
        closing = {self._cluster.call(host.handle, "close") for host in responsive}
        end = time.monotonic() + seconds
        with contextlib.suppress(CorralError):  # the head of the cluster is lost
            while closing and (left := end - time.monotonic()) > 0:
                for call, _ in self._cluster.replies(closing, left):
                    closing.discard(call)
        for host in list(self._places.hosts):
            self._end(host)
