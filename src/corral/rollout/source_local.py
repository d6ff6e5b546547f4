"""The source of the backends ``serial`` and ``process``: the policy runs in the training process."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from corral.core.errors import DeadlinePassed
from corral.core.types import Actor, ActorSpec, FaultCounts, NodeUse, Rollout, Weights
from corral.envs.env_info import EnvInfo
from corral.opponents.sampling import SharedOpponentTable
from corral.rollout.buffers import allocate_rollout
from corral.rollout.collector import Collector, CollectorReport, merge_reports
from corral.rollout.env_positions import EnvPositions
from corral.rollout.source import SourceSpec
from corral.vec.api import CorralVectorEnv
from corral.vec.make_vec import make_vector_env
from corral.vec.supervisor import warn_of_failed_restores

__all__ = ["LocalEnvs", "LocalSource"]


class LocalEnvs:
    """The vector env of a run: in this process (``serial``), or in workers that only step envs (``process``)."""

    def __init__(self, spec: SourceSpec) -> None:
        self.spec = spec
        self.env = make_vector_env(
            spec.factory,
            spec.n_envs,
            backend="serial" if spec.backend == "serial" else "process",
            num_workers=spec.num_workers,
            start_method=spec.start_method,
            seed=spec.seed,
            infos="summed",
            recovery=spec.recovery,
        )

    @property
    def env_info(self) -> EnvInfo:
        """Spaces, metadata and opponents of the envs."""
        return self.env.env_info

    @property
    def num_workers(self) -> int:
        """The number of workers that share the envs."""
        return self.spec.num_workers

    @property
    def has_masks(self) -> bool | None:
        """Whether the envs mask actions; None before they are reset."""
        return self.env.has_masks

    def connect(
        self, actor: ActorSpec, weights: Weights, opponent_table: SharedOpponentTable | None = None
    ) -> LocalSource:
        """Return a source whose actor acts in this process. It gets its weights when they are published."""
        spec = self.spec
        return LocalSource(
            self.env,
            actor.build(0, spec.n_envs),
            n_steps=spec.n_steps,
            seed=spec.seed,
            overlap=spec.overlap,
            warn=spec.recovery.warn,
            opponent_table=opponent_table,
        )

    def close(self) -> None:
        """Close the envs."""
        self.env.close()


class LocalSource:
    """One collector in this process. With ``overlap`` there are two rollouts, which are written in turn."""

    def __init__(
        self,
        env: CorralVectorEnv,
        actor: Actor,
        n_steps: int,
        seed: int,
        overlap: bool = False,
        warn: Callable[[str], object] = lambda text: None,
        opponent_table: SharedOpponentTable | None = None,
    ) -> None:
        self.env = env
        self._opponent_table = opponent_table
        self._actor = actor
        self._warn = warn
        env.reset_arrays()
        if opponent_table is not None:
            env.set_opponent_sampler(opponent_table.spec, opponent_table.shared)
        self._collector = Collector(env, actor, n_steps, seed)
        self._positions = EnvPositions(seed, env.num_envs, env.codec)
        self._slots = [
            allocate_rollout(
                env.layout,
                env.codec,
                n_steps,
                env.num_envs,
                masked=bool(env.has_masks),
                stacks=env.env_info.stacks,
                n_state=actor.n_state,
            )
            for _ in range(2 if overlap else 1)
        ]
        self._n_begun = 0  # rollouts
        self._report: CollectorReport | None = None
        self._deadline = math.inf

    def set_deadline(self, deadline: float) -> None:
        """Raise ``DeadlinePassed`` from ``collect`` for a rollout that is not complete by then."""
        self._deadline = deadline

    def publish(self, weights: Weights, version: int) -> None:
        """Give the actor its weights."""
        self._actor.load(weights)

    def begin(self, iteration: int) -> None:
        """Collect a rollout; return when it is complete or the deadline has passed."""
        if self._opponent_table is not None and iteration == 0:
            self._positions.begin(self._opponent_table.opponent_sampler)
            self._collector.reset_envs()
        self._n_begun += 1
        rollout = self._current_slot()
        self._positions.write_initial_states(rollout)
        self._report = None
        with contextlib.suppress(DeadlinePassed):
            self._report = self._collector.collect(iteration, rollout, on_step=self._check_deadline)

    def _current_slot(self) -> Rollout:
        return self._slots[self._n_begun % len(self._slots)]

    def _check_deadline(self, _steps_done: int, _any_episode_ended: bool) -> None:
        if time.perf_counter() > self._deadline:
            raise DeadlinePassed

    def collect(self) -> Rollout:
        """Return the rollout that ``begin`` collected."""
        if self._report is None:
            raise DeadlinePassed
        rollout = self._current_slot()
        episodes = self._positions.advance(rollout, self._report.env_report.states)
        return merge_reports(rollout, [self._report], episodes, FaultCounts())

    def opponents(self) -> npt.NDArray[np.int64]:
        """Return the opponent in each env's episode, [N], by number; -1 if the env chooses it itself."""
        return self._positions.episodes.opponent

    def env_positions(self) -> dict[str, npt.NDArray[Any]]:
        """Return the position of every env, for a checkpoint."""
        return self._positions.arrays()

    def restore(self, env_positions: Mapping[str, npt.NDArray[Any]]) -> None:
        """Bring every env to its position in a checkpoint, and warn of envs that did not get there."""
        self._positions.restore(env_positions)
        warn_of_failed_restores(self.env.restore(self._positions.positions_of(range(self.env.num_envs))), self._warn)

    def take_fault_counts(self) -> FaultCounts:
        """Return how many workers were restarted since the last rollout was collected, and begin again at zero."""
        return self.env.take_fault_counts()

    def node_use(self) -> Mapping[str, NodeUse]:
        """Return nothing: all envs are on this machine."""
        return {}

    def pids(self) -> list[int]:
        """Return the process ids of the workers that step envs; none for backend ``serial``."""
        return list(getattr(self.env, "pids", ()))

    def close(self) -> None:
        """Close the envs."""
        self.env.close()
