"""The flag ``--log-episodes``: prints a line for every episode."""

from __future__ import annotations

from corral.reporting.episode_lines import episode_lines
from corral.training.hooks.hook import Hook
from corral.training.iteration import Iteration

__all__ = ["EpisodeLog"]


class EpisodeLog(Hook):
    """Prints a line for each episode that ended in the rollout."""

    def after_iteration(self, iteration: Iteration) -> None:
        """Print the lines; episodes are numbered on from the count before this rollout."""
        run, before, rollout = iteration.run, iteration.before, iteration.rollout
        lines = episode_lines(
            rollout.episodes,
            earlier_rewards=list(before.recent_rewards),
            episodes_before=before.episodes,
            total=run.config.num_episodes,
            steps=before.timesteps,
            shape=(rollout.n_steps, rollout.n_envs),
            seconds=(before.seconds, before.seconds + run.stopwatch.seconds_to_rollout),
        )
        for line in lines:
            run.reporter.console.note(line)
