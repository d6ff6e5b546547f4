"""What an update asks besides PPO's own loss: for runs that do not start from nothing."""

from __future__ import annotations

from dataclasses import dataclass

from corral.config.schema import TrainConfig

__all__ = ["NO_EXTRA_TERMS", "LossTerms", "terms_at"]


@dataclass(frozen=True, slots=True)
class LossTerms:
    """The extra terms of one update."""

    kl_ref: float = 0.0
    """Weight of KL(reference || policy)."""
    freeze_policy: bool = False
    """Let the value function learn, and leave the policy as it is."""
    clip_range: float | None = None
    ent_coef: float | None = None
    """In place of the config's."""


NO_EXTRA_TERMS = LossTerms()


def terms_at(config: TrainConfig, timesteps: int) -> LossTerms:
    """The terms of an update on a rollout that begins after ``timesteps``."""
    weight = 0.0
    if config.kl_ref_coef:
        assert config.kl_ref_steps is not None
        weight = config.kl_ref_coef * max(0.0, 1 - timesteps / config.kl_ref_steps)
    return LossTerms(weight, freeze_policy=timesteps < config.critic_warmup)
