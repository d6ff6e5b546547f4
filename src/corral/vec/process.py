"""Envs in worker processes, several in each. Arrays are shared; the pipes carry no data of a step."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import cloudpickle
import gymnasium as gym

from corral.core.envs import EnvFactory
from corral.core.errors import UsageError, WorkerDied
from corral.core.machine import available_cores
from corral.core.types import InfoSums
from corral.vec import birth, shared_memory, worker
from corral.vec.api import CallState, CorralVectorEnv, EnvFacts, InfoMode, InfoRow, StepArrays
from corral.vec.bells import CELLS, StepCaller, cells_shape
from corral.vec.pool import PoolWorker, StartMethod, WorkerPool, split_envs

__all__ = ["ProcessVectorEnv"]


class ProcessVectorEnv(CorralVectorEnv):
    """N envs in ``num_workers`` processes."""

    def __init__(
        self,
        factory: EnvFactory,
        n_envs: int,
        *,
        num_workers: int | None = None,
        start_method: StartMethod = "auto",
        seed: int | None = None,
        infos: InfoMode = "full",
    ) -> None:
        shares = split_envs(n_envs, num_workers or min(n_envs, available_cores()))
        self.state = CallState.FAILED
        self._pool = WorkerPool(
            worker.serve,
            shares,
            lambda envs: worker.WorkerSetup(
                factory, envs.start, len(envs), seed, infos, shares.index(envs), len(shares) <= available_cores()
            ),
            start_method,
            seed,
        )
        self._workers = self._pool.workers
        try:
            facts: list[EnvFacts] = [cloudpickle.loads(reply[1:]) for reply in self._pool.replies()]
            for other in facts[1:]:
                facts[0].check_same(other)
            super().__init__(facts[0], n_envs)
            self._share_memory()
        except BaseException as error:
            self._pool.close()
            if isinstance(error, WorkerDied):
                error.exit_code = 2  # before its first step: a wrong set-up
            raise

    def _share_memory(self) -> None:
        named = StepArrays.named(self.layout, self.codec, self.num_envs)
        specs = [shared_memory.ArraySpec(name, shape, dtype.str) for name, (shape, dtype) in named.items()]
        specs.append(shared_memory.ArraySpec(CELLS, cells_shape(len(self._workers)), "<i8"))
        shared = shared_memory.create(specs)
        try:
            self._caller = StepCaller(self._pool, shared.arrays[CELLS])
            self.arrays = StepArrays.of({name: array for name, array in shared.arrays.items() if name != CELLS})
            for w in self._workers:
                shared_memory.send(shared, w.pipe, w.pid)
            self._pool.replies()
        finally:
            shared.close()

    # ---- the contract ----------------------------------------------------------------------------------------

    def _reset(self, seeds: list[int | None], options: list[dict[str, Any] | None]) -> list[InfoRow]:
        def message(w: PoolWorker) -> bytes:
            part = slice(w.envs.start, w.envs.stop)
            return worker.RESET + bytes(cloudpickle.dumps(worker.ResetRequest(seeds[part], options[part])))

        replies: list[worker.ResetReply] = self._ask(message)
        if len({reply.has_masks for reply in replies}) > 1:
            raise UsageError("some envs offer action masks and some do not; all or none should")
        self.has_masks = replies[0].has_masks
        return [row for w, reply in zip(self._workers, replies, strict=True) for row in _shifted(reply.rows, w)]

    def send(self) -> None:
        """Tell every worker to step."""
        self._expect(CallState.IDLE, "step")
        self.state = CallState.FAILED
        self._caller.ask()
        self.state = CallState.STEPPING

    def recv(self) -> list[InfoRow]:
        """Wait until every worker has stepped."""
        self._expect(CallState.STEPPING, "finish a step of")
        self.state = CallState.FAILED
        rows: list[InfoRow] = []
        for w, said in zip(self._workers, self._caller.answers(), strict=True):
            if said is not None:
                rows += _shifted(pickle.loads(said[1:]), w)
        self.state = CallState.IDLE
        return rows

    def apply(self, function: Callable[[gym.Env[Any, Any]], Any], envs: Sequence[int] | None = None) -> list[Any]:
        """Send ``function`` (by cloudpickle) to the envs' workers and call it there."""
        self._expect(CallState.IDLE, "use")
        wanted = list(range(self.num_envs) if envs is None else envs)
        asked = [w for w in self._workers if any(i in w.envs for i in wanted)]

        def message(w: PoolWorker) -> bytes:
            theirs = [i - w.envs.start for i in wanted if i in w.envs]
            return worker.APPLY + bytes(cloudpickle.dumps(worker.ApplyRequest(function, theirs)))

        results: dict[int, Any] = {}
        for w, values in zip(asked, self._ask(message, asked, fatal=False), strict=True):
            results.update(zip((i for i in wanted if i in w.envs), values, strict=True))
        return [results[i] for i in wanted]

    def drain_infos(self) -> list[dict[str, InfoSums]]:
        """Collect the sums of the numbers in infos, by env."""
        self._expect(CallState.IDLE, "use")
        return [env for part in self._ask(lambda w: worker.DRAIN) for env in part]

    def close_extras(self, **kwargs: Any) -> None:
        """Stop the workers: ask, wait a little, then kill."""
        self.state = CallState.CLOSED
        self._pool.close()

    @property
    def pids(self) -> list[int]:
        """The workers' process ids."""
        return self._pool.pids

    # ---- talking to workers ----------------------------------------------------------------------------------

    def _ask(
        self, message: Callable[[PoolWorker], bytes], workers: list[PoolWorker] | None = None, fatal: bool = True
    ) -> list[Any]:
        workers = self._workers if workers is None else workers
        messages = [message(w) for w in workers]
        self.state = CallState.FAILED  # until every reply has been read
        for w, words in zip(workers, messages, strict=True):
            self._pool.post(w, words)
        replies = self._pool.replies(workers, all_first=not fatal)
        errors = [birth.error_from(reply[1:]) for reply in replies if reply[:1] == birth.ERROR]
        self.state = CallState.IDLE
        if errors:
            raise errors[0]
        return [pickle.loads(reply[1:]) for reply in replies]


def _shifted(rows: list[InfoRow], w: PoolWorker) -> list[InfoRow]:
    """A worker counts its envs from 0."""
    return [dataclasses.replace(row, env=row.env + w.envs.start) for row in rows]
