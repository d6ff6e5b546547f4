"""The ``worker`` source: processes that own envs and a copy of the policy, and write whole rollouts where we read them.

There is no message per step and nothing to put together: workers write into the columns of their envs, in memory that
the learner sees. Weights lie there twice, so that a worker that is still reading one version never sees the next.

A worker that dies is replaced. The new one finds there how far the old one had come, is told where its envs were then,
and goes on with the same weights and the same noise: the rollout is the same as if nothing had happened.
"""

from __future__ import annotations

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
from corral.core.types import ActorSpec, RecoveryCounts, Rollout, Weights
from corral.envs.factory import EnvFactory
from corral.opponents.table import SharedOpponentTable
from corral.ppo.shares import Shares, ShareSetup
from corral.processes import shared_memory
from corral.processes.pool import PoolWorker, StartMethod, WorkerPool, split_envs
from corral.processes.supervision import RecoveryConfig, check_memory
from corral.processes.worker_bootstrap import ERROR, error_from
from corral.rollout import worker
from corral.rollout.buffers import named_columns
from corral.rollout.collector import Segment, join
from corral.rollout.crew import SIGNALS, ProcessCrew
from corral.rollout.env_positions import EnvPositions
from corral.rollout.load_balancer import LoadBalancer
from corral.rollout.source import SourceSpec
from corral.vec.api import EnvInfo
from corral.vec.env_stepper import CURRENT_ENV, OTHER_CALLS, STEPS_STARTED
from corral.vec.supervisor import CrashSite, Restarts, warn_of_lost

__all__ = ["WorkerSource", "start_workers"]

_NOT_STEPPING = -(2**62)  # far from any step of a rollout, also after a long replay


