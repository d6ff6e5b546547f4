"""The process of a rollout worker: it owns envs, an actor and a collector, and gets one message for each rollout.

The process imports no torch unless the actor needs it. It writes into shared memory how many steps of a rollout are
complete, so that another process can continue after them if this one dies. While the learner updates, it may help to
compute gradients.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle
import numpy as np
import numpy.typing as npt

from corral.core.actions import ACTION_FEATURES
from corral.core.types import Rollout
from corral.envs.factory import EnvFactory
from corral.envs.lifecycle import probe_env
from corral.opponents.sampling import OpponentTable, OpponentTableSpec
from corral.ppo.shares import Shares, ShareSetup
from corral.processes import shared_memory
from corral.processes.rss_limit import RssLimit
from corral.processes.worker_bootstrap import CLOSE, ERROR, OK, VALUE, pickle_error
from corral.rollout.buffers import env_columns
from corral.rollout.collector import Collector, CollectorReport
from corral.rollout.crew import ASSIST, SIGNALS, assist
from corral.rollout.env_migration import close_quietly, prepare_move
from corral.vec.api import EnvInfo, EnvReport
from corral.vec.env_stepper import CURRENT_ENV, OTHER_CALLS, STEPS_STARTED
from corral.vec.replay_log import EnvPosition
from corral.vec.serial import SerialVectorEnv

__all__ = [
    "HEARTBEATS",
    "NOT_STEPPING",
    "STEPS_COMPLETED",
    "STOP",
    "CollectRequest",
    "CommitMove",
    "PrepareMove",
    "Progress",
    "RestoreRequest",
    "RolloutWorkerSetup",
    "WorkerPlan",
    "WorkerReady",
    "serve",
]

Array = npt.NDArray[Any]
STOP = "stop"
"""Name of a shared array with one number. If that is not 0, workers end the rollout that they are collecting."""
HEARTBEATS = "heartbeats"
"""Name of a shared array with a row of ``HEARTBEAT_CELLS`` cells for each worker.

The first cells are those of ``vec.env_stepper``, which show that the worker makes progress. Cell ``STEPS_COMPLETED`` is
the number of complete steps of the rollout.
"""
STEPS_COMPLETED = 3
HEARTBEAT_CELLS = 8
"""Cells of a row: as many as fit into a cache line, so that workers do not slow each other down."""
NOT_STEPPING = -(2**62)
"""The number of started steps, smaller than any, while a worker is in no rollout."""


class Progress:
    """What a worker's row of the heartbeat table says about its part of the rollout."""

    def __init__(self, cells: npt.NDArray[np.int64]) -> None:
        self._cells = cells

    @property
    def steps_completed(self) -> int:
        """Steps of the rollout that are complete for all envs of the worker."""
        return int(self._cells[STEPS_COMPLETED])

    def env_in_step(self) -> int | None:
        """Return which of its envs the worker is stepping in the step after the completed ones; None: none of them.

        The worker counts each step of a rollout as it starts it, so it is in a step if it has started one more than it
        has completed. From the request of a rollout until the worker begins it, the count is ``NOT_STEPPING``.
        """
        is_stepping = self._cells[STEPS_STARTED] == self.steps_completed + 1
        return int(self._cells[CURRENT_ENV]) if is_stepping else None

    def clear(self) -> None:
        """Clear all but the completed steps, so that two deaths during the start of a process look the same."""
        self._cells[[CURRENT_ENV, STEPS_STARTED, OTHER_CALLS]] = 0, NOT_STEPPING, 0

    def resume(self, steps_completed: int) -> None:
        """Note that a new process continues after this many steps."""
        self._cells[[STEPS_STARTED, STEPS_COMPLETED]] = NOT_STEPPING, steps_completed

    def as_bytes(self) -> bytes:
        """Return a value that changes while the worker makes progress."""
        return self._cells.tobytes()


@dataclass(frozen=True, slots=True)
class RolloutWorkerSetup:
    """What a worker needs to build its envs."""

    factory: EnvFactory
    envs: range
    """The numbers of its envs in the run."""
    first_column: int
    """The number in the run of the env to which the first column of the rollouts in shared memory belongs."""
    seed: int
    n_steps: int
    masked: bool | None
    """Whether the envs mask actions; None for the first workers of a run, which reset their envs to find out."""
    max_rss: float | None
    """The limit on resident memory in MB; None for no limit."""


@dataclass(frozen=True, slots=True)
class WorkerReady:
    """A worker's first message: its envs are built."""

    env_info: EnvInfo
    has_masks: bool
    rss_mb: float
    """Resident memory of the process in MB."""


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """What the parent sends when it knows the spaces of all workers: how to act and how to help the learner."""

    actor: Any  # an ActorSpec
    shares: ShareSetup | None
    """How minibatches are divided; None if workers do not help the learner."""
    index: int
    """The number of the worker."""
    member: int
    """The worker's number among the processes that compute gradients; 0 if it does not."""
    crew: int
    """How many processes compute gradients."""
    opponent_table: OpponentTableSpec | None
    """The opponents, if the run chooses them. The table's shared memory is sent after the plan."""


