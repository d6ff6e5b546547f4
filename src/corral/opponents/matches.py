"""Games of a trained policy against opponents, both sides of every deal, with an honest interval.

Processes that play import this: no torch here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from corral.core.errors import CorralError, UsageError, WorkerDied
from corral.core.machine import available_cores
from corral.core.seeding import EVALUATION, episode_seed
from corral.envs.factory import EnvFactory
from corral.envs.lifecycle import mask_method
from corral.envs.opponent_protocol import OPPONENT, SEAT, outcome
from corral.opponents.frozen_policy import FrozenPolicy, PolicyPlayer
from corral.vec.make_vec import make_vector_env
from corral.vec.validation import MASK

__all__ = ["Match", "play_match", "wilson"]

_ATTEMPTS = 5  # to play a round with workers that die in it
_ROUNDS = 20  # parts in which a match is played, so that its progress shows


@dataclass(frozen=True, slots=True)
class Match:
    """How a match went."""

    opponent: str
    outcomes: tuple[float, ...]
    """Of every game: 1 won, 0 lost, 0.5 a draw; the two seats of a deal follow each other."""
    lengths: tuple[int, ...]

    @property
    def win_rate(self) -> float:
        """Draws count half."""
        return float(np.mean(self.outcomes))

    @property
    def interval(self) -> tuple[float, float]:
        """In which the true win rate lies, with 95% confidence."""
        return wilson(self.win_rate, len(self.outcomes))

    @property
    def by_seat(self) -> tuple[float, float]:
        """Win rate when beginning, and when not."""
        return float(np.mean(self.outcomes[::2])), float(np.mean(self.outcomes[1::2]))

    @property
    def mean_length(self) -> float:
        """Steps of a game."""
        return float(np.mean(self.lengths))


def wilson(rate: float, n: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson's 95% interval of a rate seen in ``n`` games."""
    middle = rate + z * z / (2 * n)
    spread = z * math.sqrt(rate * (1 - rate) / n + z * z / (4 * n * n))
    return max(0.0, (middle - spread) / (1 + z * z / n)), min(1.0, (middle + spread) / (1 + z * z / n))


def play_match(
    factory: EnvFactory,
    side: FrozenPolicy,
    opponent: str | FrozenPolicy,
    games: int,
    seed: int,
    on_games: Callable[[int], object] = lambda n: None,
) -> Match:
    """Play ``games`` games (an even number), each deal from both seats, on every core; the same games every time."""
    if games < 2 or games % 2:
        raise UsageError(f"games {games}: should be an even number, for each deal is played from both seats")
    name = opponent if isinstance(opponent, str) else opponent.name
    deals = [(episode_seed(seed, EVALUATION, deal), seat) for deal in range(games // 2) for seat in (0, 1)]
    n = min(available_cores(), games // 2)
    size = 2 * max(1, math.ceil(games / (2 * n * _ROUNDS)))  # games of one env in one round
    outcomes: list[float] = []
    lengths: list[int] = []
    failures = 0
    while len(outcomes) < games:
        env = make_vector_env(factory, n, backend="serial" if n == 1 else "process", num_workers=n)
        try:
            for i in range(n):
                env.apply(lambda one, i=i: setattr(one.unwrapped, _NUMBER, i), [i])  # type: ignore[misc]
            while len(outcomes) < games:
                part = deals[len(outcomes) : len(outcomes) + n * size]
                shares = [part[i * size : (i + 1) * size] for i in range(n)]
                for played in env.apply(lambda one, shares=shares: _play(one, side, opponent, shares)):  # type: ignore[misc]
                    outcomes += [result for result, _ in played]
                    lengths += [length for _, length in played]
                on_games(len(part))
                failures = 0
        except WorkerDied:
            failures += 1
            if failures == _ATTEMPTS:
                raise
        finally:
            env.close()
    return Match(name, tuple(outcomes), tuple(lengths))


_NUMBER = "corral_number"


def _play(
    env: gym.Env[Any, Any],
    side: FrozenPolicy,
    opponent: str | FrozenPolicy,
    shares: Sequence[Sequence[tuple[int, int]]],
) -> list[tuple[float, int]]:
    """The games of one env, where it lives: outcome and length of each."""
    player = side.player()
    other: str | PolicyPlayer = opponent if isinstance(opponent, str) else opponent.player()
    return [_play_one(env, player, other, seed, seat) for seed, seat in shares[getattr(env.unwrapped, _NUMBER)]]


def _play_one(
    env: gym.Env[Any, Any], player: PolicyPlayer, other: str | PolicyPlayer, seed: int, seat: int
) -> tuple[float, int]:
    masks = mask_method(env)
    unused = np.random.default_rng(0)  # the most likely moves need none
    player, other = player.for_new_game(), other if isinstance(other, str) else other.for_new_game()
    observation, info = env.reset(seed=seed, options={OPPONENT: other, SEAT: seat})
    for length in range(1, 1_000_000):
        action = player(observation, info.get(MASK) if masks is None else masks(), unused)
        observation, reward, terminated, truncated, info = env.step(action)
        if terminated or truncated:
            return outcome(float(reward), bool(terminated)), length
    raise CorralError("a game did not end within a million steps")
