"""The ``worker`` source: processes that own envs and a copy of the policy, and write whole rollouts where we read them.

There is no message per step and nothing to put together: workers write into the columns of their envs, in memory that
the learner sees. Weights lie there twice, so that a worker that is still reading one version never sees the next.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import cloudpickle
import numpy as np
import numpy.typing as npt

from corral.core.actions import ActionCodec
from corral.core.envs import EnvFactory
from corral.core.errors import UsageError, WorkerDied
from corral.core.spaces import Layout
from corral.core.types import Rollout, Weights
from corral.ppo.shares import Shares, ShareSetup
from corral.rollout import worker
from corral.rollout.arrays import named_columns
from corral.rollout.balance import Balance
from corral.rollout.collector import Segment, join
from corral.rollout.crew import SIGNALS, ProcessCrew
from corral.rollout.moving import MovingEnv
from corral.vec import shared_memory
from corral.vec.api import EnvFacts
from corral.vec.pool import StartMethod, WorkerPool, split_envs

__all__ = ["WorkerSource"]


class WorkerSource:
    """``n_envs`` envs in ``num_workers`` processes. Made in two steps: envs first, then, knowing them, the policy."""

    def __init__(
        self,
        factory: EnvFactory,
        n_envs: int,
        num_workers: int,
        n_steps: int,
        seed: int,
        start_method: StartMethod = "auto",
        overlap: bool = False,
        adaptive: bool = False,
    ) -> None:
        self.n_envs, self.n_steps = n_envs, n_steps
        self._n_slots = 2 if overlap else 1
        self._begun = 0
        self._version = 0
        self._stop: npt.NDArray[np.int64] | None = None
        self._balance = Balance(n_envs, num_workers) if adaptive else None
        self.moves = 0
        """How often envs were given to other workers."""
        shares = self.shares = split_envs(n_envs, num_workers)
        self._pool = WorkerPool(
            worker.serve,
            shares,
            lambda envs: worker.RolloutWorkerSetup(factory, envs.start, len(envs), seed, n_steps, adaptive),
            start_method,
            seed,
        )
        try:
            hellos: list[worker.Hello] = [cloudpickle.loads(reply[1:]) for reply in self._replies_at_start()]
            for other in hellos[1:]:
                hellos[0].facts.check_same(other.facts)
            if len({hello.has_masks for hello in hellos}) > 1:
                raise UsageError("some envs offer action masks and some do not; all or none should")
        except BaseException:
            self.close()
            raise
        self.facts: EnvFacts = hellos[0].facts
        self.has_masks = hellos[0].has_masks

    def connect(self, actor: Any, weights: Weights, shares: ShareSetup | None, helpers: int) -> ProcessCrew | None:
        """Give the workers memory, an actor and, if there are ``helpers``, a part in the update; returns that crew."""
        layout, codec = Layout(self.facts.observation_space), ActionCodec(self.facts.action_space)
        rollout = named_columns(layout, codec, self.n_steps, self.n_envs, self.has_masks)
        specs = [spec for slot in range(self._n_slots) for spec in worker.specs("slot", slot, rollout)]
        for slot in range(2):
            named = {name: (tuple(tensor.shape), _dtype(tensor)) for name, tensor in weights.items()}
            specs += worker.specs("weights", slot, named)
        if shares is not None and helpers:
            specs += worker.specs("update", 0, shares.arrays())
            specs.append(shared_memory.ArraySpec(SIGNALS, *ProcessCrew.signals(helpers)))
        specs.append(shared_memory.ArraySpec(worker.STOP, (1,), "<i8"))
        shared = None
        try:
            shared = shared_memory.create(specs)
            shared.arrays[worker.STOP][0] = 0
            for i, w in enumerate(self._pool.workers):
                member = i + 1 if i < helpers else 0
                plan = worker.WorkerPlan(actor, shares if helpers else None, member, helpers + 1)
                shared_memory.send(shared, w.pipe, w.pid)
                self._pool.post(w, bytes(cloudpickle.dumps(plan)))
            self._replies_at_start()
            arrays = shared.arrays
        except BaseException:
            self.close()
            raise
        finally:
            if shared is not None:
                shared.close()
        self._stop = arrays[worker.STOP]
        self._slots = [Rollout.of(slot) for slot in worker.group(arrays, "slot")]
        self._weights = worker.group(arrays, "weights")
        if shares is None or not helpers:
            return None
        (update,) = worker.group(arrays, "update")
        return ProcessCrew(Shares(shares, update), arrays[SIGNALS], self._pool, helpers)

    def publish(self, weights: Weights, version: int) -> None:
        """Write the weights that the next rollout will use."""
        self._version = version  # one more than the last, so that it goes to the other of the two
        target = self._weights[version % 2]
        for name, tensor in weights.items():
            target[name][...] = tensor.cpu().numpy() if hasattr(tensor, "cpu") else tensor

    def begin(self, iteration: int) -> None:
        """Send the workers off."""
        if self._balance is not None and (wanted := self._balance.proposal(self.shares)) is not None:
            self._balance.settle(self.move(wanted))
        self._begun += 1
        request = worker.CollectRequest(iteration, self._begun % self._n_slots, self._version % 2)
        message = pickle.dumps(request)
        for w in self._pool.workers:
            self._pool.post(w, message)

    def collect(self) -> Rollout:
        """Wait until every worker is done."""
        segments: list[Segment] = [pickle.loads(reply[1:]) for reply in self._pool.replies()]
        if self._balance is not None:
            self._balance.note([segment.seconds.act + segment.seconds.step for segment in segments])
        return join(self._slots[self._begun % self._n_slots], segments)

    def move(self, shares: list[range]) -> bool:
        """Give each worker exactly these envs; False, and all as before, if an env does not come back the same."""
        moving: dict[int, MovingEnv] = {}
        changes = list(zip(self.shares, shares, strict=True))
        for given in self._ask([worker.GiveRequest([env for env in old if env not in new]) for old, new in changes]):
            if given is None:
                return False
            moving.update(given)
        prepared = self._ask(
            [worker.TakeRequest(new, {env: moving[env] for env in new if env not in old}) for old, new in changes]
        )
        agreed = all(prepared)
        self._ask([worker.SettleRequest(agreed)] * len(shares))
        if agreed:
            self.shares = shares
            self.moves += 1
            for w, envs in zip(self._pool.workers, shares, strict=True):
                w.envs = envs
        return agreed

    def _ask(self, requests: Sequence[Any]) -> list[Any]:
        for w, request in zip(self._pool.workers, requests, strict=True):
            self._pool.post(w, bytes(cloudpickle.dumps(request)))
        return [pickle.loads(reply[1:]) for reply in self._pool.replies()]

    def pids(self) -> list[int]:
        """The workers' process ids."""
        return self._pool.pids

    def close(self) -> None:
        """Stop the workers, also in the middle of a rollout."""
        if self._stop is not None:
            self._stop[0] = 1
        self._pool.close()

    def _replies_at_start(self) -> list[bytes]:
        try:
            return self._pool.replies()
        except WorkerDied as error:
            error.exit_code = 2  # before its first step: a wrong set-up
            raise


def _dtype(tensor: Any) -> str:
    return np.dtype(str(tensor.dtype).removeprefix("torch.")).str
