"""Envs in worker processes, several in each. Arrays are shared; the pipes carry no data of a step.

A worker that dies or hangs can be replaced in the middle of a step: this process keeps what every env has played since
its reset, so that a new worker can play it again.
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
from corral.core.types import RecoveryCounts
from corral.envs.factory import EnvFactory
from corral.processes import shared_memory, worker_bootstrap
from corral.processes.pool import PoolWorker, StartMethod, WorkerPool, death_error, split_envs
from corral.processes.step_signal import CELLS, ParentSignal, cells_shape
from corral.processes.supervision import NEVER, Deadline, RecoveryConfig, check_memory, say_nothing
from corral.vec import calls, worker
from corral.vec.api import CallState, CorralVectorEnv, EnvReport, InfoMode, InfoRow, OpponentSamplerSpec, StepArrays
from corral.vec.replay_log import EnvPosition
from corral.vec.supervisor import PositionTracker, Restarts, warn_of_lost

__all__ = ["ProcessVectorEnv"]

_ANY = b"\x01"  # a True among booleans


class ProcessVectorEnv(CorralVectorEnv):
    """N envs in ``num_workers`` processes, looked after as ``recovery`` says."""

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
        shares = split_envs(n_envs, num_workers or min(n_envs, available_cores()))
        factory = factory.for_processes(len(shares))
        patient = len(shares) <= available_cores()
        self.recovery = recovery = recovery or RecoveryConfig()
        told = dataclasses.replace(recovery, warn=say_nothing)  # what is said is said here
        self.state = CallState.FAILED
        self._pool = WorkerPool(
            worker.serve,
            shares,
            lambda index, envs: worker.WorkerSetup(factory, envs.start, len(envs), seed, infos, index, patient, told),
            start_method,
            seed,
            recovery,
        )
        self._workers = self._pool.workers
        self._restarts = Restarts(recovery, factory.is_vector)
        self._asked: Callable[..., list[bytes]] = list  # the replies that a pending call waits for
        self._wanted: tuple[list[int], list[PoolWorker]] = [], []  # envs and workers of a call of their methods
        self._reset_with: list[tuple[int, int | None, dict[str, Any] | None]] = []  # env, seed and options
        self._opponent_sampler: tuple[OpponentSamplerSpec, shared_memory.SharedArrays] | None = None
        self._shared: shared_memory.SharedArrays | None = None
        try:
            replies = self._pool.await_startup(self._workers, "envs", self._mend_at_start)
            replies_ready: list[worker.WorkerReady] = [cloudpickle.loads(reply[1:]) for reply in replies]
            for other in replies_ready[1:]:
                replies_ready[0].env_info.check_same(other.env_info)
            check_memory(recovery.max_rss, max(ready.memory for ready in replies_ready))
            super().__init__(replies_ready[0].env_info, n_envs)
            self._share_memory()
        except BaseException:
            self._close()
            raise
        self._tracker = PositionTracker(self.arrays, seed) if recovery.heal else None

    def _share_memory(self) -> None:
        named = StepArrays.named(self.layout, self.codec, self.num_envs)
        specs = [shared_memory.ArraySpec(name, shape, dtype.str) for name, (shape, dtype) in named.items()]
        specs.append(shared_memory.ArraySpec(CELLS, cells_shape(len(self._workers)), "<i8"))
        self._shared = shared_memory.create(specs)
        self._signal = ParentSignal(self._pool, self._shared.arrays[CELLS])
        self._pool.heartbeat_of = self._signal.heartbeat
        self.arrays = StepArrays.from_arrays(
            {name: array for name, array in self._shared.arrays.items() if name != CELLS}
        )
        self.arrays.begin()
        asked = []
        for w in self._workers:
            try:
                self._pool.send_shared_memory(w, self._shared)
                asked.append(w)
            except WorkerDied as error:
                self._mend_at_start(w, error)
        self._pool.await_startup(asked, "memory", self._mend_at_start)

    # ---- the contract ----------------------------------------------------------------------------------------

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
            self._tracker.keep_shown()

        def on_death(w: PoolWorker, error: CorralError) -> None:
            part = slice(w.envs.start, w.envs.stop)
            self._mend(w, error, bare=all(which[part]), shown_before=True)
            self.arrays.episode[part] = episodes[part]

        with self._pool.watching(self._start_seconds):
            self._asked = self._post(message, on_death=on_death)
        self._reset_with = [(i, seeds[i], options[i]) for i in range(self.num_envs) if which[i]]
        self.state = CallState.RESETTING

    def _finish_reset(self, timeout: float | None = None) -> list[InfoRow]:
        with self._pool.watching(self._start_seconds):
            replies: list[worker.ResetReply] = self._answers(self._asked, CallState.RESETTING, timeout)
        if len({reply.has_masks for reply in replies}) > 1:
            raise UsageError("some envs offer action masks and some do not; all or none should")
        if self.has_masks is None:
            self.has_masks, self.mask_dtype = replies[0].has_masks, replies[0].mask_dtype
        if self._tracker is not None:
            for i, seed, option in self._reset_with:
                self._tracker.replay_log.begin(
                    i, int(self.arrays.episode[i]), seed, option or self.arrays.opponent_options(i)
                )
        return [row for w, reply in zip(self._workers, replies, strict=True) for row in _shifted(reply.rows, w)]

    @property
    def _start_seconds(self) -> float | None:
        """How long envs may take for a reset, if it may be their first."""
        return None if self._restarts.worked else self.recovery.start_timeout

    def send(self) -> None:
        """Tell every worker to step."""
        if self.state is not CallState.IDLE:
            calls.check_state(self, self.state, "send")
        self.state = CallState.FAILED
        if self._tracker is not None:
            self._tracker.replay_log.append()
            self._tracker.keep_shown()
        self._signal.ask()
        self.state = CallState.STEPPING

    def recv(self, timeout: float | None = None) -> list[InfoRow]:
        """Wait until every worker has stepped."""
        if self.state is not CallState.STEPPING:
            calls.check_wait(self, self.state, "step")
        self.state = CallState.FAILED
        a, rows = self.arrays, list[InfoRow]()
        try:
            answers = self._signal.answers(self._mend_in_step, timeout)
        except TimeoutError:
            self.state = CallState.STEPPING
            raise
        for w, said in zip(self._workers, answers, strict=True):
            if said is not None:
                rows += _shifted(pickle.loads(said[1:]), w)
        self._pool.reset_timeouts()
        self._restarts.worked = True
        if self._tracker is not None and (_ANY in a.terminated.tobytes() or _ANY in a.truncated.tobytes()):
            self._tracker.begin_next_episodes(range(self.num_envs))
            if self.recovery.max_rss is not None:
                self._recycle(self._tracker)
        self.state = CallState.IDLE
        return rows

    def _begin_apply(self, function: Callable[[gym.Env[Any, Any]], Any], envs: Sequence[int] | None) -> None:
        wanted = list(range(self.num_envs) if envs is None else envs)
        asked = [w for w in self._workers if any(i in w.envs for i in wanted)]

        def message(w: PoolWorker) -> bytes:
            theirs = [i - w.envs.start for i in wanted if i in w.envs]
            return worker.APPLY + bytes(cloudpickle.dumps(worker.ApplyRequest(function, theirs)))

        for w in asked:
            if not w.process.is_alive():  # it died while nothing was asked of it, so the call did not reach it
                self._mend(w, death_error(w), bare=self.has_masks is None)
        self._asked, self._wanted = self._post(message, asked, fatal=False, patient=True), (wanted, asked)
        self.state = CallState.CALLING

    def _finish_apply(self, timeout: float | None = None) -> list[Any]:
        answers = self._answers(self._asked, CallState.CALLING, timeout)
        wanted, workers = self._wanted
        results: dict[int, Any] = {}
        for w, values in zip(workers, answers, strict=True):
            results.update(zip((i for i in wanted if i in w.envs), values, strict=True))
        return [results[i] for i in wanted]

    def drain(self) -> EnvReport:
        """Collect what there is to say."""
        calls.check_state(self, self.state, "drain")
        parts: list[EnvReport] = self._ask(lambda w: worker.DRAIN, on_death=self._mend)
        recovery_counts = self.drain_recovery_counts()
        states: dict[int, bytes] = {}
        for w, part in zip(self._workers, parts, strict=True):
            recovery_counts += part.recovery_counts
            for i, state in part.states.items():
                states[w.envs[i]] = state
                if self._tracker is not None:
                    self._tracker.replay_log.start_from_state(w.envs[i], state)
        infos = [env for part in parts for env in part.infos]
        return EnvReport(infos, recovery_counts, [fault for part in parts for fault in part.faults], states)

    def drain_recovery_counts(self) -> RecoveryCounts:
        """Workers that were replaced."""
        return self._restarts.drain()

    def restore(self, positions: Sequence[EnvPosition], there: Collection[int] = ()) -> list[int]:
        """Bring every env to a position, each where it lives."""
        calls.check_state(self, self.state, "restore")
        assert not there

        def message(w: PoolWorker) -> bytes:
            return self._restore_message([positions[i] for i in w.envs])

        self._restarts.worked = True
        if self._tracker is not None:
            self._tracker.replay_log.restore(positions)
        lost = self._ask(message, on_death=lambda w, error: self._mend(w, error, bare=True))
        return [w.envs[i] for w, some in zip(self._workers, lost, strict=True) for i in some]

    def seat(self, setup: OpponentSamplerSpec, shared: shared_memory.SharedArrays) -> None:
        """Tell every worker, and every one that will replace it."""
        calls.check_state(self, self.state, "seat")
        self._opponent_sampler = setup, shared
        for w in self._workers:
            try:
                self._send_opponent_sampler(w)
            except WorkerDied as error:
                self._mend(w, error)

    def _send_opponent_sampler(self, w: PoolWorker) -> None:
        if self._opponent_sampler is not None:
            setup, shared = self._opponent_sampler
            self._pool.post(w, worker.OPPONENTS + bytes(cloudpickle.dumps(setup)))
            self._pool.send_shared_memory(w, shared)
            self._pool.await_startup([w], "opponents")

    def close_extras(self, **kwargs: Any) -> None:
        """Stop the workers: ask, wait a little, then kill."""
        self.state, self._asked = CallState.CLOSED, list
        self._close()

    def _close(self) -> None:
        self._pool.close()
        if self._shared is not None:
            self._shared.close()

    @property
    def pids(self) -> list[int]:
        """The workers' process ids."""
        return self._pool.pids

    # ---- replacing workers -----------------------------------------------------------------------------------

    def _mend_in_step(self, w: PoolWorker, error: CorralError) -> None:
        """The same while others may still step: if this one had finished, its envs may be in new episodes."""
        if self._tracker is not None and not self._signal.is_stepping(w):
            self._tracker.begin_next_episodes(w.envs)
        self._mend(w, error)

    def _mend_at_start(self, w: PoolWorker, error: CorralError) -> bytes:
        """Replace a worker that is still starting; what the new one says when it is as far as the others."""
        return self._restarts.replace(w, error, self._begin_anew, None, 0, lambda: "start")

    def _mend(self, w: PoolWorker, error: CorralError, bare: bool = False, shown_before: bool = False) -> None:
        """Replace a worker, and bring its envs to where they were: before the step that it did not finish.

        ``bare``: its envs may be anywhere, for they will be told where to begin. ``shown_before``: what they showed
        may have been written over since.
        """
        positions, crash_site = list[EnvPosition](), None
        if self._tracker is not None and not bare:
            masked, stepping = bool(self.has_masks), self._signal.is_stepping(w)
            before = stepping or shown_before
            positions = [self._tracker.position(i, masked, undone=stepping, shown_before=before) for i in w.envs]
            if stepping and self._signal.has_started(w):
                env = w.envs[min(self._signal.heartbeat(w)[0], len(w.envs) - 1)]
                crash_site = self._tracker.crash_site(env, masked, self.codec.layout)
        start = functools.partial(self._replace, positions=positions)
        self._restarts.replace(w, error, start, crash_site, self._signal.step, lambda: tuple(self._signal.heartbeat(w)))

    def _begin_anew(self, w: PoolWorker) -> bytes:
        """Start another process for a worker, up to where all of them are made; what it says then."""
        self._pool.replace(w)
        if self._shared is None:
            return self._pool.await_startup([w], "envs")[0]
        self._signal.forget(w)  # after: the old one must not take it for a request
        (words,) = self._pool.await_startup([w], "envs")
        self.env_info.check_same(cloudpickle.loads(words[1:]).env_info)
        self._pool.send_shared_memory(w, self._shared)
        return self._pool.await_startup([w], "memory")[0]

    def _replace(self, w: PoolWorker, positions: list[EnvPosition]) -> None:
        self._begin_anew(w)
        self._send_opponent_sampler(w)
        if positions:
            self._pool.post(w, self._restore_message(positions))
            (said,) = self._pool.replies([w])
            warn_of_lost([w.envs[i] for i in pickle.loads(said[1:])], self.recovery.warn)

    def _restore_message(self, positions: list[EnvPosition]) -> bytes:
        return worker.RESTORE + pickle.dumps(worker.RestoreRequest(positions, bool(self.has_masks)))

    def _recycle(self, tracker: PositionTracker) -> None:
        """Replace workers that use too much memory, between two steps."""
        for w in self._signal.outgrown():
            positions = [tracker.position(i, bool(self.has_masks)) for i in w.envs]
            self._restarts.recycle(w, functools.partial(self._replace, positions=positions), self._mend)

    # ---- talking to workers ----------------------------------------------------------------------------------

    def _ask(
        self, message: Callable[[PoolWorker], bytes], on_death: Callable[[PoolWorker, WorkerDied], None]
    ) -> list[Any]:
        """Ask every worker and wait for the replies."""
        return self._answers(self._post(message, on_death=on_death), CallState.IDLE)

    def _post(
        self,
        message: Callable[[PoolWorker], bytes],
        workers: list[PoolWorker] | None = None,
        fatal: bool = True,
        on_death: Callable[[PoolWorker, WorkerDied], None] | None = None,
        patient: bool = False,
    ) -> Callable[..., list[bytes]]:
        """Ask workers; with ``on_death``, one that dies is replaced and asked again. Returns what waits for the replies."""
        chosen = self._workers if workers is None else workers
        messages = {w.index: message(w) for w in chosen}
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

        for w in chosen:
            post(w)
        so_far: dict[int, bytes] = {}
        again = None if on_death is None else post
        return functools.partial(self._pool.replies, workers, not fatal, again, patient, so_far)

    def _answers(
        self, asked: Callable[..., list[bytes]], pending: CallState, timeout: float | None = None
    ) -> list[Any]:
        """Wait for the replies of workers that were asked; after ``timeout`` seconds the call is ``pending`` again."""
        self.state = CallState.FAILED
        try:
            replies = asked(deadline=NEVER if timeout is None else Deadline(timeout))
        except TimeoutError:
            self.state = pending
            raise
        self._asked = list  # it held this object
        errors = [worker_bootstrap.error_from(reply[1:]) for reply in replies if reply[:1] == worker_bootstrap.ERROR]
        self.state = CallState.IDLE
        if errors:
            raise errors[0]
        return [pickle.loads(reply[1:]) for reply in replies]


def _shifted(rows: list[InfoRow], w: PoolWorker) -> list[InfoRow]:
    """A worker counts its envs from 0."""
    return [dataclasses.replace(row, env=row.env + w.envs.start) for row in rows]
