"""The console lines of ``log_episodes``: environments started and closed, every episode, every epoch, every update."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from corral.core.types import EpisodeRecord

__all__ = ["env_lines", "episode_lines", "epoch_line", "update_line"]

_FEW, _MANY = 10, 100
"""Episodes in the two running means."""
_MOST_LINES = 32
"""With more envs than this, one line stands for all of them."""


def env_lines(n_envs: int, happened: str) -> list[str]:
    """A line for each environment that was ``started`` or ``closed``, and one for all of them."""
    each = [f"environment {i} of {n_envs} {happened}" for i in range(1, n_envs + 1)] if n_envs <= _MOST_LINES else []
    return [*each, f"{n_envs} environment{'s' if n_envs > 1 else ''} {happened}"]


def episode_lines(
    episodes: Sequence[EpisodeRecord],
    earlier: Iterable[float],
    counted: int,
    total: int | None,
    steps: int,
    shape: tuple[int, int],
    seconds: tuple[float, float],
) -> Iterator[str]:
    """A line for each episode of a rollout of ``shape`` [T, N] that began after ``steps`` steps.

    ``earlier`` are the rewards of the episodes before, ``counted`` is how many there were, ``total`` how many the run
    is to have. ``seconds`` of training had passed when the rollout began and when it was complete.
    """
    rewards = [*earlier, *(episode.reward for episode in episodes)]
    before = len(rewards) - len(episodes)
    of_total = "" if total is None else f" of {total:,}"
    for i, episode in enumerate(episodes, 1):
        few, many = (float(np.mean(rewards[max(0, before + i - n) : before + i])) for n in (_FEW, _MANY))
        time = seconds[0] + (seconds[1] - seconds[0]) * (episode.row + 1) / shape[0]
        yield (
            f"step {steps + (episode.row + 1) * shape[1]:>9,} | episode {counted + i:>6,}{of_total} "
            f"| env {episode.env + 1:>3} | reward {episode.reward:>9.2f} | length {episode.length:>6,} "
            f"| mean of {_FEW} {few:>9.2f} | mean of {_MANY} {many:>9.2f} | {time:,.1f} s"
        )


def epoch_line(epoch: int, n_epochs: int) -> str:
    """An epoch of the update is complete."""
    return f"  epoch {epoch} of {n_epochs} done"


def update_line(row: Mapping[str, float], epochs: float, steps: int, seconds: float) -> str:
    """What was learned from a rollout of so many steps, from its row of metrics."""
    return (
        f"update {row['time/iterations']:,.0f}: {epochs:.3g} epoch{'' if epochs == 1 else 's'} over {steps:,} steps "
        f"and {row['rollout/episodes_in_rollout']:,.0f} completed episodes "
        f"| policy loss {row['train/policy_gradient_loss']:.4f} | value loss {row['train/value_loss']:.3f} "
        f"| entropy {-row['train/entropy_loss']:.2f} | KL {row['train/approx_kl']:.4f} | {seconds:,.1f} s"
    )
