"""Warm start: before the first rollout, the policy learns to imitate a scripted expert (behavioural cloning)."""

from __future__ import annotations

import time
from collections.abc import Callable

from corral.opponents.expert_rollouts import collect_expert_games
from corral.ppo.imitation import Demonstrations, imitate
from corral.ppo.learner import LearnerDiverged
from corral.reporting.console import SilentConsole
from corral.training.hooks.hook import Hook
from corral.training.iteration import Start
from corral.training.run import Run

__all__ = ["WarmStart", "warm_start"]

_REPORT_SECONDS = 5.0
"""The time between two progress lines."""


class WarmStart(Hook):
    """Trains the policy of a new run to imitate the expert that the config names."""

    def on_start(self, start: Start) -> None:
        """Imitate the expert; a signal interrupts this, and what was learned is not saved."""
        if start.config.expert is not None and not start.resumed:
            with start.signals.interruptible():
                warm_start(start.run, start.run.reporter.console)


def warm_start(run: Run, console: SilentConsole) -> None:
    """Record games of the expert and train the policy to choose the same actions. The run's seed decides everything."""
    config = run.config
    assert config.expert is not None
    games = collect_expert_games(
        run.factory,
        config.expert,
        None if run.opponents is None else run.opponents.eval_options,
        config.expert_steps,
        n_envs=config.n_envs,
        num_workers=run.backend.num_workers if run.backend.backend != "serial" else 1,
        start_method=config.parallel_start_method,
        seed=run.seed,
        gamma=config.gamma,
        recovery=run.recovery,
        on_steps=_progress_reporter(config.expert, config.expert_steps, console),
    )
    run.progress.fault_counts += games.fault_counts
    console.note(
        f"{config.expert} played {games.games:,} games for the policy to learn from, {len(games.actions):,} steps, "
        f"and won {games.win_rate:.0%}"
    )
    demonstrations = Demonstrations(
        games.observations,
        games.actions,
        masks=games.masks,
        returns=games.returns if config.expert_values else None,
    )
    stats = imitate(run.learner.policy, demonstrations, epochs=config.expert_epochs, seed=run.seed)
    if not run.learner.engine.weights_are_finite():
        raise LearnerDiverged(f"imitating {config.expert} led to weights that are not finite; give fewer expert_epochs")
    console.note(
        f"the policy chooses the same action as {config.expert} in {stats.held_out_accuracy:.0%} of held-out positions"
    )


def _progress_reporter(expert: str, total: int, console: SilentConsole) -> Callable[[int], None]:
    """Return a function that adds up steps and prints a line every few seconds."""
    last_report, played = time.monotonic(), 0

    def on_steps(steps: int) -> None:
        nonlocal last_report, played
        played += steps
        if time.monotonic() > last_report + _REPORT_SECONDS:
            last_report = time.monotonic()
            console.note(f"recording games of the expert {expert}: {played:,} of {total:,} steps")

    return on_steps
