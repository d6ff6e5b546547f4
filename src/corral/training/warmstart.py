"""A warm start: before the first rollout, the policy learns to imitate an expert."""

from __future__ import annotations

from corral.monitor.console import QuietBoard
from corral.ppo.imitation import Demonstrations, ImitationStats, imitate
from corral.training.experts import collect_expert_games
from corral.training.run import Run

__all__ = ["warm_start"]


def warm_start(run: Run, board: QuietBoard) -> ImitationStats:
    """Let the expert play, and teach the policy to do the same. Everything follows from the run's seed."""
    config = run.config
    assert config.expert is not None
    games = collect_expert_games(
        run.factory,
        config.expert,
        None if run.opponents is None else run.opponents.yardstick,
        config.expert_steps,
        n_envs=config.n_envs,
        num_workers=run.backend.num_workers if run.backend.backend != "serial" else 1,
        start_method=config.parallel_start_method,
        seed=run.seed,
        gamma=config.gamma,
        warn=board.warn,
    )
    board.note(
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
    board.note(f"the policy now plays as {config.expert} does in {stats.held_out_accuracy:.0%} of positions new to it")
    return stats
