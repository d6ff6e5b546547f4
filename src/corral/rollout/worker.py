"""The process of a rollout worker: envs, an actor and a collector. One message for a whole rollout, none for a step.

It imports no torch unless the actor needs it. While the learner updates, it may help to compute gradients. How far it
has come with a rollout it writes into shared memory, so that another can go on from there if it dies.
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
from corral.opponents.table import OpponentTable, OpponentTableSpec
from corral.ppo.shares import Shares, ShareSetup
from corral.processes import shared_memory
from corral.processes.rss_limit import RssLimit
from corral.processes.worker_bootstrap import CLOSE, ERROR, OK, VALUE, pickle_error
from corral.rollout.buffers import columns_of
from corral.rollout.collector import Collector, Segment
from corral.rollout.crew import ASSIST, SIGNALS, assist
from corral.rollout.env_migration import close_quietly, prepare_move
from corral.vec.api import EnvInfo, EnvReport
from corral.vec.env_stepper import STEPS_STARTED
from corral.vec.replay_log import EnvPosition
from corral.vec.serial import SerialVectorEnv

__all__ = [
    "DONE",
    "HEARTBEATS",
    "STOP",
    "CollectRequest",
    "CommitMove",
    "PrepareMove",
    "RestoreRequest",
    "RolloutWorkerSetup",
    "WorkerPlan",
    "WorkerReady",
    "serve",
]

Array = npt.NDArray[Any]
STOP = "stop"
"""An array of one number: other than 0, a rollout under way is no longer wanted."""
HEARTBEATS = "pulses"
"""An array with a line for each worker: its signs of life (see ``vec.env_stepper``), and how many steps are done."""
DONE, LINE = 3, 8


@dataclass(frozen=True, slots=True)
class RolloutWorkerSetup:
    """Which envs a worker has."""

    factory: EnvFactory
    envs: range
    seed: int
    n_steps: int
    masked: bool | None
    """Whether the envs mask their actions; None for the first workers of a run, which find out."""
    max_rss: float | None
    """MB."""


@dataclass(frozen=True, slots=True)
class WorkerReady:
    """A worker's first words: what its envs are like, and how much memory it uses with them, in MB."""

    env_info: EnvInfo
    has_masks: bool
    memory: float


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """How to act and help, once the parent has seen every worker's spaces."""

    actor: Any  # an ActorSpec
    shares: ShareSetup | None
    index: int
    member: int
    crew: int
    opponent_table: OpponentTableSpec | None
    """Who may play the other side; its memory follows the plan."""


@dataclass(frozen=True, slots=True)
class CollectRequest:
    """Which rollout to collect, into which of the rollout arrays, with which of the weights, from which step on."""

    iteration: int
    slot: int
    weights: int
    first_step: int = 0


@dataclass(frozen=True, slots=True)
class RestoreRequest:
    """Where the worker's envs should be; the answer says which of them do not get there."""

    positions: list[EnvPosition]


@dataclass(frozen=True, slots=True)
class PrepareMove:
    """Prepare to own exactly these envs, some of them from elsewhere; the answer says whether that worked."""

    envs: range
    positions: list[EnvPosition]


@dataclass(frozen=True, slots=True)
class CommitMove:
    """Go on with what was prepared, or forget it."""

    commit: bool


class _Stopped(Exception):
    """The run is over."""


class _Outgrown(Exception):
    """This process uses too much memory."""


def serve(pipe: Connection, setup: RolloutWorkerSetup) -> None:
    """Make the envs and the actor, then collect and help as the pipe says until it says close."""
    owner: SerialVectorEnv | RolloutWorker | None = None
    try:
        try:
            owner = env = _make(setup)
            env_info = env.env_info if env is not None else probe_env(setup.factory)
            masked = bool(env.has_masks) if env is not None else bool(setup.masked)
        except BaseException as error:
            pipe.send_bytes(ERROR + pickle_error(error))
            return
        pipe.send_bytes(VALUE + cloudpickle.dumps(WorkerReady(env_info, masked, RssLimit.now())))
        shared = shared_memory.attach(pipe).arrays
        try:
            plan: WorkerPlan = cloudpickle.loads(pipe.recv_bytes())
            opponent_sampler = (
                None
                if plan.opponent_table is None
                else OpponentTable(plan.opponent_table, shared_memory.attach(pipe).arrays)
            )
            serving = RolloutWorker(env, setup, plan, shared, opponent_sampler, env_info)
        except Exception as error:
            pipe.send_bytes(ERROR + pickle_error(error))
            return
        pipe.send_bytes(OK)
        owner = serving
        while (message := pipe.recv_bytes()) != CLOSE:
            try:
                if message[:1] == ASSIST:
                    serving.assist(pipe, message)
                    continue
                reply = VALUE + pickle.dumps(serving.answer(pickle.loads(message)))
            except _Stopped:
                return
            except (Exception, SystemExit) as error:
                reply = ERROR + pickle_error(error)
            pipe.send_bytes(reply)
    finally:
        if owner is not None:
            owner.close()


def _make(setup: RolloutWorkerSetup) -> SerialVectorEnv | None:
    """The worker's envs, reset if they are a run's first; None if it has none for now."""
    if not setup.envs:
        return None
    n, first = len(setup.envs), setup.envs.start
    env = SerialVectorEnv(setup.factory, n, seed=setup.seed, infos="summed", first_env=first, heal=True)
    env.has_masks = setup.masked
    if setup.masked is None:
        try:
            env.reset_arrays()
        except BaseException:
            env.close()
            raise
    return env


