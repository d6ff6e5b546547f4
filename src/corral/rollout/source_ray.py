"""The rollout source of the ``ray`` backend: env groups on the machines of a Ray cluster.

Each group of envs has a host on some node (``rollout/group_host``), with a copy of the policy. A rollout takes one
message to every host, with the weights, and one back, with the group's part of the rollout. The trainer keeps the
position of every env, so that the envs of a host that is lost continue elsewhere from the same step
(``rollout/group_supervisor``). What another host then collects is equal, so the result of a run does not depend on the
number of nodes, nor on which of them were lost.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import cloudpickle
import numpy as np
import numpy.typing as npt

from corral.core.actions import ActionCodec
from corral.core.errors import UsageError
from corral.core.machine import available_cores
from corral.core.spaces import Layout
from corral.core.types import ActorSpec, FaultCounts, NodeUse, Rollout, Weights
from corral.opponents.sampling import OpponentTableChanges, SharedOpponentTable
from corral.ppo.shares import ShareSetup
from corral.processes.pool import split_envs
from corral.processes.recovery_config import ignore_warning
from corral.rollout.buffers import allocate_rollout, column_specs, env_columns, rollout_columns
from corral.rollout.collector import CollectorReport, merge_reports
from corral.rollout.env_positions import EnvPositions
from corral.rollout.fingerprint import Fingerprint, differences, take_fingerprint
from corral.rollout.group_host import GroupPlan, GroupRollout, OpenedGroup
from corral.rollout.group_supervisor import GroupSupervisor
from corral.rollout.host_cluster import HostCluster, Node, NodeRefused
from corral.rollout.host_places import Host, Request
from corral.rollout.learner_helpers import LearnerHelpers
from corral.rollout.ray_cluster import RayCluster
from corral.rollout.source import LearnerCrew, SourceSpec
from corral.vec.api import EnvInfo

__all__ = ["RaySource"]

_CLOSE_SECONDS = 4.0
"""Seconds that hosts have to close their envs at the end of a run."""


class RaySource:
    """The envs of a run in ``spec.num_workers`` groups, on the nodes of a cluster (by default a Ray cluster)."""

    def __init__(self, spec: SourceSpec, cluster: HostCluster | None = None) -> None:
        self._spec = spec
        self._cluster = cluster or RayCluster(spec.cluster, spec.num_workers or None)
        self._weights: Any = None
        self._plan: GroupPlan | None = None
        self._opponent_table: SharedOpponentTable | None = None
        self._n_begun = 0  # rollouts
        self._deadline = math.inf
        self._first: OpenedGroup | None = None
        self._own_fingerprint: Fingerprint | None = None
        self._checked_nodes = {self._cluster.own_node}
        self.has_masks: bool | None = None
        self.crew: LearnerCrew | None = None
        self._helpers: LearnerHelpers | None = None
        try:
            nodes = self._cluster.nodes()
            if not nodes:
                needed = ", ".join(f"{name}={amount:g}" for name, amount in spec.cluster.resources.items())
                raise UsageError(f"no node of the cluster has {f'ray_resources {needed}' if needed else 'a core'}")
            self._cores_per_node = max(1, int(max(node.cores for node in nodes)))
            cores = sum(int(node.cores) for node in nodes)
            groups = split_envs(spec.n_envs, spec.num_workers or max(1, min(cores, spec.n_envs)))
            self._supervisor = GroupSupervisor(
                self._cluster, groups, self._pickled_spec, spec.recovery, spec.cluster.node_timeout,
                check=self._check,
                can_restore=self._can_restore,
            )  # fmt: skip
            self._supervisor.begin(Request("open", lambda host: ()))
            opened: list[OpenedGroup] = self._supervisor.gather()
        except BaseException:
            self.close()
            raise
        self.env_info: EnvInfo = opened[0].env_info
        self.has_masks = opened[0].has_masks
        self._positions = EnvPositions(spec.seed, spec.n_envs, ActionCodec(self.env_info.action_space))

    @property
    def num_workers(self) -> int:
        """The number of env groups, each of which has a worker process somewhere."""
        return len(self._supervisor.groups)

    @property
    def max_helpers(self) -> int:
        """How many processes on this machine could help the learner."""
        return available_cores() - 1

    def _pickled_spec(self, envs: range) -> bytes:
        """Return what a host of these envs is made with."""
        spec = self._spec
        recovery = dataclasses.replace(
            spec.recovery,
            warn=ignore_warning,
            env_known_to_work=self._supervisor.restart_rules.env_known_to_work,
        )
        of_group = dataclasses.replace(
            spec,
            backend="worker",
            factory=spec.factory.for_processes(self._cores_per_node),
            n_envs=len(envs),
            first_env=envs.start,
            num_workers=1,
            has_masks=self.has_masks,
            recovery=recovery,
            overlap=False,
        )
        return bytes(cloudpickle.dumps(of_group))

    def _check(self, host: Host, method: str, value: Any) -> None:
        """Check that what a host returned is like what the others did."""
        if method == "open":
            host.opened = value
            if self._first is None:
                self._first = value
            self._first.env_info.check_same(value.env_info)
            if self._first.has_masks != value.has_masks:
                raise UsageError("some envs offer action masks and some do not; all or none should")
        elif method == "fingerprint" and value is not None:
            self._check_fingerprint(host.node, value)

    def _check_fingerprint(self, node: Node, fingerprint: Fingerprint) -> None:
        """Raise ``NodeRefused`` if a node computes something else than this machine, unless the run allows that."""
        spec, plan = self._spec, self._plan
        assert plan is not None
        if self._own_fingerprint is None:
            self._own_fingerprint = self._take_own_fingerprint(plan)
        if self._own_fingerprint.rollout is None:
            fingerprint = dataclasses.replace(fingerprint, rollout=None)
        found = differences(self._own_fingerprint, fingerprint)
        if found and not spec.cluster.allow_mixed_numerics:
            raise NodeRefused(
                f"node {node.address} and this machine differ: {'; '.join(found)}. The weights would depend on which "
                "node collects what. Use equal machines, or --allow-mixed-numerics"
            )
        if found:
            self._supervisor.mark_as_different(node)
            spec.recovery.warn(f"node {node.address} and this machine differ, as allowed: {'; '.join(found)}")
        self._checked_nodes.add(node.id)

    def _take_own_fingerprint(self, plan: GroupPlan) -> Fingerprint:
        """Return the fingerprint of this machine, without a rollout if the env is not deterministic."""
        spec = self._spec
        recovery = dataclasses.replace(spec.recovery, warn=ignore_warning)
        arguments = spec.factory, plan.actor, plan.weights, recovery, spec.start_method
        own, again = take_fingerprint(*arguments), take_fingerprint(*arguments)
        if own.rollout == again.rollout:
            return own
        spec.recovery.warn("machines are compared without the env, which is not deterministic (see `corral doctor`)")
        return dataclasses.replace(own, rollout=None)

    def _can_restore(self, envs: range) -> bool:
        """Return whether other instances of these envs could continue their episodes."""
        if self._spec.factory.is_vector:
            return False
        return all(position.repeatable for position in self._positions.positions_of(envs))

    def connect(
        self,
        actor: ActorSpec,
        weights: Weights,
        opponent_table: SharedOpponentTable | None = None,
        shares: ShareSetup | None = None,
        helpers: int = 0,
    ) -> RaySource:
        """Give every host an actor and a copy of the opponents' table; start ``helpers`` for the learner here."""
        self._opponent_table = opponent_table
        self._plan = GroupPlan(actor, _as_arrays(weights), None if opponent_table is None else opponent_table.spec)
        try:
            self._supervisor.begin(Request("connect", lambda host: (self._plan,), lambda host: [("open", ())]))
            self._slots = self._allocate_rollouts(actor.n_state, shares if helpers else None, helpers)
            self._supervisor.gather()
            self._check_nodes()
        except BaseException:
            self.close()
            raise
        return self

    def _allocate_rollouts(self, n_state: int, shares: ShareSetup | None, helpers: int) -> list[Rollout]:
        """Return the rollouts to collect into. If there are helpers, it is one that they can read."""
        spec, info = self._spec, self.env_info
        layout, codec = Layout(info.observation_space), ActionCodec(info.action_space)
        shape = spec.n_steps, spec.n_envs, bool(self.has_masks), info.stacks, n_state
        if shares is None:
            return [allocate_rollout(layout, codec, *shape) for _ in range(2 if spec.overlap else 1)]
        columns = column_specs(layout, codec, *shape)
        self._helpers = LearnerHelpers(shares, columns, helpers, spec.start_method, spec.recovery)
        self.crew = self._helpers.crew
        return [self._helpers.rollout(info.stacks)]

    def publish(self, weights: Weights, version: int) -> None:
        """Keep the weights that the next rollout will use, and put large ones where every node can read them."""
        self._weights = self._cluster.share(_as_arrays(weights))

    def begin(self, iteration: int) -> None:
        """Request the rollout of this iteration from all hosts."""
        if self._opponent_table is not None and iteration == 0:
            self._positions.begin(self._opponent_table.opponent_sampler)
        if self._helpers is not None:
            self._helpers.restart_dead()
        self._n_begun += 1
        weights = self._weights
        self._supervisor.begin(
            Request(
                "collect",
                lambda host: (iteration, weights, self._changed_opponents(host)),
                self._preparation,
                self._restore_args,
                is_rollout=True,
            )
        )

    def collect(self) -> Rollout:
        """Wait for every group's part of the rollout, and return the rollout."""
        parts: list[GroupRollout] = self._supervisor.gather(self._deadline)
        rollout = self._slots[self._n_begun % len(self._slots)]
        reports: list[CollectorReport] = []
        states: dict[int, bytes] = {}
        fault_counts = FaultCounts()
        for envs, part in zip(self._supervisor.groups, parts, strict=True):
            for name, column in rollout_columns(env_columns(rollout, envs.start, envs.stop)).items():
                column[...] = part.columns[name]
            reports += part.reports
            states |= {envs[i]: state for i, state in part.reports[-1].env_report.states.items()}
            fault_counts += part.fault_counts
        self._supervisor.restart_rules.add_restarts(fault_counts.restarts)
        episodes = self._positions.advance(rollout, states)
        return merge_reports(rollout, reports, episodes, fault_counts + self.take_fault_counts())

    def _check_nodes(self) -> None:
        """Compare what all nodes compute, before the first rollout; those that join later are checked then."""
        hosts = {host.node.id: host for host in self._supervisor.hosts()}  # one for each node
        if hosts.keys() <= self._checked_nodes:
            return
        first = {host.group for host in hosts.values()}
        self._supervisor.begin(
            Request("fingerprint", lambda host: (host.group in first,), lambda host: self._preparation(host)[:2])
        )
        self._supervisor.gather()

    def _preparation(self, host: Host) -> list[tuple[str, tuple[Any, ...]]]:
        """Return the calls with which a new host gets the envs and the plan; a new node is checked."""
        calls: list[tuple[str, tuple[Any, ...]]] = [("open", ()), ("connect", (self._plan,))]
        return calls if host.node.id in self._checked_nodes else [*calls, ("fingerprint", ())]

    def _restore_args(self, host: Host) -> tuple[Any, ...]:
        return self._positions.arrays(host.envs), self._changed_opponents(host)

    def _changed_opponents(self, host: Host) -> OpponentTableChanges | None:
        """Return what has changed in the opponents' table since it was last sent to this host."""
        if self._opponent_table is None:
            return None
        changes = self._opponent_table.changes_since(host.sent_versions)
        host.sent_versions = changes.versions
        return changes

    def set_deadline(self, deadline: float) -> None:
        """Make ``collect`` raise ``DeadlinePassed`` if the rollout is not complete at this time (``perf_counter``)."""
        self._deadline = deadline

    def opponents(self) -> npt.NDArray[np.int64]:
        """Return the opponent of every env's episode; shape [N]."""
        return self._positions.episodes.opponent

    def env_positions(self) -> dict[str, npt.NDArray[Any]]:
        """Return the positions of all envs, for a checkpoint."""
        return self._positions.arrays()

    def restore(self, env_positions: Mapping[str, npt.NDArray[Any]]) -> None:
        """Bring every env to its position from a checkpoint."""
        self._positions.restore(env_positions)
        self._supervisor.begin(Request("restore", self._restore_args, self._preparation))
        self._supervisor.gather()

    def take_fault_counts(self) -> FaultCounts:
        """Return how many hosts were replaced since the last call."""
        return self._supervisor.take_fault_counts()

    def node_use(self) -> Mapping[str, NodeUse]:
        """Return what happened on each node, by its address."""
        return self._supervisor.node_use()

    def pids(self) -> list[int]:
        """Return the process ids of hosts and workers on this machine; those on other machines mean nothing here."""
        here = self._cluster.own_node
        hosts = [host for host in self._supervisor.hosts() if host.node.id == here and host.opened is not None]
        helpers = [] if self._helpers is None else self._helpers.pids()
        return [*(pid for host in hosts for pid in host.opened.pids), *helpers]

    def close(self) -> None:
        """Close the envs and end the hosts."""
        supervisor = getattr(self, "_supervisor", None)
        with contextlib.ExitStack() as stack:
            stack.callback(self._cluster.close)
            if self._helpers is not None:
                stack.callback(self._helpers.close)
            if supervisor is not None:
                supervisor.close(_CLOSE_SECONDS)


def _as_arrays(weights: Weights) -> dict[str, npt.NDArray[Any]]:
    """Return a copy of the weights as numpy arrays."""
    return {name: np.array(value.cpu().numpy() if hasattr(value, "cpu") else value) for name, value in weights.items()}
