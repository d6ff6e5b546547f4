"""A vector env whose envs live in worker processes, several in each. Arrays are shared; pipes carry no data of a step.

A worker that dies or hangs can be restarted in the middle of a step: the parent keeps the actions of every env since
its reset, so that the new process can replay them.
"""

from __future__ import annotations

import dataclasses
import functools
import pickle
from collections.abc import Callable, Collection, Sequence
from typing import Any

import cloudpickle
import gymnasium as gym
import numpy as np
import numpy.typing as npt

from corral.core.errors import CorralError, UsageError, WorkerDied
from corral.core.machine import available_cores
from corral.core.types import FaultCounts
from corral.envs.factory import EnvFactory
from corral.processes import shared_memory, worker_bootstrap
from corral.processes.hang_detector import NEVER, Deadline
from corral.processes.pool import StartMethod, WorkerPool, split_envs
from corral.processes.pool_worker import PoolWorker, death_error
from corral.processes.recovery_config import RecoveryConfig, check_memory, ignore_warning
from corral.processes.step_signal import CELLS, ParentSignal, cells_shape
from corral.vec import calls, worker
from corral.vec.api import CallState, CorralVectorEnv, EnvReport, InfoMode, InfoRow, OpponentSamplerSpec, StepArrays
from corral.vec.position_tracker import PositionTracker
from corral.vec.replay_log import EnvPosition
from corral.vec.supervisor import Supervisor, WorkerDeath, warn_of_failed_restores

__all__ = ["ProcessVectorEnv"]

_TRUE = b"\x01"  # in the bytes of a boolean array


