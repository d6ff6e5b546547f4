"""The policy: a built-in network for any spaces or a user's network, with the distribution of its actions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from corral.config.values import DEFAULT_LAYERS, Cnn, Recurrent
from corral.core.actions import ACTION_FEATURES, ActionCodec, find_action_features_leaf, state_layout
from corral.core.errors import UsageError
from corral.core.spaces import Layout
from corral.core.types import Leaves
from corral.policy import distributions, mlp
from corral.policy.cnn import ImageEncoder
from corral.policy.images import image_leaves
from corral.policy.networks import MlpNetwork, ObservationNormalizer
from corral.policy.observation_encoder import ObservationEncoder, encoded_size, normalize_observations
from corral.policy.recurrent import RecurrentCore, SequenceStart

__all__ = ["Evaluation", "NetworkFactory", "Policy", "n_action_params"]

NetworkFactory = Callable[[gym.Space[Any], gym.Space[Any]], nn.Module]
"""Builds a network from the observation and the action space of one env.

Its ``forward(observations)`` gets what the env returns, batched, as tensors (in a dict or tuple if the space is one)
and returns ``(params [B, n_action_params(action_space)], values [B])``.
"""
Inputs = dict[str, Tensor]
"""What a forward pass of the policy gets, by name, each [B, ...]."""
FEATURES, IMAGE = "features", "image:"
"""Names of inputs: that of the encoded features, and what stands before the path of an image."""


class Evaluation(NamedTuple):
    """Log-probabilities of given actions, entropies and values under the current weights, for the loss."""

    log_probs: Tensor  # [B]
    entropy: Tensor  # [B]
    values: Tensor  # [B]
    params: Tensor  # [B, P]


class RecurrentStep(NamedTuple):
    """The outputs of one step of a recurrent policy."""

    params: Tensor  # [B, P]
    values: Tensor  # [B]
    states: Tensor  # [B, S] after the step


def n_action_params(action_space: gym.Space[Any]) -> int:
    """Return the size P of a network's output for actions: a logit for each choice, a mean for each number."""
    return ActionCodec(action_space).n_params


