"""Actions that say what they are: the head that scores each legal action from its features.

An observation may hold ``action_features`` [A, k], a row for each of the env's ``Discrete(A)`` actions. The policy
tower then puts out an embedding of the state, and the logit of an action is ``score . act(embedding + weight @ features
+ bias)``. Legal actions are gathered one under the other, [M, k], and their logits put into a table [B, L], L being the
most that a row has: the distribution of actions is one over the columns of that table.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from corral.core.actions import Head
from corral.policy.activations import Activation
from corral.policy.array_distributions import FORBIDDEN

__all__ = ["Choices", "Scored", "Scorer", "ScorerWeights"]

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]
Flags = npt.NDArray[np.bool_]
Indices = npt.NDArray[np.int64]


class Choices:
    """The legal actions of B rows: which they are, in what order they are gathered, and where each has its logit.

    With a ``tile`` they are gathered row by row, each row from a new tile on, so that an action's place in its tile
    depends on its own row alone. Without, slot by slot: every row's first, every row's second, and so on, those with
    many actions first, so that sums over a row's actions are sums of blocks.
    """

    def __init__(self, masks: Flags, tile: int | None = None) -> None:
        self.n_rows, self.n_actions = masks.shape
        self._legal = np.flatnonzero(masks)  # [M], row by row: row x A + action
        self._rows = self._legal // self.n_actions
        counts, index = np.bincount(self._rows, minlength=self.n_rows), np.arange(len(self._legal))
        self._starts = np.add.accumulate(counts) - counts
        self.width = int(np.maximum.reduce(counts))
        self._cells = (np.arange(self.n_rows) * self.width - self._starts).take(self._rows) + index  # of the table
        if tile is None:
            self._ranking = np.argsort(-counts, kind="stable")
            rank = np.empty_like(self._ranking)
            rank[self._ranking] = np.arange(self.n_rows)
            sizes = np.searchsorted(-counts.take(self._ranking), -np.arange(self.width))
            ends = np.add.accumulate(sizes)
            self._blocks = list(zip(sizes.tolist(), (ends - sizes).tolist(), strict=True))
            slots = index - self._starts.take(self._rows)
            self._places = (ends - sizes).take(slots) + rank.take(self._rows)
        else:
            sizes = -(-counts // tile) * tile
            ends = np.add.accumulate(sizes)
            self._places = (ends - sizes - self._starts).take(self._rows) + index
        self._sources = np.zeros(int(ends[-1]), np.int64)
        self._sources[self._places] = self._legal
        self._owners = self._sources // self.n_actions

    @property
    def n_gathered(self) -> int:
        """How many rows there are when all is gathered, those that only fill tiles included."""
        return len(self._sources)

    @property
    def heads(self) -> tuple[Head, ...]:
        """The distribution over the columns of the table."""
        return (Head("categorical", self.width, slice(0, self.width), slice(0, 1), slice(0, self.width)),)

    def gather(self, action_features: Array, order: Indices | None = None) -> Floats:
        """The features of legal actions, of rows ``order`` [B] of an array [R, A, k]."""
        sources = self._sources
        if order is not None:
            sources = sources + ((order - np.arange(self.n_rows)) * self.n_actions).take(self._owners)
        rows: Array = action_features.reshape(-1, action_features.shape[-1]).take(sources, axis=0)
        return _single(rows)

    def repeat(self, rows: Floats) -> Floats:
        """Rows [B, H], one for each gathered action."""
        return np.asarray(rows.take(self._owners, axis=0))

    def add_up(self, gathered: Floats) -> Floats:
        """The sums [B, H] over each row's actions; without tiles."""
        (first, _), *others = self._blocks
        assert first == self.n_rows, "every row has a legal action"
        totals = gathered[:first].copy()
        for size, start in others:
            totals[:size] += gathered[start : start + size]
        sums = np.empty_like(totals)
        sums[self._ranking] = totals
        return sums

    def table(self, scores: Floats) -> Floats:
        """Scores of gathered actions as a table [B, L] of logits."""
        table = np.full(self.n_rows * self.width, FORBIDDEN)
        table[self._cells] = scores.take(self._places)
        return table.reshape(self.n_rows, self.width)

    def gathered(self, table: Floats) -> Floats:
        """The numbers of a table [B, L], as the actions are gathered without tiles."""
        scores = np.empty(len(self._places), np.float32)
        scores[self._places] = table.reshape(-1).take(self._cells)
        return scores

    def wide(self, table: Floats) -> Floats:
        """A table as logits [B, A] of all actions."""
        logits = np.full(self.n_rows * self.n_actions, FORBIDDEN)
        logits[self._legal] = table.reshape(-1).take(self._cells)
        return logits.reshape(self.n_rows, self.n_actions)

    def narrow(self, logits: Floats) -> Floats:
        """Logits [B, A] of all actions as a table."""
        table = np.full(self.n_rows * self.width, FORBIDDEN)
        table[self._cells] = logits[self._rows, self._legal - self._rows * self.n_actions]
        return table.reshape(self.n_rows, self.width)

    def columns_of(self, actions: Array) -> Indices:
        """The columns [B, 1] of these (legal) actions [B, 1] in the table."""
        wanted = np.arange(self.n_rows) * self.n_actions + actions[:, 0].astype(np.int64)
        columns: Indices = np.searchsorted(self._legal, wanted) - self._starts
        return np.asarray(columns[:, None])

    def actions_at(self, columns: Indices) -> Indices:
        """The actions [B, 1] of these columns [B, 1]."""
        legal: Indices = self._legal.take(self._starts + columns[:, 0])
        return np.asarray(legal % self.n_actions)[:, None]


