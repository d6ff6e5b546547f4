"""The built-in networks: an MLP for actions and values, and the normalisation of observations before it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor, nn

from corral.core.spaces import Layout
from corral.policy import distributions
from corral.policy.images import is_normalizable
from corral.policy.observation_encoder import Scale

__all__ = ["MlpNetwork", "ObservationNormalizer"]

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "leaky_relu": nn.LeakyReLU,
}


class MlpNetwork(nn.Module):
    """Two separate MLPs, ``pi`` for the action and ``vf`` for the value, as in Stable-Baselines3.

    With ``n_action_features``, ``pi`` returns an embedding of the state instead, and the logit of an action is
    ``score(activation(embedding + action(action_features)))`` (see ``scoring``).
    """

    def __init__(
        self,
        n_features: int,
        n_params: int,
        pi: Sequence[int],
        vf: Sequence[int],
        activation: str,
        ortho_init: bool,
        n_action_features: int = 0,
    ) -> None:
        super().__init__()
        self.scores = n_action_features > 0
        self.activation = ACTIVATIONS[activation]()
        self.pi = _mlp(n_features, pi, pi[-1] if self.scores else n_params, ACTIVATIONS[activation])
        self.vf = _mlp(n_features, vf, 1, ACTIVATIONS[activation])
        policy_head = self.pi[-1]
        if self.scores:
            self.action = nn.Linear(n_action_features, pi[-1])
            self.score = policy_head = nn.Linear(pi[-1], 1, bias=False)
        if ortho_init:
            # Orthogonal weights (Saxe et al. 2014, arXiv:1312.6120) with the gains of Stable-Baselines3. A small gain
            # in the last policy layer makes the first actions nearly uniform: one of the choices that mattered most in
            # Andrychowicz et al. 2021, arXiv:2006.05990.
            gains: dict[nn.Module, float] = {policy_head: 0.01, self.vf[-1]: 1.0}
            for layer in self.modules():
                if isinstance(layer, nn.Linear):
                    nn.init.orthogonal_(layer.weight, gains.get(layer, math.sqrt(2)))
                    if layer.bias is not None:
                        nn.init.zeros_(layer.bias)

    def forward(
        self, features: Tensor, action_features: Tensor | None = None, masks: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Turn features [B, F] into action parameters [B, P] and values [B].

        With ``action_features`` [B, A, k], the parameters are logits [B, A]. Actions that ``masks`` [B, A] forbid are
        not scored, to save work.
        """
        params, values = self.pi(features), self.vf(features).squeeze(-1)
        if not self.scores:
            return params, values
        assert action_features is not None
        if masks is None:
            hidden = self.activation(params[:, None] + self.action(action_features.float()))  # [B, A, H]
            return self.score(hidden).squeeze(-1), values
        rows, actions = masks.nonzero(as_tuple=True)  # each [M], M allowed actions in all rows together
        hidden = self.activation(params[rows] + self.action(action_features[rows, actions].float()))  # [M, H]
        logits = params.new_full(masks.shape, distributions.FORBIDDEN)
        return logits.index_put((rows, actions), self.score(hidden).squeeze(-1)), values


class ObservationNormalizer(nn.Module):
    """Means and standard deviations of the leaves of an observation.

    They are buffers, because they change only between iterations and are published and saved with the weights.
    """

    def __init__(self, layout: Layout) -> None:
        super().__init__()
        leaves = [leaf for leaf in layout.leaves if is_normalizable(leaf)]
        self.paths = tuple(leaf.path for leaf in leaves)
        for i, leaf in enumerate(leaves):
            self.register_buffer(f"mean_{i}", torch.zeros(leaf.shape))
            self.register_buffer(f"deviation_{i}", torch.ones(leaf.shape))

    def set(self, path: str, mean: npt.NDArray[Any], deviation: npt.NDArray[Any]) -> None:
        """Set the statistics of one leaf."""
        i = self.paths.index(path)
        self.get_buffer(f"mean_{i}").copy_(torch.as_tensor(mean))
        self.get_buffer(f"deviation_{i}").copy_(torch.as_tensor(deviation))

    def scales(self) -> dict[str, Scale]:
        """Return the statistics of each leaf, by path, as arrays."""
        return {
            path: Scale(self.get_buffer(f"mean_{i}").cpu().numpy(), self.get_buffer(f"deviation_{i}").cpu().numpy())
            for i, path in enumerate(self.paths)
        }


def _mlp(n_in: int, hidden: Sequence[int], n_out: int, activation: type[nn.Module]) -> nn.Sequential:
    """Return linear layers with activations between them: ``n_in``, the hidden sizes, ``n_out``."""
    layers: list[nn.Module] = []
    for size in hidden:
        layers += [nn.Linear(n_in, size), activation()]
        n_in = size
    return nn.Sequential(*layers, nn.Linear(n_in, n_out))
