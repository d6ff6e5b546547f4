"""The built-in network as an actor: numpy alone, so that a worker needs no torch."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from corral.core.actions import ACTION_FEATURES, ActionCodec, state_layout
from corral.core.spaces import Layout
from corral.core.types import ActionSample, GreedyAction, Leaves, Weights
from corral.policy import array_distributions
from corral.policy.mlp import Mlp, MlpShape
from corral.policy.observation_encoder import ObservationEncoder, normalize_observations, scales_from_weights
from corral.policy.scoring import Choices
from corral.rollout.batch_layout import (
    FIXED_BATCHES,
    MAX_TESTED_WEIGHTS,
    BatchLayout,
    RowLayout,
    find_batch_layout,
    tested_envs,
)

__all__ = ["MlpActor", "MlpActorSpec"]

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class MlpActorSpec:
    """What a worker needs to act, besides weights."""

    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]
    shape: MlpShape
    batch_layout: BatchLayout
    n_state: ClassVar[int] = 0

    def build(self, first_env: int, n_envs: int) -> MlpActor:
        """An actor for consecutive envs of the run."""
        return MlpActor(self, first_env, n_envs)


class MlpActor:
    """Acts for envs ``first_env`` and on. Weights are copied in by ``load``."""

    defers_values = True
    n_state = 0

    def __init__(self, setup: MlpActorSpec, first_env: int, n_envs: int) -> None:
        self.batch_layout = setup.batch_layout
        layout, scored = Layout(setup.observation_space), setup.shape.n_action_features > 0
        self._layout = state_layout(layout) if scored else layout
        self.value_leaves: frozenset[str] | None = frozenset(self._layout.paths)
        self._encode = ObservationEncoder(self._layout)
        self._heads = ActionCodec(setup.action_space).heads
        self._mlp = Mlp(setup.shape)
        self._scales = scales_from_weights(self._layout, {})
        self._place = self.batch_layout.rows_of(range(first_env, first_env + n_envs))
        self._features = np.zeros((self._place.padded, setup.shape.n_features), np.float32)
        self._n_envs = n_envs

    def load(self, weights: Weights) -> None:
        """Act with these weights from now on."""
        self._mlp.load(weights)
        self._scales = {
            path: type(scale)(scale.mean.copy(), scale.deviation.copy())
            for path, scale in scales_from_weights(self._layout, weights).items()
        }

    def act(
        self, observations: Leaves, masks: Array | None, noise: Floats, states: Floats | None = None
    ) -> ActionSample:
        """Sample actions, with their log-probabilities; values are cheaper to ask for all at once, later."""
        own = len(noise) == self._n_envs
        place, features = (self._place, self._features) if own else (self.batch_layout.rows_of(range(len(noise))), None)
        params = self._infer(self._mlp.params, observations, place, features)
        if self._mlp.scorer is None:
            drawn = array_distributions.draw(self._heads, params, self._mlp.log_std, masks, noise)
            return ActionSample(drawn.actions, drawn.log_probs, None)
        choices, table = self._score(params, observations, masks)
        drawn = array_distributions.draw(choices.heads, table, self._mlp.log_std, None, noise)
        return ActionSample(choices.actions_at(drawn.actions), drawn.log_probs, None)

    def act_greedy(self, observations: Leaves, masks: Array | None, states: Floats | None = None) -> GreedyAction:
        """The most likely actions."""
        rows = len(next(iter(observations.values())))
        params = self._infer(self._mlp.params, observations, self.batch_layout.rows_of(range(rows)))
        if self._mlp.scorer is None:
            return GreedyAction(array_distributions.mode(self._heads, params, masks))
        choices, table = self._score(params, observations, masks)
        return GreedyAction(choices.actions_at(array_distributions.mode(choices.heads, table, None)))

    def values(self, observations: Leaves, envs: npt.NDArray[np.int64], states: Floats | None = None) -> Floats:
        """The values of observations of these envs."""
        return self._infer(self._mlp.values, observations, self.batch_layout.rows_of(envs))

    def _score(self, embeddings: Floats, observations: Leaves, masks: Array | None) -> tuple[Choices, Floats]:
        """The legal actions, and the table of their logits."""
        assert self._mlp.scorer is not None
        features = observations[ACTION_FEATURES]
        legal = np.ones(features.shape[:2], np.bool_) if masks is None else masks
        choices = Choices(legal, self.batch_layout.tile)
        return choices, self._mlp.scorer.table(
            embeddings, choices, features, self.batch_layout.calls(choices.n_gathered)
        )

    def _infer(
        self,
        network: Callable[[Floats], Floats],
        observations: Leaves,
        place: RowLayout,
        features: Floats | None = None,
    ) -> Floats:
        leaves = normalize_observations(observations, self._scales) if self._scales else observations
        if features is None:
            features = np.zeros((place.padded, self._mlp.shape.n_features), np.float32)
        if isinstance(place.rows, slice):
            self._encode(leaves, features[place.rows])
        else:
            features[place.rows] = self._encode(leaves)
        calls = place.calls()
        if len(calls) == 1:
            return network(features)[place.rows]
        found: Floats = np.concatenate([network(features[call]).copy() for call in calls])
        return found[place.rows]


def find_mlp_batch_layout(shape: MlpShape, n_envs: int) -> BatchLayout:
    """Try the built-in network out, unless it is very large; once, however often a run asks."""
    return FIXED_BATCHES if shape.size > MAX_TESTED_WEIGHTS else _search(shape, tested_envs(n_envs))


@functools.cache
def _search(shape: MlpShape, n_envs: int) -> BatchLayout:
    """Try the built-in network out, with weights of the usual size."""
    mlp = Mlp(shape)
    mlp.flat[...] = np.random.default_rng(0).standard_normal(mlp.flat.size) / 4

    @functools.lru_cache(maxsize=1)
    def batch(rows: int) -> Floats:
        return np.random.default_rng(rows).standard_normal((rows, shape.n_features), dtype=np.float32)

    def run(rows: int, first: int, stop: int) -> tuple[Floats, ...]:
        features = batch(rows)
        outputs = mlp.params(features[first:stop]).copy(), mlp.values(features[first:stop]).copy()
        if mlp.scorer is None:
            return outputs
        sizes = rows, shape.n_action_features + shape.n_outputs
        actions = np.random.default_rng(rows).standard_normal(sizes, dtype=np.float32)[first:stop]
        features, embeddings = np.split(actions, [shape.n_action_features], axis=1)
        return *outputs, mlp.scorer.scores(mlp.scorer.hidden(np.ascontiguousarray(features), embeddings))

    return find_batch_layout(run, n_envs)
