"""Which worker should own how many envs, from how long each was busy: ``--adaptive``. Decides, and moves nothing.

Two things can shift while a run goes on. Workers may become unequal (some envs are slower, some cores are taken): then
envs go from slow workers to fast ones. And all may become slower than they were, because the machine is busy with
something else: then one worker fewer is tried, and kept if that is better; later one more is tried again.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from statistics import fmean

__all__ = ["LoadBalancer"]

_WINDOW = 8
"""Rollouts between decisions."""
_UNEQUAL = 1.2
"""The slowest worker over the mean."""
_SLOWER = 1.2
"""A window over the best one with as many workers."""
_WORTH = 0.97
_RETRY = 10
"""Windows after which one more worker is tried again."""


class LoadBalancer:
    """Watches rollouts and proposes shares of the envs."""

    def __init__(self, n_envs: int, num_workers: int) -> None:
        self._n_envs = n_envs
        self._most = num_workers
        self._busy: list[list[float]] = []  # by rollout and worker
        self._best: dict[int, float] = {}  # number of workers to seconds of a rollout, at its best
        self._trial: tuple[list[range], float] | None = None  # what to go back to, and how long that took
        self._refused: set[tuple[int, ...]] = set()  # sizes that were tried and were no better
        self._patience = _RETRY
        self._off = False

    def note(self, seconds: Sequence[float]) -> None:
        """How long each worker was busy with the last rollout; 0 for one without envs."""
        if not self._off:
            self._busy.append(list(seconds))

    def proposal(self, shares: Sequence[range]) -> list[range] | None:
        """Other shares than these, if there is a reason."""
        if self._off or len(self._busy) < _WINDOW:
            return None
        took = fmean(max(row) for row in self._busy)
        busy = [fmean(column) for column in zip(*self._busy, strict=True)]
        self._busy = []
        active = sum(1 for share in shares if share)
        if self._trial is not None:
            before, then = self._trial
            self._trial = None
            if took > _WORTH * then:
                self._refused.add(tuple(len(share) for share in shares))
                return before
        act_greedy = self._best[active] = min(took, self._best.get(active, took))
        self._patience -= 1
        number = active
        if took > _SLOWER * act_greedy and active > 1:
            number = active - 1
        elif active < self._most and self._patience <= 0:
            number = active + 1
        if number != active:
            self._patience = _RETRY
            self._best[active] = took  # times have changed
            self._refused = set()
            self._trial = list(shares), took
            return self._split([1.0] * number)
        working = [(i, seconds) for i, seconds in enumerate(busy) if shares[i] and seconds > 0]
        if max(seconds for _, seconds in working) <= _UNEQUAL * fmean(seconds for _, seconds in working):
            return None
        speeds = [len(shares[i]) / seconds for i, seconds in working]
        wanted = self._split(speeds)
        sizes = tuple(len(share) for share in wanted)
        if sizes in self._refused or sizes == tuple(len(share) for share in shares):
            return None
        self._trial = list(shares), took
        return wanted

    def settle(self, moved: bool) -> None:
        """Whether a proposal was carried out; if it could not be, envs stay where they are for good."""
        self._off = self._off or not moved

    def _split(self, speeds: Sequence[float]) -> list[range]:
        """Consecutive shares in proportion to speeds, at least one env for each; nothing for the other workers."""
        spare, whole = self._n_envs - len(speeds), sum(speeds)
        ends = [round(spare * part / whole) for part in itertools.accumulate(speeds)]
        counts = [1 + b - a for a, b in itertools.pairwise([0, *ends])]
        edges = list(itertools.accumulate(counts, initial=0))
        shares = [range(a, b) for a, b in itertools.pairwise(edges)]
        return shares + [range(0)] * (self._most - len(speeds))
