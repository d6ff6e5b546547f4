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
from corral.envs.lifecycle import facts_of
from corral.opponents.table import Lineup, LineupSetup
from corral.ppo.shares import Shares, ShareSetup
from corral.processes import shared_memory
from corral.processes.rss_limit import Memory
from corral.processes.worker_bootstrap import CLOSE, ERROR, OK, VALUE, pickle_error
from corral.rollout.buffers import columns_of
from corral.rollout.collector import Collector, Segment
from corral.rollout.crew import ASSIST, SIGNALS, assist
from corral.rollout.env_migration import close_quietly, take
from corral.vec.api import Drained, EnvFacts
from corral.vec.env_stepper import BEAT
from corral.vec.replay_log import EnvPosition
from corral.vec.serial import SerialVectorEnv

__all__ = [
    "DONE",
    "PULSES",
    "STOP",
    "CollectRequest",
    "Hello",
    "RestoreRequest",
    "RolloutWorkerSetup",
    "SettleRequest",
    "TakeRequest",
    "WorkerPlan",
    "serve",
]

Array = npt.NDArray[Any]
STOP = "stop"
"""An array of one number: other than 0, a rollout under way is no longer wanted."""
PULSES = "pulses"
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
class Hello:
    """A worker's first words: what its envs are like, and how much memory it uses with them, in MB."""

    facts: EnvFacts
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
    lineup: LineupSetup | None
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
class TakeRequest:
    """Prepare to own exactly these envs, some of them from elsewhere; the answer says whether that worked."""

    envs: range
    positions: list[EnvPosition]


@dataclass(frozen=True, slots=True)
class SettleRequest:
    """Go on with what was prepared, or forget it."""

    agreed: bool


class _Stopped(Exception):
    """The run is over."""


class _Outgrown(Exception):
    """This process uses too much memory."""


def serve(pipe: Connection, setup: RolloutWorkerSetup) -> None:
    """Make the envs and the actor, then collect and help as the pipe says until it says close."""
    owner: SerialVectorEnv | _Serving | None = None
    try:
        try:
            owner = env = _make(setup)
            facts = env.facts if env is not None else facts_of(setup.factory)
            masked = bool(env.has_masks) if env is not None else bool(setup.masked)
        except BaseException as error:
            pipe.send_bytes(ERROR + pickle_error(error))
            return
        pipe.send_bytes(VALUE + cloudpickle.dumps(Hello(facts, masked, Memory.now())))
        shared = shared_memory.attach(pipe).arrays
        try:
            plan: WorkerPlan = cloudpickle.loads(pipe.recv_bytes())
            seats = None if plan.lineup is None else Lineup(plan.lineup, shared_memory.attach(pipe).arrays)
            serving = _Serving(env, setup, plan, shared, seats, facts)
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


class _Serving:
    """A worker that knows its plan."""

    def __init__(
        self,
        env: SerialVectorEnv | None,
        setup: RolloutWorkerSetup,
        plan: WorkerPlan,
        shared: Mapping[str, Array],
        seats: Lineup | None,
        facts: EnvFacts,
    ) -> None:
        self._seats = seats
        self._setup = setup
        self._plan = plan
        self._shared = shared
        self._rollouts = [Rollout.of(slot, facts.stacks) for slot in group(shared, "slot")]
        self._weights = group(shared, "weights")
        self._stop = memoryview(shared[STOP].data)
        self._pulse = memoryview(shared[PULSES].data).cast("B").cast("q")[LINE * plan.index : LINE * (plan.index + 1)]
        self._memory = Memory(setup.max_rss)
        self._prepared: Collector | None = None
        self._own(None if env is None else self._collector_for(env, setup.envs))
        self._shares: Shares | None = None
        if plan.shares is not None and plan.member:
            (arrays,) = group(shared, "update")
            self._shares = Shares(plan.shares, arrays)
            (rollout,) = self._rollouts  # with overlap there are two, and no helpers
            if (leaf := rollout.observations.get(ACTION_FEATURES)) is not None:
                self._shares.action_features = leaf.reshape(-1, *leaf.shape[2:])

    def _collector_for(self, env: SerialVectorEnv, envs: range) -> Collector:
        env.stepper.pulse, env.stepper.seats = self._pulse, self._seats
        actor = self._plan.actor.build(envs.start, len(envs))
        return Collector(env, actor, self._setup.n_steps, self._setup.seed, envs.start)

    def _own(self, collector: Collector | None) -> None:
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
        if isinstance(request, TakeRequest):
            return self._prepare(request)
        assert isinstance(request, SettleRequest)
        return self._settle(request.agreed)

    def _collect(self, request: CollectRequest) -> Segment:
        self._pulse[BEAT] = self._pulse[DONE] = request.first_step
        collector = self._collector
        if collector is None:
            return Segment(Drained([]))
        collector.actor.load(self._weights[request.weights])
        if self._seats is not None and request.iteration == request.first_step == 0:
            collector.restart()
        try:
            return collector.collect(request.iteration, self._slots[request.slot], request.first_step, self._watch)
        except _Outgrown:
            return Segment(collector.env.drain(), finished=False)

    def _watch(self, done: int, ended: bool) -> None:
        """A step is complete: nothing of it is lost if this process ends now."""
        self._pulse[DONE] = done
        if self._stop[0]:
            raise _Stopped
        if ended and self._memory.outgrown():
            raise _Outgrown

    def _prepare(self, request: TakeRequest) -> bool:
        self._prepared = None
        if not request.envs:
            return True
        how = self._setup.factory, self._setup.seed, self._pulse, self._seats
        env = take(self._collector, request.envs, request.positions, *how)
        self._prepared = None if env is None else self._collector_for(env, request.envs)
        return env is not None

    def _settle(self, agreed: bool) -> None:
        """Close the copies that are not needed: of envs that left, or of envs that did not come after all."""
        before, after = (_envs_of(collector) for collector in (self._collector, self._prepared))
        kept, left = (after, before) if agreed else (before, after)
        unwanted = [env for env in left if not any(env is other for other in kept)]
        given_up = self._collector if agreed else self._prepared
        if given_up is not None:
            given_up.env.closed = True  # some of its envs live on
        if agreed:
            self._own(self._prepared)
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


def group(arrays: Mapping[str, Array], prefix: str) -> list[dict[str, Array]]:
    """The arrays called ``prefix/<number>/<name>``, by number and name."""
    found: dict[int, dict[str, Array]] = {}
    for name, array in arrays.items():
        kind, _, rest = name.partition("/")
        if kind == prefix:
            number, _, own = rest.partition("/")
            found.setdefault(int(number), {})[own] = array
    return [found[number] for number in sorted(found)]


def specs(prefix: str, number: int, named: Mapping[str, tuple[tuple[int, ...], Any]]) -> list[shared_memory.ArraySpec]:
    """Arrays to share, under names that ``group`` finds again."""
    return [
        shared_memory.ArraySpec(f"{prefix}/{number}/{name}", shape, np.dtype(dtype).str)
        for name, (shape, dtype) in named.items()
    ]
