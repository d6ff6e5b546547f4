"""The choice of an actor for a policy: numpy for the built-in network on the CPU, torch for all others."""

from __future__ import annotations

import torch

from corral.core.entry_points import file_of, pickle_code
from corral.policy.policy import NetworkFactory, Policy
from corral.rollout.actor_torch import TorchActorSetup, find_torch_batch_layout
from corral.rollout.mlp_actor import MlpActorSetup, find_mlp_batch_layout

__all__ = ["actor_setup"]


def actor_setup(
    policy: Policy, network: NetworkFactory | None, device: torch.device, n_envs: int
) -> MlpActorSetup | TorchActorSetup:
    """The actor for a policy, with the placement of rows that this machine needs."""
    shape = policy.mlp_shape() if device.type == "cpu" else None
    spaces = policy.layout.space, policy.codec.layout.space
    if shape is not None:
        return MlpActorSetup(*spaces, shape, find_mlp_batch_layout(shape, n_envs))
    options = {
        "net_arch": dict(zip(("pi", "vf"), policy.net_arch, strict=True)),
        "activation_fn": policy.activation_fn,
        "normalize_obs": policy.normalizer is not None,
        "score_actions": policy.n_action_features > 0,
        "cnn": policy.cnn,
        "cnn_features": policy.cnn_features,
        "bf16": policy.bf16,
        "recurrent": policy.recurrent,
        "recurrent_size": policy.recurrent_size,
    }
    pickled = None if network is None else pickle_code(network, "network's factory")
    file = None if network is None else file_of(network)
    batch_layout = find_torch_batch_layout(policy, n_envs)
    return TorchActorSetup(*spaces, options, pickled, file, str(device), batch_layout, policy.n_state)
