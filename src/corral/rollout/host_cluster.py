"""The interface of a cluster: machines on which the trainer starts hosts of env groups, and calls to these hosts.

``rollout/ray_cluster`` implements it with Ray. ``rollout/group_supervisor`` uses it, and knows nothing of Ray.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Hashable
from dataclasses import dataclass
from typing import Any, Protocol

from corral.core.errors import EnvFault, UsageError, WorkerDied
from corral.rollout.group_host import HostReply

__all__ = ["Call", "HostCluster", "HostLost", "Node", "NodeRefused", "error_on_node", "missing_module"]

_MISSING_MODULE = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'")
Call = Hashable
"""A call to a host that has not replied yet."""


@dataclass(frozen=True, slots=True)
class Node:
    """A machine of the cluster, as it was when the cluster was last asked."""

    id: str
    """Changes when the machine leaves the cluster and joins it again."""
    address: str
    cores: float
    free_cores: float
    """Cores that nobody has reserved."""
    is_leaving: bool = False
    """Whether the machine will be switched off, so that it should hold no hosts."""


class HostLost(WorkerDied):
    """A host can no longer be used: its process ended, or its node cannot be reached."""

    def __init__(self, reason: str, node_is_lost: bool = False) -> None:
        super().__init__(reason)
        self.node_is_lost = node_is_lost
        """Whether the node is probably lost, and not only this host."""


class NodeRefused(UsageError):
    """A node must not hold hosts, because it computes other results than the others."""


def missing_module(name: str) -> str:
    """Return what to do about a module that a node does not have."""
    if name.partition(".")[0] == "corral":
        return "Corral is not installed there, or in another version; install the same as here"
    return f"the module {name!r} is missing; install its package there, or copy it there with --ray-working-dir"


def error_on_node(error: BaseException, prefix: str, is_this_machine: bool) -> BaseException:
    """Return what to raise for an error of a host, with ``prefix``, which names its node."""
    missing = _MISSING_MODULE.search(f"{type(error).__name__}: {error}")
    if isinstance(error, EnvFault):
        error.summary = f"{prefix}{error.summary}"
    elif missing is not None and (isinstance(error, ModuleNotFoundError) or not is_this_machine):
        return UsageError(f"{prefix}{missing_module(missing[1])}")
    elif isinstance(error, UsageError) and not isinstance(error, NodeRefused):
        return UsageError(f"{prefix}{error}")
    return error


class HostCluster(Protocol):
    """Starts hosts on nodes, calls their methods and ends them. No method waits for a host."""

    own_node: str
    """The id of the node that is this machine; empty if it is not part of the cluster."""

    def nodes(self, refresh: bool = False) -> list[Node]:
        """Return the nodes on which hosts can be started; ``refresh`` asks for news instead of the last known ones."""
        ...

    def start_host(self, node: Node, reserve_core: bool, pickled_spec: bytes) -> Any:
        """Begin to start a ``GroupHost`` on this node, and return what ``call`` needs to reach it."""
        ...

    def call(self, host: Any, method: str, *args: Any) -> Call:
        """Call a method of a host. Calls are executed in their order, but ``heartbeat`` and ``close`` at once."""
        ...

    def share(self, value: Any) -> Any:
        """Return what to pass to several calls instead of a large value, so that it travels once to each node."""
        ...

    def replies(self, calls: Collection[Call], seconds: float) -> list[tuple[Call, HostReply | HostLost]]:
        """Return the calls that are answered, or whose host is lost; wait up to ``seconds`` for the first."""
        ...

    def kill(self, host: Any) -> None:
        """End a host at once, if it can be reached."""
        ...

    def close(self) -> None:
        """End what was started besides hosts."""
        ...
