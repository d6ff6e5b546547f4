"""Every random number of a run, as a pure function of the root seed and a place in the run.

Nothing here has state, so it does not matter which process draws, in which order, or whether it draws again
after a crash: env seeds are keyed by (seed, env, episode), action noise by (seed, env, iteration) with one row
per step, minibatch order by (seed, iteration).
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
    "episode_seed",
    "episode_seeds",
    "fresh_seed",
    "hook_generator",
    "kept_global_generators",
    "making_seed",
    "minibatch_generator",
    "network_seed",
    "noise_row",
    "seed_global_generators",
]

_NOISE, _MINIBATCHES, _GAUSSIAN = 0, 1, 2  # highest word of the Philox counter: streams that can never meet
_ENV_SEEDS, _NETWORK, _MAKING, _HOOKS = 0, 1, 2, 3  # first word of the SeedSequence spawn key
_PER_COUNT = 8  # float32 numbers that one count of Philox gives: four words of 64 bits
EVALUATION = 1 << 32
"""Added to an env index to give evaluation its own seeds, far from any training env's."""


def fresh_seed() -> int:
    """A root seed for a run that was not given one; it is recorded, so that the run can be repeated."""
    return int(np.random.SeedSequence().generate_state(1)[0])


def episode_seed(seed: int, env: int, episode: int) -> int:
    """The 32-bit seed with which episode ``episode`` of env ``env`` is reset."""
    return int(np.random.SeedSequence(seed, spawn_key=(_ENV_SEEDS, env, episode)).generate_state(1)[0])


def making_seed(seed: int, env: int) -> int:
    """The 32-bit seed of the global generators while env ``env`` is made."""
    return int(np.random.SeedSequence(seed, spawn_key=(_MAKING, env)).generate_state(1)[0])


def hook_generator(seed: int, name: str, iteration: int) -> np.random.Generator:
    """A generator of a hook's own in one iteration."""
    key = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(_HOOKS, key, iteration)))


def seed_global_generators(seed: int) -> None:
    """Seed ``random``, ``numpy.random`` and, if something has imported it, torch's generator for the CPU.

    Envs should draw from ``self.np_random``; this makes those that do not repeatable as far as that can be.
    """
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - it is the legacy generator that needs it
    if (torch := sys.modules.get("torch")) is not None:
        torch.default_generator.manual_seed(seed)


@contextlib.contextmanager
def kept_global_generators() -> Iterator[None]:
    """Leave the generators that ``seed_global_generators`` seeds as they were before the block."""
    torch = sys.modules.get("torch")
    states = random.getstate(), np.random.get_state(), torch and torch.get_rng_state()  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        if torch is not None:
            torch.set_rng_state(states[2])


def episode_seeds(seed: int | None, first_env: int, episodes: Sequence[int]) -> list[int] | None:
    """The seeds of consecutive envs' episodes; None without a root seed."""
    return None if seed is None else [episode_seed(seed, first_env + i, k) for i, k in enumerate(episodes)]


def network_seed(seed: int, iteration: int = 0) -> int:
    """Torch's seed for the initial weights (0), and for whatever a network draws in the update of an iteration."""
    return int(np.random.SeedSequence(seed, spawn_key=(_NETWORK, iteration)).generate_state(1)[0])


def action_noise(
    seed: int, envs: npt.NDArray[np.int64], iteration: int, n_steps: int, gaussian: Sequence[bool]
) -> npt.NDArray[np.float32]:
    """The noise [T, N, D] behind every action that consecutive ``envs`` take in ``iteration``: one row per step.

    Column ``j`` is standard normal where ``gaussian[j]``, else uniform on (0, 1]: zero is left out so that
    inverting a cumulative distribution never lands on an action of probability zero.
    """
    # Uniform numbers of all envs are one stream, cut into blocks: an env's block begins where its number says, and is
    # drawn with its neighbours' in one call. Normal ones take as many draws as they need, so each env has its own.
    n, d = len(envs), len(gaussian)
    block = -(-n_steps * d // _PER_COUNT)  # counts of the generator in an env's block
    generator = _philox(seed, 0, iteration, _NOISE, int(envs[0]) * block)
    drawn = generator.random((n, block * _PER_COUNT), dtype=np.float32)[:, : n_steps * d]
    noise = np.ascontiguousarray((1.0 - drawn).reshape(n, n_steps, d).swapaxes(0, 1))  # [T, N, D]
    columns = np.flatnonzero(gaussian)
    for i, env in enumerate(envs if columns.size else ()):
        normal = _philox(seed, int(env), iteration, _GAUSSIAN)
        noise[:, i, columns] = normal.standard_normal((n_steps, columns.size), dtype=np.float32)
    return noise


def noise_row(generator: np.random.Generator, gaussian: Sequence[bool]) -> npt.NDArray[np.float32]:
    """The noise [1, D] behind one action outside of training; columns are as in ``action_noise``."""
    normal = np.array(gaussian, np.bool_)
    noise = (1.0 - generator.random((1, len(normal)))).astype(np.float32)
    noise[:, normal] = generator.standard_normal((1, int(normal.sum())), dtype=np.float32)
    return noise


def minibatch_generator(seed: int, iteration: int) -> np.random.Generator:
    """The generator that shuffles the minibatches of ``iteration``."""
    return _philox(seed, 0, iteration, _MINIBATCHES)


def _philox(seed: int, lane: int, iteration: int, stream: int, first: int = 0) -> np.random.Generator:
    # Philox counts up from the lowest word, so two different (iteration, stream) pairs are 2^128 draws apart.
    key = np.array([seed, lane], dtype=np.uint64)
    counter = np.array([first, 0, iteration, stream], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=counter))