class ProcessVectorEnv(CorralVectorEnv):
    """N envs in ``num_workers`` processes, which are supervised as ``recovery`` says."""

    def __init__(
        self,
        factory: EnvFactory,
        n_envs: int,
        *,
        num_workers: int | None = None,
        start_method: StartMethod = "auto",
        seed: int | None = None,
        infos: InfoMode = "full",
        recovery: RecoveryConfig | None = None,
    ) -> None:
        env_ranges = split_envs(n_envs, num_workers or min(n_envs, available_cores()))
        factory = factory.for_processes(len(env_ranges))
        self.recovery = recovery = recovery or RecoveryConfig()
        setup = worker.WorkerSetup(
            factory=factory,
            first_env=0,
            n_envs=n_envs,
            seed=seed,
            infos=infos,
            index=0,
            may_spin=len(env_ranges) <= available_cores(),
            recovery=dataclasses.replace(recovery, warn=ignore_warning),  # the parent prints all warnings
        )
        self.state = CallState.FAILED
        self._pool = WorkerPool(
            worker.serve,
            env_ranges,
            lambda index, envs: dataclasses.replace(setup, first_env=envs.start, n_envs=len(envs), index=index),
            start_method,
            seed,
            recovery,
        )
        self._workers = self._pool.workers
        self._supervisor = Supervisor(recovery, restores_episodes=not factory.is_vector)
        self._wait_for_replies: Callable[..., list[bytes]] = list  # of the pending call
        self._apply_call: tuple[list[int], list[PoolWorker]] = [], []  # its envs and its workers
        self._reset_call: list[tuple[int, int | None, dict[str, Any] | None]] = []  # env, seed and options
        self._opponent_sampler: tuple[OpponentSamplerSpec, shared_memory.SharedArrays] | None = None
        self._shared: shared_memory.SharedArrays | None = None
        try:
            replies = self._pool.await_startup(self._workers, "envs", self._restart_at_start)
            ready: list[worker.WorkerReady] = [cloudpickle.loads(reply[1:]) for reply in replies]
            for other in ready[1:]:
                ready[0].env_info.check_same(other.env_info)
            check_memory(recovery.max_rss, max(reply.rss_mb for reply in ready))
            super().__init__(ready[0].env_info, n_envs)
            self._share_memory()
        except BaseException:
            self._close()
            raise
        self._tracker = PositionTracker(self.arrays, seed) if recovery.recover else None

    def _share_memory(self) -> None:
        array_shapes = StepArrays.array_shapes(self.layout, self.codec, self.num_envs)
        specs = [shared_memory.ArraySpec(name, shape, dtype.str) for name, (shape, dtype) in array_shapes.items()]
        specs.append(shared_memory.ArraySpec(CELLS, cells_shape(len(self._workers)), "<i8"))
        self._shared = shared_memory.create(specs)
        self._signal = ParentSignal(self._pool, self._shared.arrays[CELLS])
        self._pool.heartbeat_of = self._signal.heartbeat
        self.arrays = StepArrays.from_arrays(
            {name: array for name, array in self._shared.arrays.items() if name != CELLS}
        )
        self.arrays.begin()
        pending = []
        for w in self._workers:
            try:
                self._pool.send_shared_memory(w, self._shared)
                pending.append(w)
            except WorkerDied as error:
                self._restart_at_start(w, error)
        self._pool.await_startup(pending, "memory", self._restart_at_start)

    # ---- reset, step and other calls --------------------------------------------------------------------------

    def _begin_reset(
        self, seeds: list[int | None], options: list[dict[str, Any] | None], chosen: npt.NDArray[np.bool_] | None
    ) -> None:
        which = [True] * self.num_envs if chosen is None else chosen.tolist()

        def message(w: PoolWorker) -> bytes:
            part = slice(w.envs.start, w.envs.stop)
            request = worker.ResetRequest(seeds[part], options[part], which[part])
            return worker.RESET + bytes(cloudpickle.dumps(request))

        episodes = self.arrays.episode.copy()
        if self._tracker is not None:
            self._tracker.save_observations()

        def on_death(w: PoolWorker, error: CorralError) -> None:
            part = slice(w.envs.start, w.envs.stop)
            self._restart(w, error, restore=not all(which[part]), saved=True)
            self.arrays.episode[part] = episodes[part]

        with self._pool.watching(self._reset_timeout):
            self._wait_for_replies = self._post(message, on_death=on_death)
        self._reset_call = [(i, seeds[i], options[i]) for i in range(self.num_envs) if which[i]]
        self.state = CallState.RESETTING

    def _finish_reset(self, timeout: float | None = None) -> list[InfoRow]:
        with self._pool.watching(self._reset_timeout):
            replies: list[worker.ResetReply] = self._collect_replies(CallState.RESETTING, timeout)
        if len({reply.has_masks for reply in replies}) > 1:
            raise UsageError("some envs offer action masks and some do not; all or none should")
        if self.has_masks is None:
            self.has_masks, self.mask_dtype = replies[0].has_masks, replies[0].mask_dtype
        if self._tracker is not None:
            for i, seed, option in self._reset_call:
                self._tracker.replay_log.begin(
                    i, int(self.arrays.episode[i]), seed, option or self.arrays.opponent_options(i)
                )
        return [row for w, reply in zip(self._workers, replies, strict=True) for row in _shifted(reply.rows, w)]

    @property
    def _reset_timeout(self) -> float | None:
        """The start time-out while the reset may be the envs' first; None, the step time-out, from then on."""
        return None if self._supervisor.env_known_to_work else self.recovery.start_timeout

    def send(self) -> None:
        """Request a step from every worker."""
        if self.state is not CallState.IDLE:
            calls.check_state(self, self.state, "send")
        self.state = CallState.FAILED
        if self._tracker is not None:
            self._tracker.replay_log.append()
            self._tracker.save_observations()
        self._signal.request_step()
        self.state = CallState.STEPPING

    def recv(self, timeout: float | None = None) -> list[InfoRow]:
        """Wait until every worker has completed the step; return the rows of infos."""
        if self.state is not CallState.STEPPING:
            calls.check_wait(self, self.state, "step")
        self.state = CallState.FAILED
        arrays, rows = self.arrays, list[InfoRow]()
        try:
            messages = self._signal.wait_for_step(self._restart_during_step, timeout)
        except TimeoutError:
            self.state = CallState.STEPPING
            raise
        for w, message in zip(self._workers, messages, strict=True):
            if message is not None:
                rows += _shifted(pickle.loads(message[1:]), w)
        self._pool.reset_timeouts()
        self._supervisor.env_known_to_work = True
        if self._tracker is not None and (_TRUE in arrays.terminated.tobytes() or _TRUE in arrays.truncated.tobytes()):
            self._tracker.begin_next_episodes(range(self.num_envs))
            if self.recovery.max_rss is not None:
                self._restart_over_memory(self._tracker)
        self.state = CallState.IDLE
        return rows

    def _begin_apply(self, function: Callable[[gym.Env[Any, Any]], Any], envs: Sequence[int] | None) -> None:
        indices = list(range(self.num_envs) if envs is None else envs)
        owners = [w for w in self._workers if any(i in w.envs for i in indices)]

        def message(w: PoolWorker) -> bytes:
            in_worker = [i - w.envs.start for i in indices if i in w.envs]
            return worker.APPLY + bytes(cloudpickle.dumps(worker.ApplyRequest(function, in_worker)))

        for w in owners:
            if not w.process.is_alive():  # it died while it had nothing to do, so the call has not reached it
                self._restart(w, death_error(w), restore=self.has_masks is not None)
        self._wait_for_replies = self._post(message, owners, errors_are_replies=True, no_timeout=True)
        self._apply_call = indices, owners
        self.state = CallState.CALLING

    def _finish_apply(self, timeout: float | None = None) -> list[Any]:
        replies = self._collect_replies(CallState.CALLING, timeout)
        indices, owners = self._apply_call
        results: dict[int, Any] = {}
        for w, values in zip(owners, replies, strict=True):
            results.update(zip((i for i in indices if i in w.envs), values, strict=True))
        return [results[i] for i in indices]

    def take_report(self) -> EnvReport:
        """Return what the envs have reported since the last call, and what the supervisor counted."""
        calls.check_state(self, self.state, "take_report")
        parts: list[EnvReport] = self._call(lambda w: worker.TAKE_REPORT, on_death=self._restart)
        fault_counts = self.take_fault_counts()
        states: dict[int, bytes] = {}
        for w, part in zip(self._workers, parts, strict=True):
            fault_counts += part.fault_counts
            for i, state in part.states.items():
                states[w.envs[i]] = state
                if self._tracker is not None:
                    self._tracker.replay_log.start_from_state(w.envs[i], state)
        infos = [env for part in parts for env in part.infos]
        return EnvReport(infos, fault_counts, [fault for part in parts for fault in part.faults], states)

    def take_fault_counts(self) -> FaultCounts:
        """Return how many workers were restarted since the last call."""
        return self._supervisor.take_counts()

    def restore(self, positions: Sequence[EnvPosition], already_there: Collection[int] = ()) -> list[int]:
        """Bring every env to its position, in the worker that owns it; return the envs that could not be restored."""
        calls.check_state(self, self.state, "restore")
        assert not already_there

        def message(w: PoolWorker) -> bytes:
            return self._restore_message([positions[i] for i in w.envs])

        self._supervisor.env_known_to_work = True
        if self._tracker is not None:
            self._tracker.replay_log.restore(positions)
        lost = self._call(message, on_death=lambda w, error: self._restart(w, error, restore=False))
        return [w.envs[i] for w, lost_in_worker in zip(self._workers, lost, strict=True) for i in lost_in_worker]

    def set_opponent_sampler(self, setup: OpponentSamplerSpec, shared: shared_memory.SharedArrays) -> None:
        """Give the opponent sampler to every worker, and to every process that will take its place."""
        calls.check_state(self, self.state, "set_opponent_sampler")
        self._opponent_sampler = setup, shared
        for w in self._workers:
            try:
                self._send_opponent_sampler(w)
            except WorkerDied as error:
                self._restart(w, error)

    def _send_opponent_sampler(self, w: PoolWorker) -> None:
        if self._opponent_sampler is not None:
            setup, shared = self._opponent_sampler
            self._pool.post(w, worker.OPPONENTS + bytes(cloudpickle.dumps(setup)))
            self._pool.send_shared_memory(w, shared)
            self._pool.await_startup([w], "opponents")

    def close_extras(self, **kwargs: Any) -> None:
        """Stop the workers: send a close message, wait a few seconds, then kill."""
        self.state, self._wait_for_replies = CallState.CLOSED, list
        self._close()

    def _close(self) -> None:
        self._pool.close()
        if self._shared is not None:
            self._shared.close()

    @property
    def pids(self) -> list[int]:
        """The process ids of the workers."""
        return self._pool.pids

    # ---- restarting workers ----------------------------------------------------------------------------------

    def _restart_at_start(self, w: PoolWorker, error: CorralError) -> bytes:
        """Restart a worker that died while all workers start; return the reply of the last phase it completed."""
        death = WorkerDeath(w.index, error, progress_outside_steps="start")
        return self._supervisor.recover(death, lambda: self._start_again(w), lambda: "start")

    def _restart_during_step(self, w: PoolWorker, error: CorralError) -> None:
        """Restart a worker while others may still step. If it had completed the step, episodes may have ended in it."""
        if self._tracker is not None and not self._signal.is_stepping(w):
            self._tracker.begin_next_episodes(w.envs)
        self._restart(w, error)

    def _restart(self, w: PoolWorker, error: CorralError, restore: bool = True, saved: bool = False) -> None:
        """Restart a worker, and restore its envs to their positions before the step that it did not complete.

        Without ``restore`` the envs may be anywhere, because a reset follows. ``saved``: their observations may have
        been overwritten, so take those that were saved.
        """
        positions, crash_site = list[EnvPosition](), None
        if self._tracker is not None and restore:
            masked, stepping = bool(self.has_masks), self._signal.is_stepping(w)
            saved = stepping or saved
            positions = [self._tracker.position(i, masked, before_step=stepping, saved=saved) for i in w.envs]
            if stepping and self._signal.has_started(w):
                env = w.envs[min(self._signal.heartbeat(w)[0], len(w.envs) - 1)]
                crash_site = self._tracker.crash_site(env, masked, self.codec.layout)
        death = WorkerDeath(w.index, error, crash_site, self._signal.step, self._signal.heartbeat(w))
        start = functools.partial(self._start_and_restore, w, positions)
        self._supervisor.recover(death, start, functools.partial(self._signal.heartbeat, w))

    def _restart_over_memory(self, tracker: PositionTracker) -> None:
        """Restart workers that use too much memory, between two steps."""
        for w in self._signal.over_memory():
            positions = [tracker.position(i, bool(self.has_masks)) for i in w.envs]
            start = functools.partial(self._start_and_restore, w, positions)
            self._supervisor.restart_for_memory(str(w), start, functools.partial(self._restart, w))

    def _start_again(self, w: PoolWorker) -> bytes:
        """Start another process for a worker and bring it as far as the other workers are; return its last reply."""
        if self._shared is None:
            return self._pool.restart(w)
        # The cells are cleared after the old process has ended, because it could take that for a request.
        reply = self._pool.restart(w, after_start=functools.partial(self._signal.clear, w))
        self.env_info.check_same(cloudpickle.loads(reply[1:]).env_info)
        self._pool.send_shared_memory(w, self._shared)
        return self._pool.await_startup([w], "memory")[0]

    def _start_and_restore(self, w: PoolWorker, positions: list[EnvPosition]) -> None:
        """Start another process for a worker and restore its envs, if there are positions."""
        self._start_again(w)
        self._send_opponent_sampler(w)
        if positions:
            self._pool.post(w, self._restore_message(positions))
            (reply,) = self._pool.replies([w])
            warn_of_failed_restores([w.envs[i] for i in pickle.loads(reply[1:])], self.recovery.warn)

    def _restore_message(self, positions: list[EnvPosition]) -> bytes:
        return worker.RESTORE + pickle.dumps(worker.RestoreRequest(positions, bool(self.has_masks)))

    # ---- messages --------------------------------------------------------------------------------------------

    def _call(
        self, message: Callable[[PoolWorker], bytes], on_death: Callable[[PoolWorker, WorkerDied], None]
    ) -> list[Any]:
        """Send every worker a message, and wait for the replies."""
        self._wait_for_replies = self._post(message, on_death=on_death)
        return self._collect_replies(CallState.IDLE)

    def _post(
        self,
        message: Callable[[PoolWorker], bytes],
        workers: list[PoolWorker] | None = None,
        errors_are_replies: bool = False,
        on_death: Callable[[PoolWorker, WorkerDied], None] | None = None,
        no_timeout: bool = False,
    ) -> Callable[..., list[bytes]]:
        """Send workers (default: all) a message; return a function that waits for the replies.

        With ``on_death``, a worker that dies is restarted and gets the message again.
        """
        receivers = self._workers if workers is None else workers
        messages = {w.index: message(w) for w in receivers}
        self.state = CallState.FAILED  # until every reply has been read

        def post(w: PoolWorker, error: WorkerDied | None = None) -> None:
            while True:
                if error is not None:
                    if on_death is None:
                        raise error
                    on_death(w, error)
                try:
                    return self._pool.post(w, messages[w.index])
                except WorkerDied as again:
                    error = again

        for w in receivers:
            post(w)
        return functools.partial(
            self._pool.replies,
            workers,
            errors_are_replies=errors_are_replies,
            on_death=None if on_death is None else post,
            no_timeout=no_timeout,
            so_far={},
        )

    def _collect_replies(self, pending: CallState, timeout: float | None = None) -> list[Any]:
        """Wait for the replies of the pending call; after ``timeout`` seconds its state is ``pending`` again."""
        self.state = CallState.FAILED
        try:
            replies = self._wait_for_replies(deadline=NEVER if timeout is None else Deadline(timeout))
        except TimeoutError:
            self.state = pending
            raise
        self._wait_for_replies = list  # the function refers to this object
        errors = [
            worker_bootstrap.unpickle_error(reply[1:]) for reply in replies if reply[:1] == worker_bootstrap.ERROR
        ]
        self.state = CallState.IDLE
        if errors:
            raise errors[0]
        return [pickle.loads(reply[1:]) for reply in replies]


def _shifted(rows: list[InfoRow], w: PoolWorker) -> list[InfoRow]:
    """Return a worker's rows with the indices that its envs have in this vector env."""
    return [dataclasses.replace(row, env=row.env + w.envs.start) for row in rows]
