"""Every random number of a run, as a pure function of the root seed and a place in the run.

Nothing here has state, so it does not matter which process draws, in which order, or whether it draws again
after a crash: env seeds are keyed by (seed, env, episode), action noise by (seed, env, iteration) with one row
per step, minibatch order by (seed, iteration).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["action_noise", "episode_seed", "fresh_seed", "minibatch_generator", "network_seed"]

_NOISE, _MINIBATCHES = 0, 1  # highest word of the Philox counter: streams that can never meet
_ENV_SEEDS, _NETWORK = 0, 1  # first word of the SeedSequence spawn key
EVALUATION = 1 << 32
"""Added to an env index to give evaluation its own seeds, far from any training env's."""


def fresh_seed() -> int:
    """A root seed for a run that was not given one; it is recorded, so that the run can be repeated."""
    return int(np.random.SeedSequence().generate_state(1)[0])


def episode_seed(seed: int, env: int, episode: int) -> int:
    """The 32-bit seed with which episode ``episode`` of env ``env`` is reset."""
    return int(np.random.SeedSequence(seed, spawn_key=(_ENV_SEEDS, env, episode)).generate_state(1)[0])


def network_seed(seed: int, iteration: int = 0) -> int:
    """Torch's seed for the initial weights (0), and for whatever a network draws in the update of an iteration."""
    return int(np.random.SeedSequence(seed, spawn_key=(_NETWORK, iteration)).generate_state(1)[0])


def action_noise(
    seed: int, env: int, iteration: int, n_steps: int, gaussian: Sequence[bool]
) -> npt.NDArray[np.float32]:
    """The noise behind every action that ``env`` takes in ``iteration``: one row per step.

    Column ``j`` is standard normal where ``gaussian[j]``, else uniform on (0, 1]: zero is left out so that
    inverting a cumulative distribution never lands on an action of probability zero.
    """
    generator = _philox(seed, env, iteration, _NOISE)
    noise = 1.0 - generator.random((n_steps, len(gaussian)), dtype=np.float32)  # [T, D]
    columns = np.flatnonzero(gaussian)
    if columns.size:
        noise[:, columns] = generator.standard_normal((n_steps, columns.size), dtype=np.float32)
    return noise


def minibatch_generator(seed: int, iteration: int) -> np.random.Generator:
    """The generator that shuffles the minibatches of ``iteration``."""
    return _philox(seed, 0, iteration, _MINIBATCHES)


def _philox(seed: int, lane: int, iteration: int, stream: int) -> np.random.Generator:
    # Philox counts up from the lowest word, so two different (iteration, stream) pairs are 2^128 draws apart.
    key = np.array([seed, lane], dtype=np.uint64)
    counter = np.array([0, 0, iteration, stream], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=counter))
