"""The console lines of ``log_episodes``: one for each env started or closed, each episode, epoch and update."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from corral.core.types import EpisodeRecord

__all__ = ["env_lines", "episode_lines", "epoch_line", "update_line"]

_SHORT_WINDOW, _LONG_WINDOW = 10, 100
"""Episodes in the two running means of the reward."""
_MAX_ENV_LINES = 32
"""With more envs than this, there is only one line for all of them."""


def env_lines(n_envs: int, happened: str) -> list[str]:
    """Return a line for each env, and one for all of them. ``happened`` is ``started`` or ``closed``."""
    indices = range(1, n_envs + 1) if n_envs <= _MAX_ENV_LINES else ()
    lines = [f"environment {i} of {n_envs} {happened}" for i in indices]
    return [*lines, f"{n_envs} environment{'s' if n_envs > 1 else ''} {happened}"]


def episode_lines(
    episodes: Sequence[EpisodeRecord],
    earlier_rewards: Iterable[float],
    episodes_before: int,
    total: int | None,
    steps: int,
    shape: tuple[int, int],
    seconds: tuple[float, float],
) -> Iterator[str]:
    """Yield a line for each episode that ended in a rollout.

    ``earlier_rewards`` are rewards of episodes before the rollout, ``episodes_before`` is the number of all episodes
    before it, and ``total`` the number of episodes in the budget of the run. ``steps`` is the number of steps before
    the rollout, ``shape`` its shape [T, N]. ``seconds`` are the seconds of training at its start and at its end; the
    time of an episode's end is interpolated.
    """
    n_steps, n_envs = shape
    start_seconds, end_seconds = seconds
    rewards = [*earlier_rewards, *(episode.reward for episode in episodes)]
    n_earlier = len(rewards) - len(episodes)
    of_total = "" if total is None else f" of {total:,}"
    for i, episode in enumerate(episodes, 1):
        end = n_earlier + i
        short_mean, long_mean = (float(np.mean(rewards[max(0, end - n) : end])) for n in (_SHORT_WINDOW, _LONG_WINDOW))
        time = start_seconds + (end_seconds - start_seconds) * (episode.row + 1) / n_steps
        yield (
            f"step {steps + (episode.row + 1) * n_envs:>9,} | episode {episodes_before + i:>6,}{of_total} "
            f"| env {episode.env + 1:>3} | reward {episode.reward:>9.2f} | length {episode.length:>6,} "
            f"| mean of {_SHORT_WINDOW} {short_mean:>9.2f} | mean of {_LONG_WINDOW} {long_mean:>9.2f} | {time:,.1f} s"
        )


def epoch_line(epoch: int, n_epochs: int) -> str:
    """Return the line for a complete epoch of an update."""
    return f"  epoch {epoch} of {n_epochs} done"


def update_line(row: Mapping[str, float], epochs: float, steps: int, seconds: float) -> str:
    """Return the line for an update on a rollout of ``steps`` steps: its losses and KL, from its row of metrics."""
    return (
        f"update {row['time/iterations']:,.0f}: {epochs:.3g} epoch{'' if epochs == 1 else 's'} over {steps:,} steps "
        f"and {row['rollout/episodes_in_rollout']:,.0f} completed episodes "
        f"| policy loss {row['train/policy_gradient_loss']:.4f} | value loss {row['train/value_loss']:.3f} "
        f"| entropy {-row['train/entropy_loss']:.2f} | KL {row['train/approx_kl']:.4f} | {seconds:,.1f} s"
    )