@dataclass(frozen=True, slots=True)
class CollectRequest:
    """Asks a worker to collect a rollout."""

    iteration: int
    slot: int
    """Which of the rollouts in shared memory to write."""
    weights: int
    """Which of the copies of the weights to act with."""
    first_step: int = 0
    """Steps that are complete already."""


@dataclass(frozen=True, slots=True)
class RestoreRequest:
    """Asks a worker to bring its envs to these positions; the reply lists the envs that did not get there."""

    positions: list[EnvPosition]


@dataclass(frozen=True, slots=True)
class PrepareMove:
    """Asks a worker to prepare to own exactly these envs, some from other workers; the reply is whether it can."""

    envs: range
    positions: list[EnvPosition]


@dataclass(frozen=True, slots=True)
class CommitMove:
    """Asks a worker to use the envs that it prepared, or to discard them."""

    commit: bool


class _Stopped(Exception):
    """The parent ends the run."""


class _TooMuchMemory(Exception):
    """This process uses more memory than it may."""


def serve(pipe: Connection, setup: RolloutWorkerSetup) -> None:
    """Build the envs and the actor, then reply to requests until the parent sends ``CLOSE``."""
    owner: SerialVectorEnv | RolloutWorker | None = None  # what is closed at the end
    try:
        try:
            owner = env = _make_envs(setup)
            env_info = env.env_info if env is not None else probe_env(setup.factory)
            has_masks = bool(env.has_masks) if env is not None else bool(setup.masked)
        except BaseException as error:
            pipe.send_bytes(ERROR + pickle_error(error))
            return
        pipe.send_bytes(VALUE + cloudpickle.dumps(WorkerReady(env_info, has_masks, RssLimit.current_mb())))
        shared = shared_memory.attach(pipe).arrays
        try:
            plan: WorkerPlan = cloudpickle.loads(pipe.recv_bytes())
            opponent_sampler = None
            if plan.opponent_table is not None:
                opponent_sampler = OpponentTable(plan.opponent_table, shared_memory.attach(pipe).arrays)
            owner = worker = RolloutWorker(env, setup, plan, shared, opponent_sampler, env_info)
        except Exception as error:
            pipe.send_bytes(ERROR + pickle_error(error))
            return
        pipe.send_bytes(OK)
        _reply_to_requests(pipe, worker)
    finally:
        if owner is not None:
            owner.close()


def _reply_to_requests(pipe: Connection, worker: RolloutWorker) -> None:
    while (message := pipe.recv_bytes()) != CLOSE:
        try:
            if message[:1] == ASSIST:
                worker.assist(pipe, message)
                continue
            reply = VALUE + pickle.dumps(worker.reply_to(pickle.loads(message)))
        except _Stopped:
            return
        except (Exception, SystemExit) as error:
            reply = ERROR + pickle_error(error)
        pipe.send_bytes(reply)


def _make_envs(setup: RolloutWorkerSetup) -> SerialVectorEnv | None:
    """Return the worker's envs, reset if they are the first of the run; None if the worker has no envs now."""
    if not setup.envs:
        return None
    env = SerialVectorEnv(
        setup.factory, len(setup.envs), seed=setup.seed, infos="summed", first_env=setup.envs.start, recover=True
    )
    env.has_masks = setup.masked
    if setup.masked is None:
        try:
            env.reset_arrays()
        except BaseException:
            env.close()
            raise
    return env


