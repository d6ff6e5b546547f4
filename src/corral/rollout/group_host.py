"""The host of an env group: what runs on a node of a cluster, in a Ray actor, and what it exchanges with the trainer.

A group is a fixed range of the run's envs. Its host keeps them in a worker process of its own, with the source of the
backend ``worker``. So an env that crashes, hangs, raises or uses too much memory is handled on its node, with the rules
and the messages of a single machine, and the thread that answers ``heartbeat`` never waits for an env. The trainer
deals only with hosts that are lost as a whole. It sends one message for each rollout and gets one back.

Every method returns a ``HostReply``. Each can be repeated on another host, which returns the same.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import cloudpickle
import numpy.typing as npt

from corral.core.errors import WorkerDied
from corral.core.machine import limit_compute_threads
from corral.core.stdio import tolerate_closed_stdout
from corral.core.types import ActorSpec, FaultCounts, Weights
from corral.opponents.sampling import OpponentTableChanges, OpponentTableSpec, SharedOpponentTable
from corral.processes.worker_bootstrap import pickle_error
from corral.rollout.buffers import rollout_columns
from corral.rollout.collector import CollectorReport
from corral.rollout.fingerprint import Fingerprint, take_fingerprint
from corral.rollout.source import SourceSpec
from corral.rollout.source_workers import WorkerSource
from corral.vec.api import EnvInfo

__all__ = ["GroupHost", "GroupPlan", "GroupRollout", "HostReply", "OpenedGroup"]

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class HostReply:
    """What a method of a host returns."""

    value: Any = None
    warnings: list[str] = field(default_factory=list)
    """Warnings that the trainer should print."""
    error: bytes | None = None
    """The pickled exception, if there was one."""


@dataclass(frozen=True, slots=True)
class OpenedGroup:
    """The envs of a group are made."""

    env_info: EnvInfo
    has_masks: bool
    pids: list[int]
    """Process ids on the host's node: of the host and of its worker."""


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """How to act, known when the spaces of the envs are known."""

    actor: ActorSpec
    weights: Weights
    """Arrays of the shapes that every version of the weights has."""
    opponent_table: OpponentTableSpec | None
    """The opponents, if the run chooses them."""


@dataclass(frozen=True, slots=True)
class GroupRollout:
    """A group's part of a rollout."""

    columns: dict[str, Array]
    """The arrays of the rollout by name (see ``buffers.rollout_columns``)."""
    reports: list[CollectorReport]
    fault_counts: FaultCounts
    """Restarts of the host's worker."""


class GroupHost:
    """The envs of one group. ``pickled_spec`` is a ``SourceSpec`` for them, without a way to warn."""

    def __init__(self, pickled_spec: bytes) -> None:
        tolerate_closed_stdout()
        limit_compute_threads()
        self._pickled_spec = pickled_spec
        self._warnings: list[str] = []
        self._source: WorkerSource | None = None
        self._opponent_table: SharedOpponentTable | None = None
        self._plan: GroupPlan | None = None
        self._version = 0

    def open(self) -> HostReply:
        """Make the envs; the value of the reply is an ``OpenedGroup``."""

        def make_envs() -> OpenedGroup:
            self._source = source = WorkerSource(self._spec())
            return OpenedGroup(source.env_info, bool(source.has_masks), [os.getpid(), *source.pids()])

        return self._reply(make_envs)

    def connect(self, plan: GroupPlan) -> HostReply:
        """Build the actor and, if the run chooses the opponents, a copy of their table."""

        def build_actor() -> None:
            self._plan = plan
            if plan.opponent_table is not None:
                self._opponent_table = SharedOpponentTable(plan.opponent_table, plan.weights)
            self._opened().connect(plan.actor, plan.weights, self._opponent_table)

        return self._reply(build_actor)

    def fingerprint(self, wanted: bool = True) -> HostReply:
        """Return the fingerprint of the node if it is ``wanted`` from this host (see ``rollout/fingerprint``)."""

        def take() -> Fingerprint | None:
            spec, plan = self._spec(), self._plan
            if not wanted or plan is None:
                return None
            return take_fingerprint(spec.factory, plan.actor, plan.weights, spec.recovery, spec.start_method)

        return self._reply(take)

    def restore(self, positions: Mapping[str, Array], opponents: OpponentTableChanges | None) -> HostReply:
        """Bring the envs to these positions, in which they may play against opponents of the table."""

        def restore_envs() -> None:
            self._update_opponents(opponents)
            self._opened().restore(positions)

        return self._reply(restore_envs)

    def collect(self, iteration: int, weights: Weights, opponents: OpponentTableChanges | None) -> HostReply:
        """Collect the group's part of a rollout; the value of the reply is a ``GroupRollout``."""

        def collect_group() -> GroupRollout:
            source = self._opened()
            self._update_opponents(opponents)
            self._version += 1
            source.publish(weights, self._version)
            source.begin(iteration)
            rollout, reports, _ = source.collect_reports()
            return GroupRollout(rollout_columns(rollout), reports, source.take_fault_counts())

        return self._reply(collect_group)

    def heartbeat(self) -> None:
        """Return at once, whatever the envs are doing."""

    def close(self) -> None:
        """Close the envs, also while they are stepped."""
        if self._source is not None:
            self._source.close()
        if self._opponent_table is not None:
            self._opponent_table.close()

    def _spec(self) -> SourceSpec:
        spec: SourceSpec = cloudpickle.loads(self._pickled_spec)
        return dataclasses.replace(spec, recovery=dataclasses.replace(spec.recovery, warn=self._warnings.append))

    def _opened(self) -> WorkerSource:
        if self._source is None:
            raise WorkerDied("the envs of this host could not be made")
        return self._source

    def _update_opponents(self, changes: OpponentTableChanges | None) -> None:
        if changes is not None:
            assert self._opponent_table is not None
            self._opponent_table.apply(changes)

    def _reply(self, function: Callable[[], Any]) -> HostReply:
        """Call a function; return its value or its exception, with the warnings since the last reply."""
        value, error = None, None
        try:
            value = function()
        except Exception as raised:
            error = pickle_error(raised)
        warnings, self._warnings[:] = list(self._warnings), []
        return HostReply(value, warnings, error)
