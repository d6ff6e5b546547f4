"""Every random number of a run, as a pure function of the root seed and of where in the run it is used.

Nothing here has state, so it does not matter which process draws, in which order, or whether it draws again after a
crash. The seeds of envs are keyed by (seed, env, episode), action noise by (seed, env, iteration) with one row per
step, the order of minibatches by (seed, iteration). Noise and order come from Philox, a counter-based generator (Salmon
et al., 2011, "Parallel random numbers: as easy as 1, 2, 3"), which can start at any position of its stream.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
import sys
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

__all__ = [
    "action_noise",
    "construction_seed",
    "episode_seed",
    "episode_seeds",
    "fresh_seed",
    "hook_generator",
    "minibatch_generator",
    "network_seed",
    "noise_row",
    "preserve_global_generators",
    "seed_global_generators",
]

_NOISE, _MINIBATCHES, _GAUSSIAN = 0, 1, 2  # highest word of the Philox counter: streams that never overlap
_ENV_SEEDS, _NETWORK, _MAKING, _HOOKS = 0, 1, 2, 3  # first word of the SeedSequence spawn key
_FLOATS_PER_COUNT = 8  # float32 numbers per value of the Philox counter, which gives four words of 64 bits
EVALUATION = 1 << 32
"""Added to an env index for evaluation, whose seeds are then different from those of every training env."""


def fresh_seed() -> int:
    """Draw a root seed for a run that was given none. The run records it, so that it can be repeated."""
    return int(np.random.SeedSequence().generate_state(1)[0])


def episode_seed(seed: int, env: int, episode: int) -> int:
    """Return the 32-bit seed with which episode ``episode`` of env ``env`` is reset."""
    return int(np.random.SeedSequence(seed, spawn_key=(_ENV_SEEDS, env, episode)).generate_state(1)[0])


def construction_seed(seed: int, env: int) -> int:
    """Return the 32-bit seed of the global generators while env ``env`` is constructed."""
    return int(np.random.SeedSequence(seed, spawn_key=(_MAKING, env)).generate_state(1)[0])


def hook_generator(seed: int, name: str, iteration: int) -> np.random.Generator:
    """Return the generator of the hook ``name`` for one iteration."""
    key = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(_HOOKS, key, iteration)))


def seed_global_generators(seed: int) -> None:
    """Seed ``random``, ``numpy.random`` and, if torch is imported already, its generator for the CPU.

    Envs should draw from ``self.np_random``. This makes most of those repeatable that draw from global generators.
    """
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - envs that need this use the legacy generator
    if (torch := sys.modules.get("torch")) is not None:
        torch.default_generator.manual_seed(seed)


@contextlib.contextmanager
def preserve_global_generators() -> Iterator[None]:
    """Restore, after the block, the generators that ``seed_global_generators`` seeds."""
    torch = sys.modules.get("torch")
    python_state, numpy_state = random.getstate(), np.random.get_state()  # noqa: NPY002
    torch_state = torch and torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)  # noqa: NPY002
        if torch is not None:
            torch.set_rng_state(torch_state)


def episode_seeds(seed: int | None, first_env: int, episodes: Sequence[int]) -> list[int] | None:
    """Return the seeds of one episode each of consecutive envs; None without a root seed."""
    if seed is None:
        return None
    return [episode_seed(seed, first_env + i, episode) for i, episode in enumerate(episodes)]


def network_seed(seed: int, iteration: int = 0) -> int:
    """Return torch's seed for the initial weights (0), or for the update of iteration ``iteration - 1`` (dropout)."""
    return int(np.random.SeedSequence(seed, spawn_key=(_NETWORK, iteration)).generate_state(1)[0])


def action_noise(
    seed: int, envs: npt.NDArray[np.int64], iteration: int, n_steps: int, gaussian: Sequence[bool]
) -> npt.NDArray[np.float32]:
    """Return the noise [T, N, D] from which actors sample all actions of consecutive ``envs`` in ``iteration``.

    Column ``j`` is standard normal where ``gaussian[j]``, else uniform on (0, 1]. Zero is excluded so that inverting a
    cumulative distribution never selects an action of probability zero.
    """
    # The uniform numbers of all envs are one stream of equal blocks, one for each env, so those of consecutive envs are
    # drawn in one call. Normal numbers take a varying number of draws, so each env has its own stream.
    n, d = len(envs), len(gaussian)
    block = -(-n_steps * d // _FLOATS_PER_COUNT)  # counter values in the block of an env
    generator = _philox(seed, 0, iteration, _NOISE, int(envs[0]) * block)
    uniform = generator.random((n, block * _FLOATS_PER_COUNT), dtype=np.float32)[:, : n_steps * d]  # [N, T * D]
    noise = np.ascontiguousarray((1.0 - uniform).reshape(n, n_steps, d).swapaxes(0, 1))  # [T, N, D]
    gaussian_columns = np.flatnonzero(gaussian)
    for i, env in enumerate(envs if gaussian_columns.size else ()):
        generator = _philox(seed, int(env), iteration, _GAUSSIAN)
        noise[:, i, gaussian_columns] = generator.standard_normal((n_steps, gaussian_columns.size), dtype=np.float32)
    return noise


def noise_row(generator: np.random.Generator, gaussian: Sequence[bool]) -> npt.NDArray[np.float32]:
    """Draw the noise [1, D] for one action outside of training; columns are as in ``action_noise``."""
    is_gaussian = np.array(gaussian, np.bool_)
    noise = (1.0 - generator.random((1, len(is_gaussian)))).astype(np.float32)
    noise[:, is_gaussian] = generator.standard_normal((1, int(is_gaussian.sum())), dtype=np.float32)
    return noise


def minibatch_generator(seed: int, iteration: int) -> np.random.Generator:
    """Return the generator that shuffles the rollout of ``iteration`` into minibatches."""
    return _philox(seed, 0, iteration, _MINIBATCHES)


def _philox(seed: int, env: int, iteration: int, stream: int, first_count: int = 0) -> np.random.Generator:
    """Return a generator that starts at the counter value ``first_count`` of a stream."""
    # Philox counts up from the lowest word, so two different (iteration, stream) pairs are 2^128 counts apart.
    key = np.array([seed, env], dtype=np.uint64)
    counter = np.array([first_count, 0, iteration, stream], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=counter))
