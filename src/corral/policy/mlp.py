"""The built-in network as numpy: two towers, forward and backward, on one flat vector of weights.

For networks this small, most of a torch call is overhead, and importing torch costs a worker 200 MB. So workers act
with this, and the learner computes gradients with it; the same code gives the same bits in every process. Layers of
both towers that stand side by side share one buffer, so that an activation is one call, and the first layers, which
see the same input, are one product.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from corral.policy.activations import ACTIVATIONS
from corral.policy.scoring import Scorer, ScorerWeights

__all__ = ["ACTIVATIONS", "Gradient", "Mlp", "MlpShape"]

Floats = npt.NDArray[np.float32]
TOWERS = ("pi", "vf")
_PLANS = 8  # numbers of rows that are remembered


@dataclass(frozen=True, slots=True)
class MlpShape:
    """The sizes of a built-in network, and where in a flat vector each of its parameters lies."""

    n_features: int
    n_params: int
    pi: tuple[int, ...]
    vf: tuple[int, ...]
    activation: str
    n_log_std: int = 0
    n_action_features: int = 0
    """Numbers that describe an action, if actions are scored; the policy tower then puts out an embedding."""

    def hidden(self, tower: str) -> tuple[int, ...]:
        """Sizes of a tower's hidden layers."""
        return self.pi if tower == "pi" else self.vf

    @property
    def n_outputs(self) -> int:
        """What the policy tower puts out."""
        return self.pi[-1] if self.n_action_features else self.n_params

    @property
    def n_layers(self) -> int:
        """Hidden layers of the deeper tower."""
        return max(len(self.pi), len(self.vf))

    def places(self) -> dict[str, tuple[slice, tuple[int, ...]]]:
        """Slice and shape of every parameter, by its name in the policy; the weights of a layer side by side."""
        shapes: list[tuple[str, tuple[int, ...]]] = []
        for layer in range(self.n_layers):
            present = [tower for tower in TOWERS if layer < len(self.hidden(tower))]
            for tower in present:
                n_in = self.hidden(tower)[layer - 1] if layer else self.n_features
                shapes.append((f"network.{tower}.{2 * layer}.weight", (self.hidden(tower)[layer], n_in)))
            for tower in present:
                shapes.append((f"network.{tower}.{2 * layer}.bias", (self.hidden(tower)[layer],)))
        for tower, n_out in (("pi", self.n_outputs), ("vf", 1)):
            sizes = (self.n_features, *self.hidden(tower))
            shapes.append((f"network.{tower}.{2 * (len(sizes) - 1)}.weight", (n_out, sizes[-1])))
            shapes.append((f"network.{tower}.{2 * (len(sizes) - 1)}.bias", (n_out,)))
        if self.n_action_features:
            shapes.append(("network.action.weight", (self.n_outputs, self.n_action_features)))
            shapes.append(("network.action.bias", (self.n_outputs,)))
            shapes.append(("network.score.weight", (1, self.n_outputs)))
        shapes.append(("log_std", (self.n_log_std,)))
        places, at = {}, 0
        for name, shape in shapes:
            size = int(np.prod(shape))
            places[name] = slice(at, at + size), shape
            at += size
        return places

    @property
    def size(self) -> int:
        """Numbers in the flat vector."""
        return max(int(place.stop) for place, _ in self.places().values())


class _Layer(NamedTuple):
    """What one hidden layer of both towers needs; columns are of its buffer."""

    weights: list[Floats]  # [out, in] of each tower that has it; for the first layer one, of both
    bias: Floats  # of all its columns
    columns: list[slice]
    inputs: list[slice]  # columns of the layer before
    width: int


class _Product(NamedTuple):
    """``into = left @ right``, all of them views that stay where they are; no ``left``: the features."""

    left: Floats | None
    right: Floats
    into: Floats


class _Forward(NamedTuple):
    """A forward pass of so many rows, with everything looked up."""

    hidden: list[Floats]
    layers: list[tuple[list[_Product], Floats, Floats]]  # products into a buffer, its bias, the buffer
    heads: list[tuple[_Product, Floats]]  # with their bias
    outputs: tuple[Floats, ...]


class _Backward(NamedTuple):
    """Buffers of a backward pass: what flows back into each hidden layer, and the slope of its activation."""

    flowing: list[Floats]
    slopes: list[Floats]


