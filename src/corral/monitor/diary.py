"""What a run tells with ``log_episodes``: its environments, every episode, every update, and that all is put away."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from corral.core.types import EpisodeRecord

__all__ = ["closed", "episode_lines", "initialised", "update_line"]

_RECENT = 10


def initialised(n_envs: int, where: str) -> str:
    """All envs are made and reset."""
    return f"{_envs(n_envs)} initialised {where}"


def closed(n_envs: int) -> str:
    """All envs and their processes are gone."""
    return f"{_envs(n_envs)} closed"


def episode_lines(
    episodes: Sequence[EpisodeRecord], earlier: Iterable[float], counted: int, steps: int, n_envs: int
) -> Iterator[str]:
    """A line for each episode of a rollout.

    ``earlier`` are the rewards of the episodes before, ``counted`` is how many there were; the rollout began after
    ``steps`` steps.
    """
    rewards = [*earlier, *(episode.reward for episode in episodes)]
    before = len(rewards) - len(episodes)
    for i, episode in enumerate(episodes):
        recent = float(np.mean(rewards[max(0, before + i + 1 - _RECENT) : before + i + 1]))
        yield (
            f"step {steps + (episode.row + 1) * n_envs:>9,} | episode {counted + i + 1:>6,} | env {episode.env + 1:>3} "
            f"| reward {episode.reward:>9.2f} | length {episode.length:>6,} | mean of last {_RECENT} {recent:>9.2f}"
        )


def update_line(row: Mapping[str, float], epochs: float, steps: int, seconds: float) -> str:
    """What was learned from a rollout of so many steps, from its row of metrics."""
    return (
        f"update {row['time/iterations']:,.0f}: {epochs:.3g} epoch{'' if epochs == 1 else 's'} over {steps:,} steps "
        f"| policy loss {row['train/policy_gradient_loss']:.4f} | value loss {row['train/value_loss']:.3f} "
        f"| entropy {-row['train/entropy_loss']:.2f} | moved {row['train/approx_kl']:.4f} | {seconds:,.1f} s so far"
    )


def _envs(count: int) -> str:
    return f"{count} environment{'s' if count > 1 else ''}"
