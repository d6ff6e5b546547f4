"""Matches: games of a trained policy against one opponent, each deal from both seats.

Processes that play games import this module, so it must not import torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

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

__all__ = ["Match", "play_match", "wilson_interval"]

_MAX_TRIES = 5
"""Tries to play a round in which workers die."""
_ROUNDS = 20
"""Parts into which a match is divided, so that its progress can be shown."""
_MAX_GAME_STEPS = 999_999
_ENV_INDEX = "corral_number"
"""Attribute of an env that holds its index."""


@dataclass(frozen=True, slots=True)
class Match:
    """The results of a match, from the side of the trained policy."""

    opponent: str
    outcomes: tuple[float, ...]
    """Outcome of each game: 1 won, 0 lost, 0.5 drawn; the two games of a deal are next to each other."""
    lengths: tuple[int, ...]
    """Steps of each game."""

    @property
    def win_rate(self) -> float:
        """Share of games won; draws count half."""
        return float(np.mean(self.outcomes))

    @property
    def interval(self) -> tuple[float, float]:
        """Lower and upper end of the 95% confidence interval of the win rate."""
        return wilson_interval(self.win_rate, len(self.outcomes))

    @property
    def win_rate_by_seat(self) -> tuple[float, float]:
        """Win rates of the games that the policy begins and of those that the opponent begins."""
        return float(np.mean(self.outcomes[::2])), float(np.mean(self.outcomes[1::2]))

    @property
    def mean_length(self) -> float:
        """Mean number of steps of a game."""
        return float(np.mean(self.lengths))


class _Game(NamedTuple):
    """A game to play: the seed of its deal, and the seat of the policy (0 begins)."""

    seed: int
    seat: int


class _GameResult(NamedTuple):
    """The outcome of a game (1 won, 0 lost, 0.5 drawn) and its number of steps."""

    outcome: float
    length: int


def wilson_interval(rate: float, n: int, z: float = 1.96) -> tuple[float, float]:
    """Return the Wilson score interval of a rate that was observed in ``n`` games (95% for the default ``z``).

    E. B. Wilson, 1927, DOI 10.1080/01621459.1927.10502953.
    """
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
    """Play ``games`` games (an even number) on all cores, each deal from both seats; a seed gives the same games.

    ``on_games`` is called with the number of games after each round. A round in which a worker dies is played again.
    """
    if games < 2 or games % 2:
        raise UsageError(f"games {games}: should be an even number from 2, because each deal is played from both seats")
    schedule = [_Game(episode_seed(seed, EVALUATION, deal), seat) for deal in range(games // 2) for seat in (0, 1)]
    n_envs = min(available_cores(), games // 2)
    games_per_env = 2 * max(1, math.ceil(games / (2 * n_envs * _ROUNDS)))  # in one round
    results: list[_GameResult] = []
    failures = 0
    while len(results) < games:
        env = make_vector_env(factory, n_envs, backend="serial" if n_envs == 1 else "process", num_workers=n_envs)
        try:
            for i in range(n_envs):
                env.apply(lambda env, i=i: setattr(env.unwrapped, _ENV_INDEX, i), [i])  # type: ignore[misc]
            while len(results) < games:
                in_round = schedule[len(results) : len(results) + n_envs * games_per_env]
                by_env = [in_round[i * games_per_env : (i + 1) * games_per_env] for i in range(n_envs)]
                for played in env.apply(lambda env, by_env=by_env: _play_games(env, side, opponent, by_env)):  # type: ignore[misc]
                    results += played
                on_games(len(in_round))
                failures = 0
        except WorkerDied:
            failures += 1
            if failures == _MAX_TRIES:
                raise
        finally:
            env.close()
    return Match(
        opponent=opponent if isinstance(opponent, str) else opponent.name,
        outcomes=tuple(result.outcome for result in results),
        lengths=tuple(result.length for result in results),
    )


def _play_games(
    env: gym.Env[Any, Any], side: FrozenPolicy, opponent: str | FrozenPolicy, by_env: Sequence[Sequence[_Game]]
) -> list[_GameResult]:
    """Play the games that ``by_env`` lists for this env; this runs in the env's process."""
    player = side.player()
    opponent_player = opponent if isinstance(opponent, str) else opponent.player()
    return [_play_game(env, player, opponent_player, game) for game in by_env[getattr(env.unwrapped, _ENV_INDEX)]]


def _play_game(env: gym.Env[Any, Any], player: PolicyPlayer, opponent: str | PolicyPlayer, game: _Game) -> _GameResult:
    get_masks = mask_method(env)
    unused_generator = np.random.default_rng(0)  # greedy players draw nothing
    player = player.for_new_game()
    opponent = opponent if isinstance(opponent, str) else opponent.for_new_game()
    observation, info = env.reset(seed=game.seed, options={OPPONENT: opponent, SEAT: game.seat})
    for length in range(1, _MAX_GAME_STEPS + 1):
        action = player(observation, info.get(MASK) if get_masks is None else get_masks(), unused_generator)
        observation, reward, terminated, truncated, info = env.step(action)
        if terminated or truncated:
            return _GameResult(outcome(float(reward), bool(terminated)), length)
    raise CorralError(f"a game did not end within {_MAX_GAME_STEPS:,} steps")