class Mlp:
    """A built-in network on a flat vector of weights, which may change under it between calls."""

    def __init__(self, shape: MlpShape, flat: Floats | None = None) -> None:
        self.shape = shape
        self.flat = np.zeros(shape.size, np.float32) if flat is None else flat
        self.activation = ACTIVATIONS[shape.activation]
        self.log_std = self._views(self.flat)["log_std"]
        self._layers, self._heads = self._parts(self.flat)
        weights = self._scorer_weights(self.flat)
        self.scorer = None if weights is None else Scorer(weights, self.activation)
        """The head that turns embeddings into logits, if actions are scored."""
        self._tops = [self._top(tower) for tower in TOWERS]
        self._forwards: dict[tuple[int, tuple[str, ...]], _Forward] = {}
        self._backwards: dict[int, _Backward] = {}

    def load(self, weights: Mapping[str, Any]) -> None:
        """Copy parameters, given by name, into the flat vector."""
        for name, view in self._views(self.flat).items():
            view[...] = weights[name]

    def parameters(self) -> dict[str, Floats]:
        """Every parameter by name, as a view of the flat vector."""
        return self._views(self.flat)

    def forward(self, features: Floats) -> tuple[Floats, Floats]:
        """Features [B, F] to action parameters [B, P] and values [B]; they stay valid until the next call.

        With a scorer, embeddings [B, H] stand in for the parameters, here and in ``params`` and ``backward``.
        """
        params, values = self._run(features, TOWERS)
        return params, values[:, 0]

    def params(self, features: Floats) -> Floats:
        """The action parameters alone."""
        return self._run(features, TOWERS[:1])[0]

    def values(self, features: Floats) -> Floats:
        """The values alone."""
        return self._run(features, TOWERS[1:])[0][:, 0]

    def _run(self, features: Floats, towers: tuple[str, ...]) -> tuple[Floats, ...]:
        plan = self._forwards.get((len(features), towers)) or self._plan_forward(len(features), towers)
        matmul, add, activate = np.matmul, np.add, self.activation.apply
        for products, bias, z in plan.layers:
            for left, right, into in products:
                matmul(features if left is None else left, right, out=into)
            add(z, bias, out=z)
            activate(z)
        for (left, right, into), bias in plan.heads:
            matmul(features if left is None else left, right, out=into)
            add(into, bias, out=into)
        return plan.outputs

    def backward(self, features: Floats, d_params: Floats, d_values: Floats, gradient: Gradient) -> None:
        """Gradients of the last ``forward(features)``, given those of its outputs, written over ``gradient``."""
        hidden = self._forwards[len(features), TOWERS].hidden
        flowing, slopes = self._backwards.get(len(features)) or self._plan_backward(len(features))
        deltas = (d_params, d_values[:, None])
        ones = np.ones(len(features), np.float32)  # a product with it adds up columns, faster than a reduction
        for delta, (weight, _), (g_weight, g_bias), (layer_index, columns) in zip(
            deltas, self._heads, gradient.heads, self._tops, strict=True
        ):
            top = features if layer_index < 0 else hidden[layer_index][:, columns]
            np.matmul(delta.T, top, out=g_weight)
            np.add.reduce(delta, axis=0, out=g_bias)
            if layer_index >= 0:
                np.matmul(delta, weight, out=flowing[layer_index][:, columns])
        for i in range(len(self._layers) - 1, -1, -1):
            layer, g_layer, flow = self._layers[i], gradient.layers[i], flowing[i]
            self.activation.slope(hidden[i], slopes[i])
            np.multiply(flow, slopes[i], out=flow)
            before = hidden[i - 1] if i else features
            for weight, g_weight, columns, inputs in zip(
                layer.weights, g_layer.weights, layer.columns, layer.inputs, strict=True
            ):
                np.matmul(flow[:, columns].T, before[:, inputs], out=g_weight)
                if i:
                    np.matmul(flow[:, columns], weight, out=flowing[i - 1][:, inputs])
            np.matmul(ones, flow, out=g_layer.bias)

    # ---- inside ----------------------------------------------------------------------------------------------

    def _views(self, flat: Floats) -> dict[str, Floats]:
        return {name: flat[place].reshape(shape) for name, (place, shape) in self.shape.places().items()}

    def _parts(self, flat: Floats) -> tuple[list[_Layer], list[tuple[Floats, Floats]]]:
        shape, views, places = self.shape, self._views(flat), self.shape.places()
        layers: list[_Layer] = []
        columns_before: dict[str, slice] = {}
        for i in range(shape.n_layers):
            present = [tower for tower in TOWERS if i < len(shape.hidden(tower))]
            widths = [shape.hidden(tower)[i] for tower in present]
            columns = _consecutive(widths)
            first = places[f"network.{present[0]}.{2 * i}.bias"][0].start
            bias = flat[first : first + sum(widths)]
            if i == 0:  # both towers see the features: one product
                start = places[f"network.{present[0]}.0.weight"][0].start
                stacked = flat[start : start + sum(widths) * shape.n_features].reshape(sum(widths), shape.n_features)
                layers.append(_Layer([stacked], bias, [slice(0, sum(widths))], [slice(None)], sum(widths)))
            else:
                weights = [views[f"network.{tower}.{2 * i}.weight"] for tower in present]
                inputs = [columns_before[tower] for tower in present]
                layers.append(_Layer(weights, bias, columns, inputs, sum(widths)))
            columns_before = dict(zip(present, columns, strict=True))
        heads = []
        for tower in TOWERS:
            name = f"network.{tower}.{2 * len(shape.hidden(tower))}"
            heads.append((views[f"{name}.weight"], views[f"{name}.bias"]))
        return layers, heads

    def _scorer_weights(self, flat: Floats) -> ScorerWeights | None:
        views = self._views(flat)
        names = [f"network.{name}" for name in ("action.weight", "action.bias", "score.weight")]
        return ScorerWeights(*(views[name] for name in names)) if self.shape.n_action_features else None

    def _top(self, tower: str) -> tuple[int, slice]:
        """The last hidden layer of a tower (-1: the features) and the tower's columns in it."""
        last = len(self.shape.hidden(tower)) - 1
        if last < 0:
            return -1, slice(None)
        present = [t for t in TOWERS if last < len(self.shape.hidden(t))]
        return last, _consecutive([self.shape.hidden(t)[last] for t in present])[present.index(tower)]

    def _plan_forward(self, rows: int, towers: tuple[str, ...]) -> _Forward:
        if len(self._forwards) > _PLANS:
            self._forwards.clear()
        if towers == TOWERS:
            hidden = [np.empty((rows, layer.width), np.float32) for layer in self._layers]
            layers = []
            for i, (layer, z) in enumerate(zip(self._layers, hidden, strict=True)):
                products = [
                    _Product(hidden[i - 1][:, inputs] if i else None, weight.T, z[:, columns])
                    for weight, columns, inputs in zip(layer.weights, layer.columns, layer.inputs, strict=True)
                ]
                layers.append((products, layer.bias, z))
            tops = [None if i < 0 else hidden[i][:, columns] for i, columns in self._tops]
        else:  # one of them
            views, sizes = self._views(self.flat), self.shape.hidden(towers[0])
            hidden = [np.empty((rows, size), np.float32) for size in sizes]
            layers = []
            for i, z in enumerate(hidden):
                weight, bias = (views[f"network.{towers[0]}.{2 * i}.{part}"] for part in ("weight", "bias"))
                layers.append(([_Product(hidden[i - 1] if i else None, weight.T, z)], bias, z))
            tops = [hidden[-1] if hidden else None]
        heads = []
        for tower, top in zip(towers, tops, strict=True):
            weight, bias = self._heads[TOWERS.index(tower)]
            heads.append((_Product(top, weight.T, np.empty((rows, len(weight)), np.float32)), bias))
        outputs = tuple(product.into for product, _ in heads)
        plan = self._forwards[rows, towers] = _Forward(hidden, layers, heads, outputs)
        return plan

    def _plan_backward(self, rows: int) -> _Backward:
        if len(self._backwards) > _PLANS:
            self._backwards.clear()
        widths = [layer.width for layer in self._layers]
        buffers = [[np.empty((rows, width), np.float32) for width in widths] for _ in range(2)]
        plan = self._backwards[rows] = _Backward(*buffers)
        return plan


class Gradient:
    """A flat gradient, seen as the layers of an ``Mlp``."""

    def __init__(self, mlp: Mlp, flat: Floats) -> None:
        self.layers, self.heads = mlp._parts(flat)
        self.log_std = mlp._views(flat)["log_std"]
        self.scorer = mlp._scorer_weights(flat)


def _consecutive(widths: Sequence[int]) -> list[slice]:
    edges = itertools.accumulate(widths, initial=0)
    return [slice(a, b) for a, b in itertools.pairwise(edges)]