def start_workers(spec: SourceSpec) -> WorkerSource:
    """Start the envs of the backend ``worker``."""
    how = spec.start_method, spec.overlap, spec.adaptive, spec.recovery
    return WorkerSource(spec.factory, spec.n_envs, spec.num_workers, spec.n_steps, spec.seed, *how)


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
        recovery: RecoveryConfig | None = None,
    ) -> None:
        self.n_envs, self.n_steps = n_envs, n_steps
        self._recovery = recovery = recovery or RecoveryConfig(heal=True)
        self._n_slots = 2 if overlap else 1
        self._begun = 0
        self._version = 0
        self._request: worker.CollectRequest | None = None  # the rollout under way
        self._deadline = math.inf
        self._worked = False
        self._restarts = Restarts(recovery, factory.is_vector)
        self._shared: shared_memory.SharedArrays | None = None
        self._load_balancer = LoadBalancer(n_envs, num_workers) if adaptive else None
        self._lost_one = False  # a worker, in the last move
        self.moves = 0
        """How often envs were given to other workers."""
        self.crew: ProcessCrew | None = None
        """The workers that have a part in the update."""
        self.has_masks: bool | None = None
        self.shares = split_envs(n_envs, num_workers)
        factory = factory.for_processes(num_workers)
        self._pool = WorkerPool(
            worker.serve,
            self.shares,
            lambda index, envs: worker.RolloutWorkerSetup(
                factory, envs, seed, n_steps, self.has_masks, recovery.max_rss
            ),
            start_method,
            seed,
            recovery,
        )
        try:
            words = self._pool.await_startup(self._pool.workers, "envs", self._mend)
            replies_ready: list[worker.WorkerReady] = [cloudpickle.loads(reply[1:]) for reply in words]
            for other in replies_ready[1:]:
                replies_ready[0].env_info.check_same(other.env_info)
            if len({ready.has_masks for ready in replies_ready}) > 1:
                raise UsageError("some envs offer action masks and some do not; all or none should")
            check_memory(recovery.max_rss, max(ready.memory for ready in replies_ready))
        except BaseException:
            self.close()
            raise
        self.env_info: EnvInfo = replies_ready[0].env_info
        self.has_masks = replies_ready[0].has_masks
        self._positions = EnvPositions(seed, n_envs, ActionCodec(self.env_info.action_space))

    def connect(
        self,
        actor: ActorSpec,
        weights: Weights,
        opponent_table: SharedOpponentTable | None = None,
        shares: ShareSetup | None = None,
        helpers: int = 0,
    ) -> WorkerSource:
        """Give the workers memory, an actor and, if there are ``helpers``, a part in the update (see ``crew``)."""
        self._opponent_table = opponent_table
        layout, codec = Layout(self.env_info.observation_space), ActionCodec(self.env_info.action_space)
        shape = self.n_steps, self.n_envs, bool(self.has_masks), self.env_info.stacks, actor.n_state
        rollout = named_columns(layout, codec, *shape)
        specs = [spec for slot in range(self._n_slots) for spec in worker.specs("slot", slot, rollout)]
        for slot in range(2):
            named = {name: (tuple(tensor.shape), _dtype(tensor)) for name, tensor in weights.items()}
            specs += worker.specs("weights", slot, named)
        if shares is not None and helpers:
            specs += worker.specs("update", 0, shares.arrays())
            specs.append(shared_memory.ArraySpec(SIGNALS, *ProcessCrew.signals(helpers)))
        specs.append(shared_memory.ArraySpec(worker.STOP, (1,), "<i8"))
        specs.append(shared_memory.ArraySpec(worker.HEARTBEATS, (len(self._pool.workers), worker.LINE), "<i8"))
        self._plan_of: Callable[[int], worker.WorkerPlan] = lambda i: worker.WorkerPlan(
            actor,
            shares if helpers else None,
            i,
            i + 1 if i < helpers else 0,
            helpers + 1,
            None if opponent_table is None else opponent_table.setup,
        )
        try:
            self._shared = shared_memory.create(specs)
            arrays = self._shared.arrays
            arrays[worker.STOP][0] = 0
            arrays[worker.HEARTBEATS][...] = 0
            self._slots = [
                Rollout.from_arrays(slot, self.env_info.stacks) for slot in worker.arrays_by_slot(arrays, "slot")
            ]
            self._weights = worker.arrays_by_slot(arrays, "weights")
            self._heartbeats = arrays[worker.HEARTBEATS]
            asked = []
            for w in self._pool.workers:
                try:
                    self._send_plan(w)
                    asked.append(w)
                except WorkerDied as error:
                    self._mend(w, error)
            self._pool.await_startup(asked, "plan", self._mend)
        except BaseException:
            self.close()
            raise
        self._pool.heartbeat_of = lambda w: self._heartbeats[w.index].tobytes()
        if shares is not None and helpers:
            (update,) = worker.arrays_by_slot(arrays, "update")
            patience = self._recovery.step_timeout
            self.crew = ProcessCrew(Shares(shares, update), arrays[SIGNALS], self._pool, helpers, patience)
        return self

    def _send_plan(self, w: PoolWorker) -> None:
        """Give a worker memory and a plan."""
        assert self._shared is not None
        self._pool.send_shared_memory(w, self._shared)
        self._pool.post(w, bytes(cloudpickle.dumps(self._plan_of(w.index))))
        if self._opponent_table is not None:
            self._pool.send_shared_memory(w, self._opponent_table.shared)

    def publish(self, weights: Weights, version: int) -> None:
        """Write the weights that the next rollout will use."""
        self._version = version  # one more than the last, so that it goes to the other of the two
        target = self._weights[version % 2]
        for name, tensor in weights.items():
            target[name][...] = tensor.cpu().numpy() if hasattr(tensor, "cpu") else tensor

    def begin(self, iteration: int) -> None:
        """Send the workers off."""
        if self._load_balancer is not None and (wanted := self._load_balancer.proposal(self.shares)) is not None:
            self._load_balancer.settle(self.move(wanted) or self._lost_one)
        if self._opponent_table is not None and iteration == 0:
            self._positions.begin(self._opponent_table.opponent_sampler)
        self._begun += 1
        self._request = worker.CollectRequest(iteration, self._begun % self._n_slots, self._version % 2)
        self._positions.write_initial_states(self._slots[self._request.slot])
        message = pickle.dumps(self._request)
        self._heartbeats[:, [STEPS_STARTED, worker.DONE]] = _NOT_STEPPING, 0
        for w in self._pool.workers:
            try:
                self._pool.post(w, message)
            except WorkerDied as error:
                self._mend(w, error)

    def set_deadline(self, deadline: float) -> None:
        """Give up a rollout that is not complete by then."""
        self._deadline = deadline

    def collect(self) -> Rollout:
        """Wait until every worker is done."""
        assert self._request is not None
        parts = self._gather()
        rollout, self._request, self._worked = self._slots[self._request.slot], None, True
        if self._load_balancer is not None:
            self._load_balancer.note([sum(p.seconds.act + p.seconds.step for p in some) for some in parts])
        states = {
            envs[i]: state
            for envs, some in zip(self.shares, parts, strict=True)
            for i, state in some[-1].report.states.items()
        }
        episodes = self._positions.advance(rollout, states)
        return join(rollout, [part for some in parts for part in some], episodes, self.drain_recovery_counts())

    def _gather(self) -> list[list[Segment]]:
        """Every worker's part of the rollout; in several parts, if it was replaced because of its memory."""
        parts: list[list[Segment]] = [[] for _ in self._pool.workers]
        with self._pool.watching():
            while pending := [w for w in self._pool.workers if not (parts[w.index] and parts[w.index][-1].finished)]:
                if (left := self._deadline - time.perf_counter()) < 0:
                    raise DeadlinePassed
                for w, said in self._pool.events(pending, seconds=left):
                    if isinstance(said, WorkerDied):
                        self._mend(w, said, idle=bool(parts[w.index]) and parts[w.index][-1].finished)
                    elif said[:1] == ERROR:
                        raise error_from(said[1:])
                    else:
                        parts[w.index].append(pickle.loads(said[1:]))
                        if not parts[w.index][-1].finished:
                            self._restarts.recycle(w, self._replace, self._mend)
        self._pool.reset_timeouts()
        return parts

    def move(self, shares: list[range]) -> bool:
        """Give each worker exactly these envs; False, and all as before, if an env does not come back the same."""
        if not self._worked:
            return False  # nobody has seen yet what the envs show
        self._lost_one = False
        takes = [worker.PrepareMove(envs, self._positions.positions_of(envs)) for envs in shares]
        commit = all(position.repeatable for take in takes for position in take.positions) and all(self._ask(takes))
        if commit:
            self.shares = shares
            self.moves += 1
            for w, envs in zip(self._pool.workers, shares, strict=True):
                w.envs = envs
        self._ask([worker.CommitMove(commit)] * len(shares))
        return commit

    def _ask(self, requests: Sequence[Any]) -> list[Any]:
        """An answer of each worker between rollouts; False of one that had to be replaced."""
        answers: dict[int, Any] = {}

        def on_death(w: PoolWorker, error: WorkerDied) -> None:
            self._mend(w, error)
            answers[w.index] = False
            self._lost_one = True

        for w, request in zip(self._pool.workers, requests, strict=True):
            try:
                self._pool.post(w, bytes(cloudpickle.dumps(request)))
            except WorkerDied as error:
                on_death(w, error)
        with self._pool.watching():
            while pending := [w for w in self._pool.workers if w.index not in answers]:
                for w, said in self._pool.events(pending):
                    if isinstance(said, WorkerDied):
                        on_death(w, said)
                    elif said[:1] == ERROR:
                        raise error_from(said[1:])
                    else:
                        answers[w.index] = pickle.loads(said[1:])
        return [answers[w.index] for w in self._pool.workers]

    # ---- where envs are --------------------------------------------------------------------------------------

    def opponents(self) -> npt.NDArray[np.int64]:
        """Who plays the other side in every env's episode."""
        return self._positions.episodes.opponent

    def env_positions(self) -> dict[str, npt.NDArray[Any]]:
        """Where every env is."""
        return self._positions.arrays()

    def restore(self, env_positions: Mapping[str, npt.NDArray[Any]]) -> None:
        """Bring every env to where it was."""
        self._positions.restore(env_positions)
        self._worked = True
        answers = self._ask([worker.RestoreRequest(self._positions.positions_of(envs)) for envs in self.shares])
        # A worker that was replaced meanwhile has been told already.
        lost = [envs[i] for envs, some in zip(self.shares, answers, strict=True) for i in some or ()]
        warn_of_lost(lost, self._recovery.warn)

    def _mend(self, w: PoolWorker, error: CorralError, idle: bool = False) -> bytes:
        """Replace a worker, and let the new one go on where it was; ``idle``: it had done its part.

        While workers start, the new one comes as far as the others are. Returns what it says then.
        """
        heartbeat = np.zeros(worker.LINE, np.int64) if self._shared is None else self._heartbeats[w.index]
        crash_site, step = self._crash_site(w), self._begun * self.n_steps + int(heartbeat[worker.DONE])
        self._restarts.worked |= self._worked or bool(heartbeat[worker.DONE])
        start = functools.partial(self._replace, idle=idle)
        return self._restarts.replace(w, error, start, crash_site, step, heartbeat.tobytes)

    def _replace(self, w: PoolWorker, idle: bool = False) -> bytes:
        if self._shared is None:
            self._pool.replace(w)
            return self._pool.await_startup([w], "envs")[0]
        done, request = int(self._heartbeats[w.index, worker.DONE]), self._request
        self._heartbeats[w.index, [CURRENT_ENV, STEPS_STARTED, OTHER_CALLS]] = (
            0,
            _NOT_STEPPING,
            0,
        )  # so that a death at the same place looks the same
        self._pool.replace(w)
        (words,) = self._pool.await_startup([w], "envs")
        self.env_info.check_same(cloudpickle.loads(words[1:]).env_info)
        self._send_plan(w)
        (words,) = self._pool.await_startup([w], "plan")
        if w.envs:
            under_way = None if request is None else self._slots[request.slot]
            positions = self._positions.positions_of(w.envs, under_way, done)
            self._pool.post(w, pickle.dumps(worker.RestoreRequest(positions)))
            (said,) = self._pool.replies([w])
            warn_of_lost([w.envs[i] for i in pickle.loads(said[1:])], self._recovery.warn)
        self._heartbeats[w.index, [STEPS_STARTED, worker.DONE]] = _NOT_STEPPING, done
        if request is not None and not idle:
            again = worker.CollectRequest(request.iteration, request.slot, request.weights, done)
            self._pool.post(w, pickle.dumps(again))
        return words

    def _crash_site(self, w: PoolWorker) -> CrashSite | None:
        """Which step of which env a worker was in, if it was in any."""
        if (request := self._request) is None:
            return None
        heartbeat = self._heartbeats[w.index]
        done, inside = int(heartbeat[worker.DONE]), int(heartbeat[CURRENT_ENV])
        if done >= self.n_steps or heartbeat[STEPS_STARTED] != done + 1 or not 0 <= inside < len(w.envs):
            return None
        rollout, env = self._slots[request.slot], w.envs[inside]
        codec = ActionCodec(self.env_info.action_space)
        row = codec.layout.allocate(1)
        codec.decode(rollout.actions[done, env][None], row)
        (position,) = self._positions.positions_of([env], rollout, done)
        return CrashSite(env, position, codec.layout.read(row, 0), {path: leaf[0] for path, leaf in row.items()})

    # ----------------------------------------------------------------------------------------------------------

    def drain_recovery_counts(self) -> RecoveryCounts:
        """What was mended since the last rollout."""
        return self._restarts.drain()

    def pids(self) -> list[int]:
        """The workers' process ids."""
        return self._pool.pids

    def close(self) -> None:
        """Stop the workers, also in the middle of a rollout."""
        if self._shared is not None:
            if self._shared.arrays:
                self._shared.arrays[worker.STOP][0] = 1
            self._shared.close()
        self._pool.close()


def _dtype(tensor: Any) -> str:
    return np.dtype(str(tensor.dtype).removeprefix("torch.")).str
