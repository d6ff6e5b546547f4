"""Hosts of env groups: what is asked of them, on which nodes they are, and which node is best for another one."""

from __future__ import annotations

import enum
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from corral.core.errors import WorkerDied
from corral.rollout.host_cluster import Call, HostCluster, Node

__all__ = ["Host", "HostPlaces", "Mark", "Request"]

_RESERVATION_SECONDS = 1.0
"""The cluster may count a core as free for so long after a host has reserved it."""
_AVOID_SECONDS, _MAX_AVOID_SECONDS = 60.0, 3600.0
"""For how long no host is started on a node that was lost, silent or slow, if there is another: twice as long every
time, up to an hour."""


class Mark(enum.IntEnum):
    """Why other nodes are better than a node, from best to worst."""

    NONE = 0
    SLOW = 1
    """A host there was slow or silent."""
    LOST = 2
    """The node was lost, or hosts there again and again."""
    REFUSED = 3
    """It computes other results."""


@dataclass(eq=False, slots=True)
class Host:
    """A host that was started for a group."""

    group: int
    envs: range
    node: Node
    has_core: bool
    """Whether it reserved a core of its node."""
    handle: Any
    started_at: float
    last_heard: float
    start_seconds: float = 0.0
    """For how many seconds this process waited until it had started."""
    is_up: bool = False
    """Whether it has answered anything."""
    is_suspected: bool = False
    """Whether another host was started for its group because it is silent or slow."""
    asked_at: float = math.inf
    """When the request was sent that it has not answered."""
    heartbeat: Call | None = None
    """The call for a sign of life that it has not answered."""
    silence: float = 0.0
    """For how many seconds it has not answered that call, as far as this process waited."""
    unanswered: int = 0
    """Calls other than heartbeats that it has not answered."""
    opened: Any = None
    """What it returned when its envs were made."""
    sent_versions: Any = None
    """Versions of the opponents' weights that it has; None for none."""

    def __str__(self) -> str:
        first, last = self.envs[0], self.envs[-1]
        envs = f"env {first}" if first == last else f"envs {first} to {last}"
        return f"host of {envs} on node {self.node.address}"


@dataclass(frozen=True, slots=True)
class Request:
    """A call that every group must answer."""

    method: str
    args_of: Callable[[Host], tuple[Any, ...]]
    prepare_of: Callable[[Host], Sequence[tuple[str, tuple[Any, ...]]]] = lambda host: ()
    """The calls, by method and arguments, after which a new host has the envs but not their positions."""
    restore_args_of: Callable[[Host], tuple[Any, ...]] | None = None
    """The arguments of ``restore``, which brings the envs of a new host to where they were before the request; None if
    they have not taken a step."""
    is_rollout: bool = False


class HostPlaces:
    """The nodes of a cluster, and the hosts on them."""

    def __init__(self, cluster: HostCluster, clock: Callable[[], float]) -> None:
        self.nodes: list[Node] = []
        """The nodes as they were when the cluster was last asked."""
        self.hosts: list[Host] = []
        """All hosts that were started and not ended."""
        self._cluster, self._clock = cluster, clock
        self._asked_at = 0.0
        self._times_marked: Counter[str] = Counter()
        self._marks: dict[str, tuple[Mark, float]] = {}  # by node: the worst, and until when
        self._most_reserved: Counter[str] = Counter()  # cores that hosts had reserved at the same time, by node

    def look(self, refresh: bool = False) -> None:
        """Ask the cluster for its nodes; ``refresh``: for news instead of the last known ones."""
        self._asked_at, self.nodes = self._clock(), self._cluster.nodes(refresh)

    def avoid(self, node: Node, mark: Mark) -> None:
        """Prefer other nodes for a while; a node that is refused never gets a host again."""
        self._times_marked[node.id] += self._mark(node) is Mark.NONE
        seconds = min(_MAX_AVOID_SECONDS, _AVOID_SECONDS * 2.0 ** (self._times_marked[node.id] - 1))
        until = math.inf if mark is Mark.REFUSED else self._clock() + seconds
        if mark >= self._mark(node):
            self._marks[node.id] = mark, until

    def best_node(self, but_not_on: Node | None = None) -> Node:
        """Return the best node for a host: with a free core if there is one, else the one with the fewest hosts.

        A host without a core of its own is slower, but the run goes on. ``but_not_on`` is chosen if there is no other.
        """
        usable = [node for node in self.nodes if self._mark(node) is not Mark.REFUSED]
        if not usable:
            raise WorkerDied("no node of the cluster can be used")

        def rank(node: Node) -> tuple[bool, Mark, bool, bool, float]:
            is_excluded = but_not_on is not None and node.id == but_not_on.id
            load = (len(self._hosts_on(node)) + 1) / max(node.cores, 0.5)
            return is_excluded, self._mark(node), node.is_leaving, not self.has_free_core(node), load

        return min(usable, key=rank)

    def is_leaving(self, node: Node) -> bool:
        """Return whether a node will end soon, as far as the cluster knows now."""
        return any(other.id == node.id and other.is_leaving for other in self.nodes)

    def can_improve(self) -> bool:
        """Return whether there may be a better place for any host."""
        if all(host.has_core for host in self.hosts) and not any(node.is_leaving for node in self.nodes):
            return False
        return any(node.is_leaving or self.has_free_core(node) for node in self.nodes)

    def better_node(self, host: Host) -> Node | None:
        """Return a node to which the group of a host should move; None if it should stay."""
        is_leaving = self.is_leaving(host.node)
        if host.has_core and not is_leaving:
            return None
        node = self.best_node(but_not_on=host.node if is_leaving else None)
        is_good = not node.is_leaving and self._mark(node) is Mark.NONE and node.id != host.node.id
        return node if is_good and (is_leaving or self.has_free_core(node)) else None

    def has_free_core(self, node: Node) -> bool:
        """Return whether a new host can reserve a core: one that is free, or that a host of this run gave up.

        The cluster may not count yet what hosts have reserved that were started a moment ago.
        """
        on_node = [host for host in self._hosts_on(node) if host.has_core]
        started = sum(host.started_at > self._asked_at - _RESERVATION_SECONDS for host in on_node)
        most = self._most_reserved[node.id] = max(self._most_reserved[node.id], len(on_node))
        return len(on_node) + 1 <= node.cores and (node.free_cores - started >= 1 or most > len(on_node))

    def _mark(self, node: Node) -> Mark:
        mark, until = self._marks.get(node.id, (Mark.NONE, 0.0))
        return mark if until > self._clock() else Mark.NONE

    def _hosts_on(self, node: Node) -> list[Host]:
        return [host for host in self.hosts if host.node.id == node.id]