class RolloutWorker:
    """A worker that has its plan: it replies to the parent's requests."""

    def __init__(
        self,
        env: SerialVectorEnv | None,
        setup: RolloutWorkerSetup,
        plan: WorkerPlan,
        shared: Mapping[str, Array],
        opponent_sampler: OpponentTable | None,
        env_info: EnvInfo,
    ) -> None:
        self._opponent_sampler = opponent_sampler
        self._setup = setup
        self._plan = plan
        self._shared = shared
        self._rollouts = [Rollout.from_arrays(slot, env_info.stacks) for slot in arrays_by_slot(shared, "slot")]
        self._weights = arrays_by_slot(shared, "weights")
        self._stop = memoryview(shared[STOP].data)
        self._heartbeat = (
            memoryview(shared[HEARTBEATS].data)
            .cast("B")
            .cast("q")[HEARTBEAT_CELLS * plan.index : HEARTBEAT_CELLS * (plan.index + 1)]
        )
        self._rss_limit = RssLimit(setup.max_rss)
        self._prepared: Collector | None = None
        self._set_collector(None if env is None else self._collector_for(env, setup.envs))
        self._shares: Shares | None = None
        if plan.shares is not None and plan.member:
            (arrays,) = arrays_by_slot(shared, "update")
            self._shares = Shares(plan.shares, arrays)
            (rollout,) = self._rollouts  # with overlap there are two, but then workers do not help the learner
            if (leaf := rollout.observations.get(ACTION_FEATURES)) is not None:
                self._shares.action_features = leaf.reshape(-1, *leaf.shape[2:])

    def _collector_for(self, env: SerialVectorEnv, envs: range) -> Collector:
        env.stepper.heartbeat, env.stepper.opponent_sampler = self._heartbeat, self._opponent_sampler
        actor = self._plan.actor.build(envs.start, len(envs))
        return Collector(env, actor, self._setup.n_steps, self._setup.seed, envs.start)

    def _set_collector(self, collector: Collector | None) -> None:
        """Collect with this collector from now on; None if the worker has no envs."""
        self._collector = collector
        if collector is not None:
            first = collector.first_env - self._setup.first_column
            stop = first + collector.env.num_envs
            self._slots = [env_columns(rollout, first, stop) for rollout in self._rollouts]

    def reply_to(self, request: Any) -> Any:
        """Do what a request asks for, and return the reply."""
        if isinstance(request, CollectRequest):
            return self._collect(request)
        if isinstance(request, RestoreRequest):
            assert self._collector is not None
            return self._collector.env.restore(request.positions)
        if isinstance(request, PrepareMove):
            return self._prepare_move(request)
        assert isinstance(request, CommitMove)
        return self._finish_move(request.commit)

    def _collect(self, request: CollectRequest) -> CollectorReport:
        self._heartbeat[STEPS_STARTED] = self._heartbeat[STEPS_COMPLETED] = request.first_step
        collector = self._collector
        if collector is None:
            return CollectorReport(EnvReport([]))
        collector.actor.load(self._weights[request.weights])
        if self._opponent_sampler is not None and request.iteration == request.first_step == 0:
            collector.reset_envs()
        try:
            return collector.collect(request.iteration, self._slots[request.slot], request.first_step, self._on_step)
        except _TooMuchMemory:
            return CollectorReport(collector.env.take_report(), finished=False)

    def _on_step(self, steps_done: int, any_episode_ended: bool) -> None:
        """Publish that a step is complete. Stop if the run ends or if, after an episode, memory is over its limit."""
        self._heartbeat[STEPS_COMPLETED] = steps_done
        if self._stop[0]:
            raise _Stopped
        if any_episode_ended and self._rss_limit.is_exceeded():
            raise _TooMuchMemory

    def _prepare_move(self, request: PrepareMove) -> bool:
        """Prepare to own exactly the requested envs; return whether that worked."""
        self._prepared = None
        if not request.envs:
            return True
        env = prepare_move(
            self._collector,
            request.envs,
            request.positions,
            factory=self._setup.factory,
            seed=self._setup.seed,
            heartbeat=self._heartbeat,
            opponent_sampler=self._opponent_sampler,
        )
        self._prepared = None if env is None else self._collector_for(env, request.envs)
        return env is not None

    def _finish_move(self, commit: bool) -> None:
        """Use the prepared envs if ``commit``, otherwise the current ones; close those that are not used."""
        used, unused = (self._prepared, self._collector) if commit else (self._collector, self._prepared)
        used_envs = _envs_of(used)
        unused_envs = [env for env in _envs_of(unused) if not any(env is other for other in used_envs)]
        if unused is not None:
            unused.env.closed = True  # but not all of its envs: some belong to ``used`` too
        if commit:
            self._set_collector(self._prepared)
        self._prepared = None
        for env in unused_envs:
            close_quietly(env)

    def close(self) -> None:
        """Close the envs."""
        if self._collector is not None:
            self._collector.env.close()

    def assist(self, pipe: Connection, message: bytes) -> None:
        """Compute this worker's part of the gradients of an update."""
        assert self._shares is not None
        with np.errstate(all="ignore"):  # the trainer checks the gradients
            assist(pipe, message, self._shares, self._shared[SIGNALS], self._plan.member, self._plan.crew)


def _envs_of(collector: Collector | None) -> list[Any]:
    return list(collector.env.envs) if collector is not None and isinstance(collector.env, SerialVectorEnv) else []


def arrays_by_slot(arrays: Mapping[str, Array], prefix: str) -> list[dict[str, Array]]:
    """Return the arrays called ``prefix/<slot>/<name>``, by slot and name."""
    slots: dict[int, dict[str, Array]] = {}
    for full_name, array in arrays.items():
        kind, _, slot_and_name = full_name.partition("/")
        if kind == prefix:
            slot, _, name = slot_and_name.partition("/")
            slots.setdefault(int(slot), {})[name] = array
    return [slots[slot] for slot in sorted(slots)]


def slot_specs(
    prefix: str, slot: int, named: Mapping[str, tuple[tuple[int, ...], Any]]
) -> list[shared_memory.ArraySpec]:
    """Return specs of shared arrays for one slot, under names that ``arrays_by_slot`` reads.

    ``named`` holds shape and dtype by name.
    """
    return [
        shared_memory.ArraySpec(f"{prefix}/{slot}/{name}", shape, np.dtype(dtype).str)
        for name, (shape, dtype) in named.items()
    ]
