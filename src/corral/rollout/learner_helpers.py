"""Processes on the trainer's machine that only help to compute gradients, for runs whose envs are elsewhere.

With the backend ``worker``, the workers that own envs help the learner while they have nothing to do. With envs on
other machines, the cores of this one would be idle during an update. So it has processes that do nothing else.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import numpy.typing as npt

from corral.core.actions import ACTION_FEATURES
from corral.core.errors import WorkerDied
from corral.core.types import Rollout
from corral.ppo.shares import Shares, ShareSetup
from corral.processes import shared_memory
from corral.processes.pool import WorkerPool
from corral.processes.pool_worker import PoolWorker
from corral.processes.recovery_config import RecoveryConfig
from corral.processes.start_methods import StartMethod
from corral.processes.worker_bootstrap import CLOSE, OK
from corral.rollout.crew import SIGNALS, ProcessCrew, assist
from corral.rollout.worker import arrays_by_slot, slot_specs

__all__ = ["LearnerHelpers", "serve"]

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class _HelperSetup:
    shares: ShareSetup
    member: int
    """The helper's number among the processes that compute gradients; the trainer is 0."""
    size: int
    """How many processes compute gradients."""


def serve(pipe: Connection, setup: _HelperSetup) -> None:
    """Compute this helper's part of each update, until the parent sends ``CLOSE``."""
    pipe.send_bytes(OK)
    arrays = shared_memory.attach(pipe).arrays
    (update,), (rollout,) = arrays_by_slot(arrays, "update"), arrays_by_slot(arrays, "slot")
    shares = _shares(setup.shares, update, rollout)
    with np.errstate(all="ignore"):  # the trainer checks the gradients
        while (message := pipe.recv_bytes()) != CLOSE:
            assist(pipe, message, shares, arrays[SIGNALS], setup.member, setup.size)


def _shares(setup: ShareSetup, update: Mapping[str, Array], rollout: Mapping[str, Array]) -> Shares:
    shares = Shares(setup, update)
    if (leaf := rollout.get(f"observations:{ACTION_FEATURES}")) is not None:
        shares.action_features = leaf.reshape(-1, *leaf.shape[2:])
    return shares


class LearnerHelpers:
    """``n`` helpers, and the memory that they share with the trainer: a rollout of ``columns`` and the update."""

    def __init__(
        self,
        shares: ShareSetup,
        columns: Mapping[str, tuple[tuple[int, ...], Any]],
        n: int,
        start_method: StartMethod,
        recovery: RecoveryConfig,
    ) -> None:
        specs = [*slot_specs("slot", 0, columns), *slot_specs("update", 0, shares.arrays())]
        self._shared = shared_memory.create([*specs, shared_memory.ArraySpec(SIGNALS, *ProcessCrew.signals(n))])
        self._pool = WorkerPool(
            serve,
            [range(0)] * n,
            lambda index, _: _HelperSetup(shares, index + 1, n + 1),
            start_method,
            recovery=recovery,
        )
        try:
            self._pool.await_startup(self._pool.workers, "start")
            for helper in self._pool.workers:
                self._pool.send_shared_memory(helper, self._shared)
        except BaseException:
            self.close()
            raise
        (self._rollout,) = arrays_by_slot(self._shared.arrays, "slot")
        (update,) = arrays_by_slot(self._shared.arrays, "update")
        signals = self._shared.arrays[SIGNALS]
        self.crew = ProcessCrew(Shares(shares, update), signals, self._pool, n, recovery.step_timeout)
        """The trainer and the helpers."""

    def rollout(self, stacks: Mapping[str, int]) -> Rollout:
        """Return the rollout in shared memory."""
        return Rollout.from_arrays(self._rollout, stacks)

    def restart_dead(self) -> None:
        """Start another process for every helper that died; without one, the trainer computes its part."""
        for helper in self._pool.workers:
            if helper.end is not None or not helper.process.is_alive():
                with contextlib.suppress(WorkerDied):
                    self._restart(helper)

    def _restart(self, helper: PoolWorker) -> None:
        self._pool.restart(helper)
        self._pool.send_shared_memory(helper, self._shared)

    def pids(self) -> list[int]:
        """Return the process ids of the helpers."""
        return self._pool.pids

    def close(self) -> None:
        """End the helpers."""
        self._shared.close()
        self._pool.close()
