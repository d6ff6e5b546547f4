"""Chooses the actor that runs a policy: numpy for the built-in network on the CPU, torch for all others."""

from __future__ import annotations

from pathlib import Path

import torch

from corral.core.entry_points import pickle_code, user_file_of
from corral.policy.policy import NetworkFactory, Policy
from corral.rollout.actor_torch import TorchActorSpec, find_torch_batch_layout
from corral.rollout.mlp_actor import MlpActorSpec, find_mlp_batch_layout

__all__ = ["actor_spec"]


def actor_spec(
    policy: Policy, network: NetworkFactory | None, device: torch.device, n_envs: int
) -> MlpActorSpec | TorchActorSpec:
    """Return the spec from which any process builds an actor for ``policy``.

    It contains the layout of batches with which this machine computes the same result for a row in every batch.
    """
    shape = policy.mlp_shape() if device.type == "cpu" else None
    if shape is not None:
        return MlpActorSpec(
            observation_space=policy.layout.space,
            action_space=policy.codec.layout.space,
            shape=shape,
            batch_layout=find_mlp_batch_layout(shape, n_envs),
        )
    network_file = None if network is None else user_file_of(network)
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
    return TorchActorSpec(
        observation_space=policy.layout.space,
        action_space=policy.codec.layout.space,
        options=options,
        network=None if network is None else pickle_code(network, "network's factory"),
        network_file=network_file,
        network_content=None if network_file is None else Path(network_file).read_bytes(),
        device=str(device),
        batch_layout=find_torch_batch_layout(policy, n_envs),
        n_state=policy.n_state,
    )
