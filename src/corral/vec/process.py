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
from corral.core.types import Mishaps
from corral.envs.factory import EnvFactory
from corral.processes import shared_memory, worker_bootstrap
from corral.processes.pool import PoolWorker, StartMethod, WorkerPool, died, split_envs
from corral.processes.step_signal import CELLS, StepCaller, cells_shape
from corral.processes.supervision import NEVER, Care, Deadline, check_memory, say_nothing
from corral.vec import calls, worker
from corral.vec.api import CallState, CorralVectorEnv, Drained, InfoMode, InfoRow, SeatsSetup, StepArrays
from corral.vec.replay_log import EnvPosition
from corral.vec.supervisor import PositionTracker, Restarts, warn_of_lost

__all__ = ["ProcessVectorEnv"]

_ANY = b"\x01"  # a True among booleans


class ProcessVectorEnv(CorralVectorEnv):
    """N envs in ``num_workers`` processes, looked after as ``care`` says."""

    def __init__(
        self,
        factory: EnvFactory,
        n_envs: int,
        *,
        num_workers: int | None = None,
        start_method: StartMethod = "auto",
        seed: int | None = None,
        infos: InfoMode = "full",
        care: Care | None = None,
    ) -> None:
        shares = split_envs(n_envs, num_workers or min(n_envs, available_cores()))
        factory = factory.sharing(len(shares))
        patient = len(shares) <= available_cores()
        self.care = care = care or Care()
        told = dataclasses.replace(care, warn=say_nothing)  # what is said is said here
        self.state = CallState.FAILED
        self._pool = WorkerPool(
            worker.serve,
            shares,
            lambda index, envs: worker.WorkerSetup(factory, envs.start, len(envs), seed, infos, index, patient, told),
            start_method,
            seed,
            care,
        )
        self._workers = self._pool.workers
        self._restarts = Restarts(care, factory.is_vector)
        self._asked: Callable[..., list[bytes]] = list  # the replies that a pending call waits for
        self._wanted: tuple[list[int], list[PoolWorker]] = [], []  # envs and workers of a call of their methods
        self._reset_with: list[tuple[int, int | None, dict[str, Any] | None]] = []  # env, seed and options
        self._seats: tuple[SeatsSetup, shared_memory.SharedArrays] | None = None
        self._shared: shared_memory.SharedArrays | None = None
        try:
            replies = self._pool.first_words(self._workers, "envs", self._mend_at_start)
            hellos: list[worker.Hello] = [cloudpickle.loads(reply[1:]) for reply in replies]
            for other in hellos[1:]:
                hellos[0].facts.check_same(other.facts)
            check_memory(care.max_rss, max(hello.memory for hello in hellos))
            super().__init__(hellos[0].facts, n_envs)
            self._share_memory()
        except BaseException:
            self._close()
            raise
        self._tracker = PositionTracker(self.arrays, seed) if care.heal else None

    def _share_memory(self) -> None:
        named = StepArrays.named(self.layout, self.codec, self.num_envs)
        specs = [shared_memory.ArraySpec(name, shape, dtype.str) for name, (shape, dtype) in named.items()]
        specs.append(shared_memory.ArraySpec(CELLS, cells_shape(len(self._workers)), "<i8"))
        self._shared = shared_memory.create(specs)
        self._caller = StepCaller(self._pool, self._shared.arrays[CELLS])
        self._pool.sign_of = self._caller.pulse
        self.arrays = StepArrays.of({name: array for name, array in self._shared.arrays.items() if name != CELLS})
        self.arrays.begin()
        asked = []
        for w in self._workers:
            try:
                self._pool.hand_over(w, self._shared)
                asked.append(w)
            except WorkerDied as error:
                self._mend_at_start(w, error)
        self._pool.first_words(asked, "memory", self._mend_at_start)

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

        def mend(w: PoolWorker, error: CorralError) -> None:
            part = slice(w.envs.start, w.envs.stop)
            self._mend(w, error, bare=all(which[part]), shown_before=True)
            self.arrays.episode[part] = episodes[part]

        with self._pool.watching(self._start_seconds):
            self._asked = self._post(message, mend=mend)
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
                self._tracker.history.begin(i, int(self.arrays.episode[i]), seed, option or self.arrays.drawn(i))
        return [row for w, reply in zip(self._workers, replies, strict=True) for row in _shifted(reply.rows, w)]

    @property
    def _start_seconds(self) -> float | None:
        """How long envs may take for a reset, if it may be their first."""
        return None if self._restarts.worked else self.care.start_timeout

    def send(self) -> None:
        """Tell every worker to step."""
        if self.state is not CallState.IDLE:
            calls.check_state(self, self.state, "send")
        self.state = CallState.FAILED
        if self._tracker is not None:
            self._tracker.history.played()
            self._tracker.keep_shown()
        self._caller.ask()
        self.state = CallState.STEPPING

    def recv(self, timeout: float | None = None) -> list[InfoRow]:
        """Wait until every worker has stepped."""
        if self.state is not CallState.STEPPING:
            calls.check_wait(self, self.state, "step")
        self.state = CallState.FAILED
        a, rows = self.arrays, list[InfoRow]()
        try:
            answers = self._caller.answers(self._mend_in_step, timeout)
        except TimeoutError:
            self.state = CallState.STEPPING
            raise
        for w, said in zip(self._workers, answers, strict=True):
            if said is not None:
                rows += _shifted(pickle.loads(said[1:]), w)
        self._pool.all_well()
        self._restarts.worked = True
        if self._tracker is not None and (_ANY in a.terminated.tobytes() or _ANY in a.truncated.tobytes()):
            self._tracker.begin_next_episodes(range(self.num_envs))
            if self.care.max_rss is not None:
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
                self._mend(w, died(w), bare=self.has_masks is None)
        self._asked, self._wanted = self._post(message, asked, fatal=False, patient=True), (wanted, asked)
        self.state = CallState.CALLING

    def _finish_apply(self, timeout: float | None = None) -> list[Any]:
        answers = self._answers(self._asked, CallState.CALLING, timeout)
        wanted, workers = self._wanted
        results: dict[int, Any] = {}
        for w, values in zip(workers, answers, strict=True):
            results.update(zip((i for i in wanted if i in w.envs), values, strict=True))
        return [results[i] for i in wanted]

    def drain(self) -> Drained:
        """Collect what there is to say."""
        calls.check_state(self, self.state, "drain")
        parts: list[Drained] = self._ask(lambda w: worker.DRAIN, mend=self._mend)
        mishaps = self.drain_mishaps()
        states: dict[int, bytes] = {}
        for w, part in zip(self._workers, parts, strict=True):
            mishaps += part.mishaps
            for i, state in part.states.items():
                states[w.envs[i]] = state
                if self._tracker is not None:
                    self._tracker.history.rebase(w.envs[i], state)
        infos = [env for part in parts for env in part.infos]
        return Drained(infos, mishaps, [fault for part in parts for fault in part.faults], states)

    def drain_mishaps(self) -> Mishaps:
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
            self._tracker.history.go_on(positions)
        lost = self._ask(message, mend=lambda w, error: self._mend(w, error, bare=True))
        return [w.envs[i] for w, some in zip(self._workers, lost, strict=True) for i in some]

    def seat(self, setup: SeatsSetup, shared: shared_memory.SharedArrays) -> None:
        """Tell every worker, and every one that will replace it."""
        calls.check_state(self, self.state, "seat")
        self._seats = setup, shared
        for w in self._workers:
            try:
                self._tell_seats(w)
            except WorkerDied as error:
                self._mend(w, error)

    def _tell_seats(self, w: PoolWorker) -> None:
        if self._seats is not None:
            setup, shared = self._seats
            self._pool.post(w, worker.SEATS + bytes(cloudpickle.dumps(setup)))
            self._pool.hand_over(w, shared)
            self._pool.first_words([w], "opponents")

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
        if self._tracker is not None and not self._caller.is_stepping(w):
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
        positions, scene = list[EnvPosition](), None
        if self._tracker is not None and not bare:
            masked, stepping = bool(self.has_masks), self._caller.is_stepping(w)
            before = stepping or shown_before
            positions = [self._tracker.position(i, masked, undone=stepping, shown_before=before) for i in w.envs]
            if stepping and self._caller.has_started(w):
                env = w.envs[min(self._caller.pulse(w)[0], len(w.envs) - 1)]
                scene = self._tracker.scene(env, masked, self.codec.layout)
        start = functools.partial(self._replace, positions=positions)
        self._restarts.replace(w, error, start, scene, self._caller.step, lambda: tuple(self._caller.pulse(w)))

    def _begin_anew(self, w: PoolWorker) -> bytes:
        """Start another process for a worker, up to where all of them are made; what it says then."""
        self._pool.replace(w)
        if self._shared is None:
            return self._pool.first_words([w], "envs")[0]
        self._caller.forget(w)  # after: the old one must not take it for a request
        (words,) = self._pool.first_words([w], "envs")
        self.facts.check_same(cloudpickle.loads(words[1:]).facts)
        self._pool.hand_over(w, self._shared)
        return self._pool.first_words([w], "memory")[0]

    def _replace(self, w: PoolWorker, positions: list[EnvPosition]) -> None:
        self._begin_anew(w)
        self._tell_seats(w)
        if positions:
            self._pool.post(w, self._restore_message(positions))
            (said,) = self._pool.replies([w])
            warn_of_lost([w.envs[i] for i in pickle.loads(said[1:])], self.care.warn)

    def _restore_message(self, positions: list[EnvPosition]) -> bytes:
        return worker.RESTORE + pickle.dumps(worker.RestoreRequest(positions, bool(self.has_masks)))

    def _recycle(self, tracker: PositionTracker) -> None:
        """Replace workers that use too much memory, between two steps."""
        for w in self._caller.outgrown():
            positions = [tracker.position(i, bool(self.has_masks)) for i in w.envs]
            self._restarts.recycle(w, functools.partial(self._replace, positions=positions), self._mend)

    # ---- talking to workers ----------------------------------------------------------------------------------

    def _ask(self, message: Callable[[PoolWorker], bytes], mend: Callable[[PoolWorker, WorkerDied], None]) -> list[Any]:
        """Ask every worker and wait for the replies."""
        return self._answers(self._post(message, mend=mend), CallState.IDLE)

    def _post(
        self,
        message: Callable[[PoolWorker], bytes],
        workers: list[PoolWorker] | None = None,
        fatal: bool = True,
        mend: Callable[[PoolWorker, WorkerDied], None] | None = None,
        patient: bool = False,
    ) -> Callable[..., list[bytes]]:
        """Ask workers; with ``mend``, one that dies is replaced and asked again. Returns what waits for the replies."""
        chosen = self._workers if workers is None else workers
        messages = {w.index: message(w) for w in chosen}
        self.state = CallState.FAILED  # until every reply has been read

        def post(w: PoolWorker, error: WorkerDied | None = None) -> None:
            while True:
                if error is not None:
                    if mend is None:
                        raise error
                    mend(w, error)
                try:
                    return self._pool.post(w, messages[w.index])
                except WorkerDied as again:
                    error = again

        for w in chosen:
            post(w)
        so_far: dict[int, bytes] = {}
        again = None if mend is None else post
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