class ScorerWeights(NamedTuple):
    """Parameters of the head, or their gradients: views of a flat vector."""

    weight: Floats  # [H, k]
    bias: Floats  # [H]
    score: Floats  # [1, H]


class Scored(NamedTuple):
    """The actions of some rows, scored, with what a backward pass needs again."""

    choices: Choices
    features: Floats  # [M, k]
    hidden: Floats  # [M, H]
    table: Floats  # [B, L]


class Scorer:
    """The head on weights that may change under it."""

    def __init__(self, weights: ScorerWeights, activation: Activation) -> None:
        self._weights = weights
        self._activation = activation

    def hidden(self, features: Floats, embeddings: Floats) -> Floats:
        """The hidden layer [M, H] of actions [M, k], each with the embedding of its state [M, H]."""
        hidden: Floats = features @ self._weights.weight.T
        hidden += embeddings
        self._activation.apply(hidden)
        return hidden

    def scores(self, hidden: Floats) -> Floats:
        """The logits [M]."""
        return np.asarray(hidden @ self._weights.score[0])

    def table(self, embeddings: Floats, choices: Choices, action_features: Array, calls: Sequence[slice]) -> Floats:
        """The table of logits, for acting: ``calls`` are the parts of what is gathered that are computed together."""
        features = choices.gather(action_features)
        states = choices.repeat(embeddings + self._weights.bias)
        parts = [self.scores(self.hidden(features[call], states[call])) for call in calls]
        return choices.table(parts[0] if len(parts) == 1 else np.concatenate(parts))

    def forward(
        self, embeddings: Floats, masks: Flags | None, action_features: Array, order: Indices | None = None
    ) -> Scored:
        """Score the legal actions of rows with these embeddings [B, H]; ``order`` [B] says which rows of the array."""
        if masks is None:
            masks = np.ones((len(embeddings), action_features.shape[1]), np.bool_)
        choices = Choices(masks)
        features = choices.gather(action_features, order)
        hidden = self.hidden(features, choices.repeat(embeddings + self._weights.bias))
        return Scored(choices, features, hidden, choices.table(self.scores(hidden)))

    def backward(self, scored: Scored, d_table: Floats, gradient: ScorerWeights) -> Floats:
        """Write the gradients, given that of the table [B, L]; returns that of the embeddings [B, H]."""
        d_scores, score = scored.choices.gathered(d_table), self._weights.score[0]
        np.matmul(d_scores, scored.hidden, out=gradient.score[0])
        flow = np.empty_like(scored.hidden)  # without the factor ``score``, which comes in where there is less of it
        self._activation.slope(scored.hidden, flow)
        flow *= d_scores[:, None]
        np.matmul(flow.T, scored.features, out=gradient.weight)
        np.multiply(gradient.weight, score[:, None], out=gradient.weight)
        d_embeddings = scored.choices.add_up(flow)
        d_embeddings *= score
        np.add.reduce(d_embeddings, axis=0, out=gradient.bias)
        return d_embeddings


def _single(numbers: Array) -> Floats:
    """In single precision; of halves, a table is faster than a conversion."""
    if numbers.dtype == np.float16:
        return _halves().take(numbers.view(np.uint16))
    return numbers.astype(np.float32, copy=False)


@functools.cache
def _halves() -> Floats:
    return np.arange(2**16, dtype=np.uint16).view(np.float16).astype(np.float32)