class RolloutWorker:
    """A worker that knows its plan."""

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
            memoryview(shared[HEARTBEATS].data).cast("B").cast("q")[LINE * plan.index : LINE * (plan.index + 1)]
        )
        self._memory = RssLimit(setup.max_rss)
        self._prepared: Collector | None = None
        self._set_collector(None if env is None else self._collector_for(env, setup.envs))
        self._shares: Shares | None = None
        if plan.shares is not None and plan.member:
            (arrays,) = arrays_by_slot(shared, "update")
            self._shares = Shares(plan.shares, arrays)
            (rollout,) = self._rollouts  # with overlap there are two, and no helpers
            if (leaf := rollout.observations.get(ACTION_FEATURES)) is not None:
                self._shares.action_features = leaf.reshape(-1, *leaf.shape[2:])

    def _collector_for(self, env: SerialVectorEnv, envs: range) -> Collector:
        env.stepper.heartbeat, env.stepper.opponent_sampler = self._heartbeat, self._opponent_sampler
        actor = self._plan.actor.build(envs.start, len(envs))
        return Collector(env, actor, self._setup.n_steps, self._setup.seed, envs.start)

    def _set_collector(self, collector: Collector | None) -> None:
        """From now on this worker's envs are the collector's: none, if there is no collector."""
        self._collector = collector
        if collector is not None:
            first, stop = collector.first_env, collector.first_env + collector.env.num_envs
            self._slots = [columns_of(rollout, first, stop) for rollout in self._rollouts]

    def answer(self, request: Any) -> Any:
        if isinstance(request, CollectRequest):
            return self._collect(request)
        if isinstance(request, RestoreRequest):
            assert self._collector is not None
            return self._collector.env.restore(request.positions)
        if isinstance(request, PrepareMove):
            return self._prepare(request)
        assert isinstance(request, CommitMove)
        return self._settle(request.commit)

    def _collect(self, request: CollectRequest) -> Segment:
        self._heartbeat[STEPS_STARTED] = self._heartbeat[DONE] = request.first_step
        collector = self._collector
        if collector is None:
            return Segment(EnvReport([]))
        collector.actor.load(self._weights[request.weights])
        if self._opponent_sampler is not None and request.iteration == request.first_step == 0:
            collector.restart()
        try:
            return collector.collect(request.iteration, self._slots[request.slot], request.first_step, self._watch)
        except _Outgrown:
            return Segment(collector.env.drain(), finished=False)

    def _watch(self, done: int, ended: bool) -> None:
        """A step is complete: nothing of it is lost if this process ends now."""
        self._heartbeat[DONE] = done
        if self._stop[0]:
            raise _Stopped
        if ended and self._memory.outgrown():
            raise _Outgrown

    def _prepare(self, request: PrepareMove) -> bool:
        self._prepared = None
        if not request.envs:
            return True
        how = self._setup.factory, self._setup.seed, self._heartbeat, self._opponent_sampler
        env = prepare_move(self._collector, request.envs, request.positions, *how)
        self._prepared = None if env is None else self._collector_for(env, request.envs)
        return env is not None

    def _settle(self, commit: bool) -> None:
        """Close the copies that are not needed: of envs that left, or of envs that did not come after all."""
        before, after = (_envs_of(collector) for collector in (self._collector, self._prepared))
        kept, left = (after, before) if commit else (before, after)
        unwanted = [env for env in left if not any(env is other for other in kept)]
        given_up = self._collector if commit else self._prepared
        if given_up is not None:
            given_up.env.closed = True  # some of its envs live on
        if commit:
            self._set_collector(self._prepared)
        self._prepared = None
        for env in unwanted:
            close_quietly(env)

    def close(self) -> None:
        if self._collector is not None:
            self._collector.env.close()

    def assist(self, pipe: Connection, message: bytes) -> None:
        assert self._shares is not None
        with np.errstate(all="ignore"):  # the trainer looks at what comes of it
            assist(pipe, message, self._shares, self._shared[SIGNALS], self._plan.member, self._plan.crew)


def _envs_of(collector: Collector | None) -> list[Any]:
    return list(collector.env.envs) if collector is not None and isinstance(collector.env, SerialVectorEnv) else []


def arrays_by_slot(arrays: Mapping[str, Array], prefix: str) -> list[dict[str, Array]]:
    """The arrays called ``prefix/<number>/<name>``, by number and name."""
    found: dict[int, dict[str, Array]] = {}
    for name, array in arrays.items():
        kind, _, rest = name.partition("/")
        if kind == prefix:
            number, _, own = rest.partition("/")
            found.setdefault(int(number), {})[own] = array
    return [found[number] for number in sorted(found)]


def specs(prefix: str, number: int, named: Mapping[str, tuple[tuple[int, ...], Any]]) -> list[shared_memory.ArraySpec]:
    """Arrays to share, under names that ``arrays_by_slot`` finds again."""
    return [
        shared_memory.ArraySpec(f"{prefix}/{number}/{name}", shape, np.dtype(dtype).str)
        for name, (shape, dtype) in named.items()
    ]
