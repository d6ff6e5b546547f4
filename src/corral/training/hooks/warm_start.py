"""A warm start: before the first rollout, the policy learns to imitate an expert."""

from __future__ import annotations

import time

from corral.opponents.expert_rollouts import collect_expert_games
from corral.ppo.imitation import Demonstrations, imitate
from corral.ppo.learner import LearnerDiverged
from corral.reporting.console import SilentConsole
from corral.training.hooks.hook import Hook
from corral.training.iteration import Start
from corral.training.run import Run

__all__ = ["WarmStart", "warm_start"]

_TELL_SECONDS = 5.0


class WarmStart(Hook):
    """Teaches the policy before the first rollout of a new run, if the config names an expert."""

    def on_start(self, start: Start) -> None:
        """Teach it; an interrupt discards what was taught."""
        if start.config.expert is not None and not start.resumed:
            with start.signals.allowed():
                warm_start(start.run, start.run.reporter.console)


def warm_start(run: Run, console: SilentConsole) -> None:
    """Let the expert play, and teach the policy to do the same. Everything follows from the run's seed."""
    config = run.config
    assert config.expert is not None
    told, played = time.monotonic(), 0

    def tell(steps: int) -> None:
        nonlocal told, played
        played += steps
        if time.monotonic() > told + _TELL_SECONDS:
            told = time.monotonic()
            console.note(f"{config.expert} plays, to be imitated: {played:,} of {config.expert_steps:,} steps")

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
        on_steps=tell,
    )
    run.progress.recovery_counts += games.recovery_counts
    console.note(
        f"{config.expert} played {games.games:,} games for the policy to learn from, {len(games.actions):,} steps, "
        f"and won {games.win_rate:.0%}"
    )
    stats = imitate(
        run.learner.policy,
        Demonstrations(
            games.observations,
            games.actions,
            masks=games.masks,
            returns=games.returns if config.expert_values else None,
        ),
        epochs=config.expert_epochs,
        seed=run.seed,
    )
    if not run.learner.engine.finite():
        raise LearnerDiverged(f"imitating {config.expert} led to weights that are not finite; give fewer expert_epochs")
    console.note(
        f"the policy now plays as {config.expert} does in {stats.held_out_accuracy:.0%} of positions new to it"
    )
