"""Terms that an update may add to PPO's loss, for runs that start from a trained policy."""

from __future__ import annotations

from dataclasses import dataclass

from corral.config.schema import TrainConfig

__all__ = ["NO_EXTRA_TERMS", "LossTerms", "loss_terms_at"]


@dataclass(frozen=True, slots=True)
class LossTerms:
    """What one update's loss has besides, or instead of, what the config says."""

    kl_ref_coef: float = 0.0
    """Coefficient of KL(reference || policy)."""
    freeze_policy: bool = False
    """Update the value function only, and leave the policy as it is."""
    clip_range: float | None = None
    """Replaces the config's ``clip_range``, if given."""
    ent_coef: float | None = None
    """Replaces the config's ``ent_coef``, if given."""


NO_EXTRA_TERMS = LossTerms()


def loss_terms_at(config: TrainConfig, timesteps: int) -> LossTerms:
    """Return the terms for a rollout that begins after ``timesteps``.

    The KL coefficient falls linearly to 0 over ``kl_ref_steps``; the policy is frozen for the first ``critic_warmup``
    steps.
    """
    kl_ref_coef = 0.0
    if config.kl_ref_coef:
        assert config.kl_ref_steps is not None
        kl_ref_coef = config.kl_ref_coef * max(0.0, 1 - timesteps / config.kl_ref_steps)
    return LossTerms(kl_ref_coef, freeze_policy=timesteps < config.critic_warmup)
