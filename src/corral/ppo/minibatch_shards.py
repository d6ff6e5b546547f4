"""Shards of a minibatch, whose gradients are computed in threads: one thread of Python with one of torch for each.

Torch's own threads synchronise after every operation. When another process occupies one of the cores, all of them wait
for it, hundreds of times in a gradient step. Threads over shards synchronise once. The number of shards belongs to the
run and not to the machine, and their gradients are added in order, so results do not depend on the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

from corral.config.schema import TrainConfig
from corral.core.machine import available_cores
from corral.policy.policy import Policy

__all__ = ["MIN_SHARD_ROWS", "ShardThreads", "set_torch_threads", "shard_count"]

MIN_SHARD_ROWS = 32
"""The fewest rows of a shard: with fewer, each row takes longer."""
_SHARDS_BY_ROWS = ((512, 8), (256, 4), (2 * MIN_SHARD_ROWS, 2))
"""Number of shards for minibatches of at least so many rows.

There are more than in ``TrainConfig.shares``, because a row with images takes so much longer.
"""
Item = TypeVar("Item")
Result = TypeVar("Result")


def shard_count(policy: Policy, config: TrainConfig) -> int:
    """Return the number of shards of a minibatch for the torch engine.

    It is more than 1 for images on a CPU only: elsewhere a row costs too little. A compiled loss is not split either.
    """
    if policy.pictures is None or config.compile or policy.log_std.device.type != "cpu":
        return 1
    by_rows = next((shards for min_rows, shards in _SHARDS_BY_ROWS if config.minibatch_size >= min_rows), 1)
    sequences = config.minibatch_size // (config.sequence_length or 1)  # a shard has whole sequences
    return config.learner_shares or min(by_rows, sequences)


def set_torch_threads(policy: Policy, config: TrainConfig) -> None:
    """Give torch one thread if minibatches have shards, else ``learner_threads``."""
    torch.set_num_threads(1 if shard_count(policy, config) > 1 else config.learner_threads or 1)


class ShardThreads:
    """A pool of threads that calls a function for several shards at a time."""

    def __init__(self, n_shards: int, threads: int | None = None) -> None:
        self.n_shards = n_shards
        self.n_threads = min(n_shards, threads or available_cores())
        self._pool: ThreadPoolExecutor | None = None

    def map(self, function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """Return the results of the function for all items, in order."""
        if self.n_threads == 1 or len(items) == 1:
            return [function(item) for item in items]
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.n_threads, "gradient", torch.set_num_threads, (1,))
        return list(self._pool.map(function, items))
