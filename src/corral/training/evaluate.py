"""Evaluation: one env, most likely actions, the same episodes every time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from corral.core.seeding import EVALUATION, episode_seed
from corral.core.types import Actor
from corral.vec.api import CorralVectorEnv

__all__ = ["EvaluationResult", "evaluate_actor"]


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """Rewards and lengths of the evaluation episodes."""

    rewards: tuple[float, ...]
    lengths: tuple[int, ...]
    cut_off: int
    """Episodes that were still going on after ``max_steps``."""

    @property
    def mean_reward(self) -> float:
        """Mean over the episodes."""
        return float(np.mean(self.rewards))

    @property
    def std_reward(self) -> float:
        """Standard deviation over the episodes."""
        return float(np.std(self.rewards))

    @property
    def mean_length(self) -> float:
        """Mean over the episodes."""
        return float(np.mean(self.lengths))


def evaluate_actor(
    env: CorralVectorEnv,
    actor: Actor,
    episodes: int,
    seed: int,
    max_steps: int,
    on_episode: Callable[[], object] = lambda: None,
    options: dict[str, Any] | None = None,
) -> EvaluationResult:
    """Play ``episodes`` episodes, the k-th always with the same seed, each for at most ``max_steps``.

    ``options`` are given to every reset.
    """
    assert env.num_envs == 1
    now, rewards, lengths, cut_off = env.arrays, [], [], 0
    for episode in range(episodes):
        env.reset_arrays([episode_seed(seed, EVALUATION, episode)], [options])
        reward, length, done = 0.0, 0, False
        while not done and length < max_steps:
            env.codec.decode(actor.best(now.observations, env.masks), now.actions)
            env.send()
            env.recv()
            reward += float(now.rewards[0])
            length += 1
            done = bool(now.terminated[0] or now.truncated[0])
        rewards.append(reward)
        lengths.append(length)
        cut_off += not done
        on_episode()
    return EvaluationResult(tuple(rewards), tuple(lengths), cut_off)
