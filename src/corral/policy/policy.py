"""The policy: a network for any spaces, or one of the user's, with the distribution of its actions around it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from corral.config.values import DEFAULT_LAYERS, Cnn, Recurrent
from corral.core.actions import ACTION_FEATURES, ActionCodec, scored_leaf, state_layout
from corral.core.errors import UsageError
from corral.core.spaces import Layout
from corral.core.types import Leaves
from corral.policy import distributions, mlp
from corral.policy.cnn import PictureEncoder
from corral.policy.images import image_leaves
from corral.policy.networks import MlpNetwork, ObservationNormalizer
from corral.policy.observation_encoder import Encoder, encoded_size, normalized
from corral.policy.recurrent import RecurrentCore, SequenceStart

__all__ = ["Evaluation", "NetworkFactory", "Policy", "n_action_params"]

NetworkFactory = Callable[[gym.Space[Any], gym.Space[Any]], nn.Module]
"""Builds a network from the observation and the action space of one env.

Its ``forward(observations)`` gets what the env returns, batched, as tensors (in a dict or tuple if the space is one)
and returns ``(params [B, n_action_params(action_space)], values [B])``.
"""
Inputs = dict[str, Tensor]
FEATURES, PICTURE = "features", "picture:"


class Evaluation(NamedTuple):
    """What the learner wants to know of the actions that were taken, each [B]; and their parameters."""

    log_probs: Tensor
    entropy: Tensor
    values: Tensor
    params: Tensor  # [B, P]


def n_action_params(action_space: gym.Space[Any]) -> int:
    """How many numbers a network puts out for an action: a logit a choice, a mean a continuous number."""
    return ActionCodec(action_space).n_params


class Policy(nn.Module):
    """Observations in, action distribution and value out. Everything that is saved and published is in here."""

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
        self.custom = network is not None
        self.n_action_features = self._look_for_action_features(score_actions)
        """Numbers that describe each action; 0 if actions are not scored."""
        self.state_layout = state_layout(self.layout) if self.n_action_features else self.layout
        self.normalizer = ObservationNormalizer(self.state_layout) if normalize_obs else None
        pictures = () if self.custom or cnn == "none" else image_leaves(self.state_layout)
        self.pictures = PictureEncoder(pictures, cnn, cnn_features, ortho_init, bf16) if pictures else None
        self.encoder = Encoder(self.state_layout, {picture.path for picture in pictures})
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
            n_seen = 0 if self.pictures is None else self.pictures.n_features
            n_features = self.encoder.n_features + n_seen
            if recurrent != "none":
                self.core = RecurrentCore(recurrent, n_features, recurrent_size, ortho_init)
                n_features = recurrent_size
            sizes = n_features, self.codec.n_params
            self.network = MlpNetwork(*sizes, *self.net_arch, activation_fn, ortho_init, self.n_action_features)
        self.log_std = nn.Parameter(torch.full((sum(self.codec.gaussian),), log_std_init))

    @property
    def n_state(self) -> int:
        """Numbers that are remembered of an env; 0 without a memory."""
        return 0 if self.core is None else self.core.n_state

    def mlp_shape(self) -> mlp.MlpShape | None:
        """The built-in network's sizes, if numpy can run it; None for any other."""
        plain = not self.custom and self.pictures is None and self.core is None
        if not plain or self.activation_fn not in mlp.ACTIVATIONS:
            return None
        return mlp.MlpShape(
            encoded_size(self.state_layout),
            self.codec.n_params,
            *self.net_arch,
            self.activation_fn,
            self.log_std.numel(),
            self.n_action_features,
        )

    def features(self, observations: Leaves, out: npt.NDArray[np.float32] | None = None) -> Leaves:
        """The part of the forward pass that no weight takes part in; the learner does it once for each rollout.

        The built-in network's go to ``out`` [B, F], if that is given. Pictures stay what they are.
        """
        leaves = observations if self.normalizer is None else normalized(observations, self.normalizer.scales())
        if self.custom:
            return leaves
        pictures = () if self.pictures is None else self.pictures.pictures
        found = {PICTURE + picture.path: leaves[picture.path] for picture in pictures}
        if self.encoder.n_features or not found:
            found[FEATURES] = self.encoder(leaves, out)
        if self.n_action_features:
            found[ACTION_FEATURES] = leaves[ACTION_FEATURES]
        return found

    def prepare(self, observations: Leaves) -> Inputs:
        """``features`` as tensors, where the weights are."""
        device = self.log_std.device
        return {name: torch.from_numpy(leaf).to(device) for name, leaf in self.features(observations).items()}

    def forward(
        self, inputs: Inputs, masks: Tensor | None = None, start: SequenceStart | None = None
    ) -> tuple[Tensor, Tensor]:
        """Prepared observations to action parameters [B, P] and values [B]; ``masks`` only save work.

        With a memory, rows are whole sequences, and ``start`` says what they start from.
        """
        if not self.custom:
            features = self._see(inputs)
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

    def step(self, inputs: Inputs, states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """A step of a policy with a memory: also the states [B, S] afterwards, given those before."""
        assert self.core is not None
        states = self.core.step(self._see(inputs), states)
        params, values = self.network(self.core.output(states), inputs.get(ACTION_FEATURES))
        return params, values, states

    def evaluate(
        self, inputs: Inputs, actions: Tensor, masks: Tensor | None, start: SequenceStart | None = None
    ) -> Evaluation:
        """Log-probability, entropy and value, for a gradient step."""
        params, values = self(inputs, masks, start)
        known = distributions.likelihood(self.codec.heads, params, self.log_std, actions, masks)
        return Evaluation(known.log_probs, known.entropy, values, params)

    def _see(self, inputs: Inputs) -> Tensor:
        """All features [B, F], those of pictures after the others."""
        if self.pictures is None:
            return inputs[FEATURES]
        seen = self.pictures({picture.path: inputs[PICTURE + picture.path] for picture in self.pictures.pictures})
        return torch.cat([inputs[FEATURES], seen], dim=1) if FEATURES in inputs else seen

    def _choose_arch(self, net_arch: Mapping[str, Sequence[int]] | None) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Hidden layers of the towers; as in Stable-Baselines3 there are none if there is nothing but a picture."""
        if net_arch is None:
            only_pictures = self.pictures is not None and not self.encoder.n_features and not self.n_action_features
            sizes = () if only_pictures else DEFAULT_LAYERS
            return sizes, sizes
        if self.n_action_features and not net_arch["pi"]:
            raise UsageError(
                "score_actions needs a hidden layer in the policy's net_arch, but pi is empty; "
                "give it one, such as pi=64, or turn score_actions off"
            )
        return tuple(net_arch["pi"]), tuple(net_arch["vf"])

    def _look_for_action_features(self, score_actions: bool | None) -> int:
        """How many numbers describe an action, if actions are to be scored by them; else 0."""
        if self.custom or score_actions is False:
            return 0
        leaf = scored_leaf(self.layout, self.codec.layout.space)
        if leaf is None:
            if score_actions:
                raise UsageError(
                    f"score_actions needs Discrete(A) actions and, among others in a Dict, observations "
                    f"{ACTION_FEATURES!r} of shape (A, k) in float16 or float32; this env has "
                    f"{self.codec.layout.space} and {self.layout.space}. Add them, or leave score_actions out"
                )
            return 0
        return leaf.shape[1]
