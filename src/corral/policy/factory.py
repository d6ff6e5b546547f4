"""Builds the policy that a config describes, and checks that a checkpoint fits it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import torch
from gymnasium import spaces

from corral.config.schema import TrainConfig
from corral.core.errors import CheckpointError
from corral.core.seeding import network_seed
from corral.policy.images import is_normalizable
from corral.policy.observation_encoder import ENCODING
from corral.policy.policy import NetworkFactory, Policy

__all__ = ["build_policy", "check_encoding"]


def build_policy(
    config: TrainConfig,
    observation_space: gym.Space[Any],
    action_space: gym.Space[Any],
    network: NetworkFactory | None,
    seed: int = 0,
) -> Policy:
    """Return the policy that a config describes, with initial weights that depend on the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(network_seed(seed))
        policy = Policy(
            observation_space,
            action_space,
            net_arch=None if config.net_arch is None else dict(config.net_arch.items()),
            activation_fn=config.activation_fn,
            ortho_init=config.ortho_init,
            log_std_init=config.log_std_init,
            normalize_obs=config.normalize_obs,
            score_actions=config.score_actions,
            cnn=config.cnn,
            cnn_features=config.cnn_features,
            bf16=config.bf16,
            recurrent=config.recurrent,
            recurrent_size=config.recurrent_size,
            network=network,
        )
    return policy.eval()  # dropout and the like are active in gradient steps only


def check_encoding(state: Mapping[str, Any], policy: Policy) -> None:
    """Raise CheckpointError if a checkpoint was trained on features that this version computes differently.

    ``state`` is the checkpoint's ``state.json``.
    """
    if (encoding := state.get("encoding")) == ENCODING:
        return
    if encoding is not None:
        raise CheckpointError(f"the checkpoint has encoding {encoding!r:.20}; this version of Corral reads {ENCODING}")
    integers = [leaf for leaf in policy.state_layout.leaves if not leaf.is_float and is_normalizable(leaf)]
    scaled = [leaf for leaf in integers if isinstance(leaf.space, spaces.Box) and leaf.space.high.min() == 255]
    changed = integers if policy.normalizer is not None else [] if policy.is_custom else scaled
    if changed:
        raise CheckpointError(
            f"the run comes from a version of Corral that scaled the integers of observation {changed[0].path!r} "
            "differently, so its policy would get other inputs; train it again"
        )
