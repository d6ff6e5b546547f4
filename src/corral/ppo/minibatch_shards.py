"""Parts of a gradient step in threads of ours, each with one thread of torch's.

Torch's own threads meet after every operation: when another process has one of the cores, both wait for it, hundreds of
times in a step. Ours meet once. And since the parts are the run's and not the machine's, and are added up in order,
results do not depend on how many threads there are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

from corral.config.schema import TrainConfig
from corral.core.machine import available_cores
from corral.policy.policy import Policy

__all__ = ["LEAST_ROWS", "ShardThreads", "set_torch_threads", "shares_of"]

LEAST_ROWS = 32
"""Of a part: with fewer, a row takes longer."""
_SHARES = ((512, 8), (256, 4), (2 * LEAST_ROWS, 2))
"""Parts by rows of a minibatch: more than `TrainConfig.shares`, because a row of pictures takes so much longer."""
Item = TypeVar("Item")
Answer = TypeVar("Answer")


def shares_of(policy: Policy, config: TrainConfig) -> int:
    """Parts of a minibatch: several where a row costs enough, and where nothing looks at the whole of it."""
    if policy.pictures is None or config.compile or policy.log_std.device.type != "cpu":
        return 1
    by_size = next((shares for least, shares in _SHARES if config.minibatch_size >= least), 1)
    sequences = config.minibatch_size // (config.sequence_length or 1)  # none is cut
    return config.learner_shares or min(by_size, sequences)


def set_torch_threads(policy: Policy, config: TrainConfig) -> None:
    """Leave the threads to torch, or to us."""
    torch.set_num_threads(1 if shares_of(policy, config) > 1 else config.learner_threads or 1)


class ShardThreads:
    """Calls a function for several items at a time."""

    def __init__(self, shares: int, threads: int | None = None) -> None:
        self.shares = shares
        self.threads = min(shares, threads or available_cores())
        self._pool: ThreadPoolExecutor | None = None

    def map(self, function: Callable[[Item], Answer], items: Sequence[Item]) -> list[Answer]:
        """The answers, in order."""
        if self.threads == 1 or len(items) == 1:
            return [function(item) for item in items]
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.threads, "gradient", torch.set_num_threads, (1,))
        return list(self._pool.map(function, items))