class Policy(nn.Module):
    """Turns observations into action distributions and values; its state dict is what is saved and published."""

    def __init__(
        self,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        *,
        net_arch: Mapping[str, Sequence[int]] | None = None,
        activation_fn: str = "tanh",
        ortho_init: bool = True,
        log_std_init: float = 0.0,
        normalize_obs: bool = False,
        score_actions: bool | None = None,
        cnn: Cnn = "auto",
        cnn_features: int = 256,
        bf16: bool = False,
        recurrent: Recurrent = "none",
        recurrent_size: int = 128,
        network: NetworkFactory | None = None,
    ) -> None:
        super().__init__()
        self.layout = Layout(observation_space)
        self.codec = ActionCodec(action_space)
        self.is_custom = network is not None
        self.n_action_features = self._count_action_features(score_actions)
        """Features of each action; 0 if the policy does not score actions."""
        self.state_layout = state_layout(self.layout) if self.n_action_features else self.layout
        self.normalizer = ObservationNormalizer(self.state_layout) if normalize_obs else None
        images = () if self.is_custom or cnn == "none" else image_leaves(self.state_layout)
        self.pictures = ImageEncoder(images, cnn, cnn_features, ortho_init, bf16) if images else None
        self.encoder = ObservationEncoder(self.state_layout, {image.path for image in images})
        self.net_arch = self._choose_arch(net_arch)
        self.cnn, self.cnn_features, self.bf16 = cnn, cnn_features, bf16
        self.activation_fn = activation_fn
        self.recurrent, self.recurrent_size = recurrent, recurrent_size
        self.core: RecurrentCore | None = None
        if network is not None:
            self.network = network(observation_space, action_space)
            if not isinstance(self.network, nn.Module):
                raise UsageError(f"the policy returned {type(self.network).__name__}, expected a torch.nn.Module")
        else:
            self._build_network(ortho_init)
        self.log_std = nn.Parameter(torch.full((sum(self.codec.gaussian),), log_std_init))

    def _build_network(self, ortho_init: bool) -> None:
        """Build the recurrent core, if there is one, and the MLP after it."""
        n_image_features = 0 if self.pictures is None else self.pictures.n_features
        n_features = self.encoder.n_features + n_image_features
        if self.recurrent != "none":
            self.core = RecurrentCore(self.recurrent, n_features, self.recurrent_size, ortho_init)
            n_features = self.recurrent_size
        pi, vf = self.net_arch
        self.network = MlpNetwork(
            n_features=n_features,
            n_params=self.codec.n_params,
            pi=pi,
            vf=vf,
            activation=self.activation_fn,
            ortho_init=ortho_init,
            n_action_features=self.n_action_features,
        )

    @property
    def n_state(self) -> int:
        """Size S of the recurrent state of one env; 0 if the policy is not recurrent."""
        return 0 if self.core is None else self.core.n_state

    def mlp_shape(self) -> mlp.MlpShape | None:
        """Return the sizes of the built-in MLP if the numpy engine can run it; None for any other network."""
        is_mlp = not self.is_custom and self.pictures is None and self.core is None
        if not is_mlp or self.activation_fn not in mlp.ACTIVATIONS:
            return None
        pi, vf = self.net_arch
        return mlp.MlpShape(
            n_features=encoded_size(self.state_layout),
            n_params=self.codec.n_params,
            pi=pi,
            vf=vf,
            activation=self.activation_fn,
            n_log_std=self.log_std.numel(),
            n_action_features=self.n_action_features,
        )

    def features(self, observations: Leaves, out: npt.NDArray[np.float32] | None = None) -> Leaves:
        """Return the part of the forward pass that uses no weights: normalisation and encoding.

        The learner computes it once for each rollout. Encoded features are written to ``out`` [B, F] if it is given.
        Images are returned as they are.
        """
        leaves = (
            observations if self.normalizer is None else normalize_observations(observations, self.normalizer.scales())
        )
        if self.is_custom:
            return leaves
        images = () if self.pictures is None else self.pictures.images
        features = {IMAGE + image.path: leaves[image.path] for image in images}
        if self.encoder.n_features or not features:
            features[FEATURES] = self.encoder(leaves, out)
        if self.n_action_features:
            features[ACTION_FEATURES] = leaves[ACTION_FEATURES]
        return features

    def prepare(self, observations: Leaves) -> Inputs:
        """Return ``features(observations)`` as tensors on the device of the weights."""
        device = self.log_std.device
        return {name: torch.from_numpy(leaf).to(device) for name, leaf in self.features(observations).items()}

    def forward(
        self, inputs: Inputs, masks: Tensor | None = None, start: SequenceStart | None = None
    ) -> tuple[Tensor, Tensor]:
        """Turn prepared observations into action parameters [B, P] and values [B].

        ``masks`` do not change the result; they save the scoring of forbidden actions. For a recurrent policy, rows
        are whole sequences, and ``start`` holds their initial states.
        """
        if not self.is_custom:
            features = self._join_features(inputs)
            if self.core is not None:
                assert start is not None
                features = self.core(features, start)
            params, values = self.network(features, inputs.get(ACTION_FEATURES), masks)
            return params, values
        params, values = self.network(self.layout.assemble([inputs[path] for path in self.layout.paths]))
        batch = len(next(iter(inputs.values())))
        if params.shape != (batch, self.codec.n_params) or values.shape != (batch,):
            raise UsageError(
                f"the policy network returned shapes {tuple(params.shape)} and {tuple(values.shape)}, expected "
                f"({batch}, {self.codec.n_params}) for the action and ({batch},) for the value"
            )
        return params, values

    def step(self, inputs: Inputs, states: Tensor) -> RecurrentStep:
        """Take one step of a recurrent policy from the states [B, S]."""
        assert self.core is not None
        states = self.core.step(self._join_features(inputs), states)
        params, values = self.network(self.core.output(states), inputs.get(ACTION_FEATURES))
        return RecurrentStep(params, values, states)

    def evaluate(
        self, inputs: Inputs, actions: Tensor, masks: Tensor | None, start: SequenceStart | None = None
    ) -> Evaluation:
        """Return log-probabilities of ``actions`` [B, D], entropies and values, for a gradient step."""
        params, values = self(inputs, masks, start)
        likelihood = distributions.likelihood(self.codec.heads, params, self.log_std, actions, masks)
        return Evaluation(likelihood.log_probs, likelihood.entropy, values, params)

    def _join_features(self, inputs: Inputs) -> Tensor:
        """Return all features [B, F]: the encoded ones, then those of images."""
        if self.pictures is None:
            return inputs[FEATURES]
        image_features = self.pictures({image.path: inputs[IMAGE + image.path] for image in self.pictures.images})
        return torch.cat([inputs[FEATURES], image_features], dim=1) if FEATURES in inputs else image_features

    def _choose_arch(self, net_arch: Mapping[str, Sequence[int]] | None) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the hidden layers of ``pi`` and ``vf``; the default after images alone is none, as in SB3."""
        if net_arch is None:
            has_only_images = self.pictures is not None and not self.encoder.n_features and not self.n_action_features
            sizes = () if has_only_images else DEFAULT_LAYERS
            return sizes, sizes
        if self.n_action_features and not net_arch["pi"]:
            raise UsageError(
                "score_actions needs a hidden layer in the policy's net_arch, but pi is empty; "
                "give it one, such as pi=64, or turn score_actions off"
            )
        return tuple(net_arch["pi"]), tuple(net_arch["vf"])

    def _count_action_features(self, score_actions: bool | None) -> int:
        """Return the number of features of an action if the policy scores actions by them; else 0."""
        if self.is_custom or score_actions is False:
            return 0
        leaf = find_action_features_leaf(self.layout, self.codec.layout.space)
        if leaf is None:
            if score_actions:
                raise UsageError(
                    f"score_actions needs Discrete(A) actions and, among others in a Dict, observations "
                    f"{ACTION_FEATURES!r} of shape (A, k) in float16 or float32; this env has "
                    f"{self.codec.layout.space} and {self.layout.space}. Add them, or leave score_actions out"
                )
            return 0
        return leaf.shape[1]
