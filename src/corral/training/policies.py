"""The policy that a config describes."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import torch

from corral.core.config import TrainConfig
from corral.core.envs import EnvFactory
from corral.core.seeding import network_seed
from corral.core.spaces import Layout
from corral.policy.cnn import pictures_in
from corral.policy.device import DeviceChoice, choose_device
from corral.policy.policy import NetworkFactory, Policy
from corral.vec.making import facts_of

__all__ = ["build_policy", "device_for"]


def device_for(wanted: str, cnn: str, factory: EnvFactory, network: NetworkFactory | None) -> DeviceChoice:
    """The device called ``wanted``; ``auto`` depends on whether the policy sees pictures."""

    def sees_pictures() -> bool:
        plain = network is not None or cnn == "none"
        return not plain and bool(pictures_in(Layout(facts_of(factory).observation_space)))

    return choose_device(wanted, sees_pictures)


def build_policy(
    config: TrainConfig,
    observation_space: gym.Space[Any],
    action_space: gym.Space[Any],
    network: NetworkFactory | None,
    seed: int = 0,
) -> Policy:
    """The policy that a config describes, with initial weights that depend on the seed alone."""
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
    return policy.eval()  # dropout and the like are for gradient steps alone
