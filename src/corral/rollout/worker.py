"""The process of a rollout worker: envs, an actor and a collector. One message for a whole rollout, none for a step.

It imports no torch unless the actor needs it. While the learner updates, it may help to compute gradients.
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

from corral.core.envs import EnvFactory
from corral.core.types import Rollout, Seconds
from corral.ppo.shares import Shares, ShareSetup
from corral.rollout.arrays import columns_of
from corral.rollout.collector import Collector, Segment, Stopped
from corral.rollout.crew import ASSIST, SIGNALS, assist
from corral.rollout.moving import MovingEnv, close_quietly, give, take
from corral.vec import shared_memory
from corral.vec.api import EnvFacts
from corral.vec.birth import CLOSE, ERROR, OK, VALUE, pickle_error
from corral.vec.serial import SerialVectorEnv

__all__ = [
    "CollectRequest",
    "GiveRequest",
    "Hello",
    "RolloutWorkerSetup",
    "SettleRequest",
    "TakeRequest",
    "WorkerPlan",
    "serve",
]

Array = npt.NDArray[Any]
STOP = "stop"
"""An array of one number: other than 0, a rollout under way is no longer wanted."""


@dataclass(frozen=True, slots=True)
class RolloutWorkerSetup:
    """Which envs a worker has."""

    factory: EnvFactory
    first_env: int
    n: int
    seed: int
    n_steps: int
    movable: bool
    """Whether envs may be given to other workers later."""


@dataclass(frozen=True, slots=True)
class Hello:
    """A worker's first words: what its envs are like."""

    facts: EnvFacts
    has_masks: bool


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """How to act and help, once the parent has seen every worker's spaces."""

    actor: Any  # an ActorSetup
    shares: ShareSetup | None
    member: int
    crew: int


@dataclass(frozen=True, slots=True)
class CollectRequest:
    """Which rollout to collect, into which of the rollout arrays, with which of the weights."""

    iteration: int
    slot: int
    weights: int


@dataclass(frozen=True, slots=True)
class GiveRequest:
    """Tell where these envs are."""

    envs: list[int]


@dataclass(frozen=True, slots=True)
class TakeRequest:
    """Prepare to own exactly these envs, some of them from elsewhere; the answer says whether that worked."""

    envs: range
    moving: dict[int, MovingEnv]


@dataclass(frozen=True, slots=True)
class SettleRequest:
    """Go on with what was prepared, or forget it."""

    agreed: bool


def serve(pipe: Connection, setup: RolloutWorkerSetup) -> None:
    """Make the envs and the actor, then collect and help as the pipe says until it says close."""
    owner: SerialVectorEnv | _Serving | None = None
    try:
        try:
            owner = env = SerialVectorEnv(
                setup.factory,
                setup.n,
                seed=setup.seed,
                infos="summed",
                first_env=setup.first_env,
                keep_actions=setup.movable,
            )
            env.reset_arrays()
        except BaseException as error:
            pipe.send_bytes(ERROR + pickle_error(error))
            return
        pipe.send_bytes(VALUE + cloudpickle.dumps(Hello(env.facts, bool(env.has_masks))))
        shared = shared_memory.attach(pipe).arrays
        try:
            plan: WorkerPlan = cloudpickle.loads(pipe.recv_bytes())
            serving = _Serving(env, setup, plan, shared)
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
            except Stopped:
                return
            except (Exception, SystemExit) as error:
                reply = ERROR + pickle_error(error)
            pipe.send_bytes(reply)
    finally:
        if owner is not None:
            owner.close()


class _Serving:
    """A worker that knows its plan."""

    def __init__(
        self, env: SerialVectorEnv, setup: RolloutWorkerSetup, plan: WorkerPlan, shared: Mapping[str, Array]
    ) -> None:
        self._setup = setup
        self._plan = plan
        self._shared = shared
        self._rollouts = [Rollout.of(slot) for slot in group(shared, "slot")]
        self._weights = group(shared, "weights")
        self._stop = memoryview(shared[STOP].data)
        actor = plan.actor.build(setup.first_env, setup.n)
        self._own(Collector(env, actor, setup.n_steps, setup.seed, setup.first_env))
        self._prepared: Collector | None = None
        self._shares: Shares | None = None
        if plan.shares is not None and plan.member:
            (arrays,) = group(shared, "update")
            self._shares = Shares(plan.shares, arrays)

    def _own(self, collector: Collector | None) -> None:
        """From now on this worker's envs are the collector's: none, if there is no collector."""
        self._collector = collector
        if collector is not None:
            first, stop = collector.first_env, collector.first_env + collector.env.num_envs
            self._slots = [columns_of(rollout, first, stop) for rollout in self._rollouts]

    def answer(self, request: Any) -> Any:
        if isinstance(request, CollectRequest):
            if self._collector is None:
                return Segment([], [], Seconds())
            self._collector.actor.load(self._weights[request.weights])
            return self._collector.collect(request.iteration, self._slots[request.slot], lambda: self._stop[0] != 0)
        if isinstance(request, GiveRequest):
            return {} if self._collector is None else give(self._collector, request.envs)
        if isinstance(request, TakeRequest):
            return self._prepare(request)
        assert isinstance(request, SettleRequest)
        return self._settle(request.agreed)

    def _prepare(self, request: TakeRequest) -> bool:
        self._prepared = None
        if not request.envs:
            return True
        setup = self._setup
        actor = self._plan.actor.build(request.envs.start, len(request.envs))
        how = setup.factory, actor, setup.n_steps, setup.seed
        self._prepared = take(self._collector, request.envs, request.moving, *how)
        return self._prepared is not None

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
