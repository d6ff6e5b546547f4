"""The rollout source of the ``worker`` backend: processes that own envs and a copy of the policy, act, and step.

There is no message per step and nothing to copy: workers write into the columns of their envs, in shared memory that
the learner reads. The weights are there twice, so that a worker that still reads one version never sees the next.

A worker that dies is restarted. Shared memory says how many steps the old process had completed. The new one restores
its envs to that step and continues with the same weights and the same noise, so the rollout is the same as without a
death.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import pickle
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import cloudpickle
import numpy as np
import numpy.typing as npt

from corral.core.actions import ActionCodec
from corral.core.errors import CorralError, DeadlinePassed, UsageError, WorkerDied
from corral.core.spaces import Layout
from corral.core.types import ActorSpec, EpisodeRecord, FaultCounts, NodeUse, Rollout, Weights
from corral.opponents.sampling import SharedOpponentTable
from corral.ppo.shares import Shares, ShareSetup
from corral.processes import shared_memory
from corral.processes.pool import WorkerPool, split_envs
from corral.processes.pool_worker import PoolWorker
from corral.processes.recovery_config import check_memory
from corral.processes.worker_bootstrap import ERROR, VALUE, unpickle_error
from corral.rollout import worker
from corral.rollout.buffers import column_specs
from corral.rollout.collector import CollectorReport, merge_reports
from corral.rollout.crew import SIGNALS, ProcessCrew
from corral.rollout.env_positions import EnvPositions
from corral.rollout.load_balancer import LoadBalancer
from corral.rollout.source import LearnerCrew, SourceSpec
from corral.rollout.worker import NOT_STEPPING, Progress
from corral.vec.api import EnvInfo
from corral.vec.env_stepper import STEPS_STARTED
from corral.vec.supervisor import CrashSite, Supervisor, WorkerDeath, warn_of_failed_restores

__all__ = ["WorkerSource"]

_RESTARTED = VALUE + pickle.dumps(False)  # stands for the reply of a worker that was restarted instead of replying


class WorkerSource:
    """The envs of a run in ``spec.num_workers`` processes.

    It is made in two steps, because the policy depends on the spaces of the envs: the constructor starts workers with
    envs, ``connect`` gives them shared memory and the policy.
    """

    def __init__(self, spec: SourceSpec) -> None:
        self.n_envs, self.n_steps, self._first_env = spec.n_envs, spec.n_steps, spec.first_env
        self._recovery = spec.recovery
        self._n_slots = 2 if spec.overlap else 1  # rollouts in shared memory
        self._rollouts_begun = 0
        self._version = 0  # of the weights
        self._request: worker.CollectRequest | None = None  # of the rollout under way
        self._deadline = math.inf
        self._positions_known = False  # whether there was a rollout or a restore, and so positions to restore
        self._supervisor = Supervisor(spec.recovery, restores_episodes=not spec.factory.is_vector)
        self._shared: shared_memory.SharedArrays | None = None
        self._load_balancer = LoadBalancer(spec.n_envs, spec.num_workers) if spec.adaptive else None
        self._worker_died_in_move = False
        self.moves = 0
        """How often envs were moved to other workers."""
        self.crew: LearnerCrew | None = None
        """The workers that compute a part of the update."""
        self.has_masks = spec.has_masks
        self.env_ranges = split_envs(spec.n_envs, spec.num_workers, spec.first_env)
        """The envs of each worker."""
        factory = spec.factory.for_processes(max(spec.num_workers, spec.factory.processes))
        self._pool = WorkerPool(
            worker.serve,
            self.env_ranges,
            lambda index, envs: worker.RolloutWorkerSetup(
                factory, envs, spec.first_env, spec.seed, spec.n_steps, self.has_masks, spec.recovery.max_rss
            ),
            spec.start_method,
            spec.seed,
            spec.recovery,
        )
        try:
            replies = self._pool.await_startup(self._pool.workers, "envs", self._restart)
            ready: list[worker.WorkerReady] = [cloudpickle.loads(reply[1:]) for reply in replies]
            for other in ready[1:]:
                ready[0].env_info.check_same(other.env_info)
            if len({reply.has_masks for reply in ready}) > 1:
                raise UsageError("some envs offer action masks and some do not; all or none should")
            check_memory(spec.recovery.max_rss, max(reply.rss_mb for reply in ready))
        except BaseException:
            self.close()
            raise
        self.env_info: EnvInfo = ready[0].env_info
        self.has_masks = ready[0].has_masks
        codec = ActionCodec(self.env_info.action_space)
        self._positions = EnvPositions(spec.seed, spec.n_envs, codec, spec.first_env)

    @property
    def num_workers(self) -> int:
        """The number of workers that share the envs."""
        return len(self._pool.workers)

    @property
    def max_helpers(self) -> int:
        """How many workers could help the learner."""
        return len(self._pool.workers)

    def connect(
        self,
        actor: ActorSpec,
        weights: Weights,
        opponent_table: SharedOpponentTable | None = None,
        shares: ShareSetup | None = None,
        helpers: int = 0,
    ) -> WorkerSource:
        """Give the workers shared memory, an actor and, if there are ``helpers``, a part of the update."""
        self._opponent_table = opponent_table
        self._plan_of: Callable[[int], worker.WorkerPlan] = lambda i: worker.WorkerPlan(
            actor=actor,
            shares=shares if helpers else None,
            index=i,
            member=i + 1 if i < helpers else 0,
            crew=helpers + 1,
            opponent_table=None if opponent_table is None else opponent_table.spec,
        )
        try:
            self._shared = shared_memory.create(self._array_specs(actor, weights, shares, helpers))
            arrays = self._shared.arrays
            arrays[worker.STOP][0] = 0
            arrays[worker.HEARTBEATS][...] = 0
            self._slots = [
                Rollout.from_arrays(slot, self.env_info.stacks) for slot in worker.arrays_by_slot(arrays, "slot")
            ]
            self._weights = worker.arrays_by_slot(arrays, "weights")
            self._heartbeats = arrays[worker.HEARTBEATS]
            pending = []
            for w in self._pool.workers:
                try:
                    self._send_plan(w)
                    pending.append(w)
                except WorkerDied as error:
                    self._restart(w, error)
            self._pool.await_startup(pending, "plan", self._restart)
        except BaseException:
            self.close()
            raise
        self._pool.heartbeat_of = lambda w: self._heartbeats[w.index].tobytes()
        if shares is not None and helpers:
            (update,) = worker.arrays_by_slot(arrays, "update")
            timeout = self._recovery.step_timeout
            self.crew = ProcessCrew(Shares(shares, update), arrays[SIGNALS], self._pool, helpers, timeout)
        return self

    def _array_specs(
        self, actor: ActorSpec, weights: Weights, shares: ShareSetup | None, helpers: int
    ) -> list[shared_memory.ArraySpec]:
        """Return the arrays to share: rollouts, weights, the update of the helpers, a stop flag and heartbeats."""
        rollout = column_specs(
            Layout(self.env_info.observation_space),
            ActionCodec(self.env_info.action_space),
            self.n_steps,
            self.n_envs,
            bool(self.has_masks),
            self.env_info.stacks,
            actor.n_state,
        )
        named_weights = {name: (tuple(tensor.shape), _dtype(tensor)) for name, tensor in weights.items()}
        slot_specs = [spec for slot in range(self._n_slots) for spec in worker.slot_specs("slot", slot, rollout)]
        slot_specs += [spec for slot in range(2) for spec in worker.slot_specs("weights", slot, named_weights)]
        if shares is not None and helpers:
            slot_specs += worker.slot_specs("update", 0, shares.arrays())
            slot_specs.append(shared_memory.ArraySpec(SIGNALS, *ProcessCrew.signals(helpers)))
        slot_specs.append(shared_memory.ArraySpec(worker.STOP, (1,), "<i8"))
        slot_specs.append(
            shared_memory.ArraySpec(worker.HEARTBEATS, (len(self._pool.workers), worker.HEARTBEAT_CELLS), "<i8")
        )
        return slot_specs

    def _send_plan(self, w: PoolWorker) -> None:
        """Send a worker shared memory, its plan, and the memory of the opponents."""
        assert self._shared is not None
        self._pool.send_shared_memory(w, self._shared)
        self._pool.post(w, bytes(cloudpickle.dumps(self._plan_of(w.index))))
        if self._opponent_table is not None:
            self._pool.send_shared_memory(w, self._opponent_table.shared)

    def publish(self, weights: Weights, version: int) -> None:
        """Write the weights that the next rollout will use."""
        self._version = version  # one more than the last, so it goes to the other of the two copies
        target = self._weights[version % 2]
        for name, tensor in weights.items():
            target[name][...] = tensor.cpu().numpy() if hasattr(tensor, "cpu") else tensor

    def begin(self, iteration: int) -> None:
        """Request the rollout of this iteration from all workers."""
        if self._load_balancer is not None and (proposal := self._load_balancer.proposal(self.env_ranges)) is not None:
            self._load_balancer.record_move(self.move(proposal) or self._worker_died_in_move)
        if self._opponent_table is not None and iteration == 0:
            self._positions.begin(self._opponent_table.opponent_sampler)
        self._rollouts_begun += 1
        self._request = worker.CollectRequest(iteration, self._rollouts_begun % self._n_slots, self._version % 2)
        self._positions.write_initial_states(self._slots[self._request.slot])
        message = pickle.dumps(self._request)
        self._heartbeats[:, [STEPS_STARTED, worker.STEPS_COMPLETED]] = NOT_STEPPING, 0
        for w in self._pool.workers:
            try:
                self._pool.post(w, message)
            except WorkerDied as error:
                self._restart(w, error)

    def set_deadline(self, deadline: float) -> None:
        """Make ``collect`` raise ``DeadlinePassed`` if the rollout is not complete at this time (``perf_counter``)."""
        self._deadline = deadline

    def collect(self) -> Rollout:
        """Wait until every worker has completed its part of the rollout, and return the rollout."""
        rollout, reports, episodes = self.collect_reports()
        return merge_reports(rollout, reports, episodes, self.take_fault_counts())

    def collect_reports(self) -> tuple[Rollout, list[CollectorReport], tuple[EpisodeRecord, ...]]:
        """Wait as ``collect`` does. Return the rollout, what its collectors reported, and the episodes that ended."""
        assert self._request is not None
        reports = self._gather_reports()
        rollout, self._request, self._positions_known = self._slots[self._request.slot], None, True
        if self._load_balancer is not None:
            self._load_balancer.record_busy_times(
                [sum(report.seconds.act + report.seconds.step for report in of_worker) for of_worker in reports]
            )
        states = {
            envs[i]: state
            for envs, of_worker in zip(self.env_ranges, reports, strict=True)
            for i, state in of_worker[-1].env_report.states.items()
        }
        episodes = self._positions.advance(rollout, states)
        return rollout, [report for of_worker in reports for report in of_worker], episodes

    def _gather_reports(self) -> list[list[CollectorReport]]:
        """Wait for every worker's part of the rollout: several reports if it was restarted because of its memory."""
        reports: list[list[CollectorReport]] = [[] for _ in self._pool.workers]

        def is_finished(w: PoolWorker) -> bool:
            return bool(reports[w.index]) and reports[w.index][-1].finished

        with self._pool.watching():
            while pending := [w for w in self._pool.workers if not is_finished(w)]:
                if (left := self._deadline - time.perf_counter()) < 0:
                    raise DeadlinePassed
                for w, event in self._pool.events(pending, seconds=left):
                    if isinstance(event, WorkerDied):
                        self._restart(w, event, finished=is_finished(w))
                    elif event[:1] == ERROR:
                        raise unpickle_error(event[1:])
                    else:
                        reports[w.index].append(pickle.loads(event[1:]))
                        if not is_finished(w):
                            start = functools.partial(self._start_and_restore, w)
                            self._supervisor.restart_for_memory(str(w), start, functools.partial(self._restart, w))
        self._pool.reset_timeouts()
        return reports

    def move(self, env_ranges: list[range]) -> bool:
        """Give each worker exactly these envs; return False, with all as before, if an env cannot be restored there."""
        if not self._positions_known:
            return False
        self._worker_died_in_move = False
        moves = [worker.PrepareMove(envs, self._positions.positions_of(envs)) for envs in env_ranges]
        commit = all(position.repeatable for move in moves for position in move.positions) and all(self._call(moves))
        if commit:
            self.env_ranges = env_ranges
            self.moves += 1
            for w, envs in zip(self._pool.workers, env_ranges, strict=True):
                w.envs = envs
        self._call([worker.CommitMove(commit)] * len(env_ranges))
        return commit

    def _call(self, requests: Sequence[Any]) -> list[Any]:
        """Return the reply of each worker to its request, between rollouts; False for one that had to be restarted."""

        def on_death(w: PoolWorker, error: WorkerDied) -> bytes:
            self._restart(w, error)
            self._worker_died_in_move = True
            return _RESTARTED

        replies: dict[int, bytes] = {}
        for w, request in zip(self._pool.workers, requests, strict=True):
            try:
                self._pool.post(w, bytes(cloudpickle.dumps(request)))
            except WorkerDied as error:
                replies[w.index] = on_death(w, error)
        return [pickle.loads(reply[1:]) for reply in self._pool.replies(on_death=on_death, so_far=replies)]

    # ---- env positions and restarts of workers ---------------------------------------------------------------

    def opponents(self) -> npt.NDArray[np.int64]:
        """Return the opponent of every env's episode; shape [N]."""
        return self._positions.episodes.opponent

    def env_positions(self) -> dict[str, npt.NDArray[Any]]:
        """Return the positions of all envs, for a checkpoint."""
        return self._positions.arrays()

    def restore(self, env_positions: Mapping[str, npt.NDArray[Any]]) -> None:
        """Bring every env to its position from a checkpoint."""
        self._positions.restore(env_positions)
        self._positions_known = True
        replies = self._call([worker.RestoreRequest(self._positions.positions_of(envs)) for envs in self.env_ranges])
        # The restart of a worker restores its envs too: then its reply is False.
        lost = [
            envs[i] for envs, lost_in_worker in zip(self.env_ranges, replies, strict=True) for i in lost_in_worker or ()
        ]
        warn_of_failed_restores(lost, self._recovery.warn)

    def _restart(self, w: PoolWorker, error: CorralError, finished: bool = False) -> bytes:
        """Restart a worker, and let it continue the rollout unless it had ``finished`` its part.

        While workers start, the new process comes as far as the others are. Returns its reply to the last phase.
        """
        cells = np.zeros(worker.HEARTBEAT_CELLS, np.int64) if self._shared is None else self._heartbeats[w.index]
        progress = Progress(cells)
        steps = self._rollouts_begun * self.n_steps + progress.steps_completed
        self._supervisor.env_known_to_work |= self._positions_known or progress.steps_completed > 0
        death = WorkerDeath(w.index, error, self._crash_site(w, progress), steps, progress.as_bytes())
        start = functools.partial(self._start_and_restore, w, finished)
        return self._supervisor.recover(death, start, progress.as_bytes)

    def _start_and_restore(self, w: PoolWorker, finished: bool = False) -> bytes:
        """Start another process for a worker, restore its envs, and let it continue the rollout under way."""
        if self._shared is None:
            return self._pool.restart(w)
        progress, request = Progress(self._heartbeats[w.index]), self._request
        steps_completed = progress.steps_completed
        progress.clear()
        reply = self._pool.restart(w)
        self.env_info.check_same(cloudpickle.loads(reply[1:]).env_info)
        self._send_plan(w)
        (reply,) = self._pool.await_startup([w], "plan")
        if w.envs:
            rollout = None if request is None else self._slots[request.slot]
            positions = self._positions.positions_of(w.envs, rollout, steps_completed)
            self._pool.post(w, pickle.dumps(worker.RestoreRequest(positions)))
            (lost,) = self._pool.replies([w])
            warn_of_failed_restores([w.envs[i] for i in pickle.loads(lost[1:])], self._recovery.warn)
        progress.resume(steps_completed)
        if request is not None and not finished:
            self._pool.post(w, pickle.dumps(dataclasses.replace(request, first_step=steps_completed)))
        return reply

    def _crash_site(self, w: PoolWorker, progress: Progress) -> CrashSite | None:
        """Return the env step that a worker was in, or None if it was in none."""
        if (request := self._request) is None or (t := progress.steps_completed) >= self.n_steps:
            return None
        env_in_worker = progress.env_in_step()
        if env_in_worker is None or not 0 <= env_in_worker < len(w.envs):
            return None
        rollout, env = self._slots[request.slot], w.envs[env_in_worker]
        codec = ActionCodec(self.env_info.action_space)
        row = codec.layout.allocate(1)
        codec.decode(rollout.actions[t, env - self._first_env][None], row)
        (position,) = self._positions.positions_of([env], rollout, t)
        return CrashSite(env, position, codec.layout.read(row, 0), {path: leaf[0] for path, leaf in row.items()})

    # ----------------------------------------------------------------------------------------------------------

    def take_fault_counts(self) -> FaultCounts:
        """Return how many workers were restarted since the last call."""
        return self._supervisor.take_counts()

    def pids(self) -> list[int]:
        """Return the process ids of the workers."""
        return self._pool.pids

    def node_use(self) -> Mapping[str, NodeUse]:
        """Return nothing: all workers are on this machine."""
        return {}

    def close(self) -> None:
        """Stop the workers, also in the middle of a rollout."""
        if self._shared is not None:
            if self._shared.arrays:
                self._shared.arrays[worker.STOP][0] = 1
            self._shared.close()
        self._pool.close()


def _dtype(tensor: Any) -> str:
    return np.dtype(str(tensor.dtype).removeprefix("torch.")).str
