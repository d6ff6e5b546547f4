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
from corral.ppo.shares import Shares, ShareSetup
from corral.rollout.arrays import RolloutArrays
from corral.rollout.collector import Collector
from corral.rollout.crew import ASSIST, SIGNALS, assist
from corral.vec import shared_memory
from corral.vec.api import EnvFacts
from corral.vec.birth import CLOSE, ERROR, OK, VALUE, pickle_error
from corral.vec.serial import SerialVectorEnv

__all__ = ["CollectRequest", "Hello", "RolloutWorkerSetup", "WorkerPlan", "serve"]

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class RolloutWorkerSetup:
    """Which envs a worker has."""

    factory: EnvFactory
    first_env: int
    n: int
    seed: int
    n_steps: int


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


def serve(pipe: Connection, setup: RolloutWorkerSetup) -> None:
    """Make the envs and the actor, then collect and help as the pipe says until it says close."""
    try:
        env = SerialVectorEnv(setup.factory, setup.n, seed=setup.seed, infos="summed", first_env=setup.first_env)
        env.reset_arrays()
    except BaseException as error:
        pipe.send_bytes(ERROR + pickle_error(error))
        return
    try:
        pipe.send_bytes(VALUE + cloudpickle.dumps(Hello(env.facts, bool(env.has_masks))))
        shared = shared_memory.attach(pipe).arrays
        try:
            plan: WorkerPlan = cloudpickle.loads(pipe.recv_bytes())
            serving = _Serving(env, setup, plan, shared)
        except Exception as error:
            pipe.send_bytes(ERROR + pickle_error(error))
            return
        pipe.send_bytes(OK)
        while (message := pipe.recv_bytes()) != CLOSE:
            if message[:1] == ASSIST:
                serving.assist(pipe, message)
                continue
            try:
                reply = VALUE + serving.collect(pickle.loads(message))
            except (Exception, SystemExit) as error:
                reply = ERROR + pickle_error(error)
            pipe.send_bytes(reply)
    finally:
        env.close()


class _Serving:
    """A worker that knows its plan."""

    def __init__(
        self, env: SerialVectorEnv, setup: RolloutWorkerSetup, plan: WorkerPlan, shared: Mapping[str, Array]
    ) -> None:
        columns = slice(setup.first_env, setup.first_env + setup.n)
        slots = group(shared, "slot")
        self._slots = [RolloutArrays.of(slot).envs(columns.start, columns.stop) for slot in slots]
        self._weights = group(shared, "weights")
        self._actor = plan.actor.build(setup.first_env, setup.n)
        self._collector = Collector(env, self._actor, setup.n_steps, setup.seed, setup.first_env)
        self._plan = plan
        self._shared = shared
        self._shares: Shares | None = None
        if plan.shares is not None and plan.member:
            (arrays,) = group(shared, "update")
            self._shares = Shares(plan.shares, arrays)

    def collect(self, request: CollectRequest) -> bytes:
        self._actor.load(self._weights[request.weights])
        return pickle.dumps(self._collector.collect(request.iteration, self._slots[request.slot]))

    def assist(self, pipe: Connection, message: bytes) -> None:
        assert self._shares is not None
        with np.errstate(all="ignore"):  # the trainer looks at what comes of it
            assist(pipe, message, self._shares, self._shared[SIGNALS], self._plan.member, self._plan.crew)


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
