"""The recurrent core of a policy: a GRU or an LSTM between the features and the MLPs for action and value.

The recurrent state of an env is one row of numbers: ``h`` for a GRU (Cho et al. 2014, arXiv:1406.1078), ``h`` and ``c``
for an LSTM (Hochreiter and Schmidhuber 1997, doi:10.1162/neco.1997.9.8.1735). Backpropagation through time is written
out here for two reasons: torch's recurrent layers cannot reset the state in the middle of a sequence, where an episode
ends, and autograd over single steps would spend most of its time in calls.

Shapes: B sequences of L steps, F features, H hidden units, S numbers of state (H for a GRU, 2H for an LSTM).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from corral.config.values import Recurrent

__all__ = ["RecurrentCore", "SequenceStart", "state_size"]

_KEEP_BIAS = 1.0
"""Added to the initial bias of the gate that keeps the state (LSTM: forget gate, GRU: update gate).

The gate starts out keeping about three quarters of the state at each step: sigmoid(1) = 0.73 (Gers et al. 2000,
doi:10.1162/089976600300015015).
"""


class SequenceStart(NamedTuple):
    """The initial states of B sequences of L rows, and where episodes begin in them.

    Sequences lie one after the other in a batch of B * L rows.
    """

    states: Tensor  # [B, S] before the first row of each sequence
    begins: Tensor  # [B * L] whether an episode begins with this row


def state_size(recurrent: Recurrent, size: int) -> int:
    """Return S, the size of the recurrent state of one env."""
    return {"none": 0, "gru": size, "lstm": 2 * size}[recurrent]


class RecurrentCore(nn.Module):
    """One recurrent layer.

    The gates lie side by side in this order. GRU: reset, update, candidate. LSTM: input, forget, output, candidate.
    """

    def __init__(self, recurrent: Recurrent, n_features: int, size: int, ortho_init: bool) -> None:
        super().__init__()
        self.size, self.n_state = size, state_size(recurrent, size)
        self._is_gru = recurrent == "gru"
        n_gates = 3 if self._is_gru else 4
        self.input = nn.Linear(n_features, n_gates * size)
        self.weight = nn.Parameter(torch.empty(n_gates * size, size))  # of h
        # A GRU's candidate has a second bias, inside of the product with the reset gate.
        self.bias = nn.Parameter(torch.zeros(size)) if self._is_gru else None
        if ortho_init:
            for gate in range(n_gates):
                rows = slice(gate * size, (gate + 1) * size)
                nn.init.orthogonal_(self.input.weight.data[rows])
                nn.init.orthogonal_(self.weight.data[rows])
            nn.init.zeros_(self.input.bias)
        else:
            for parameter in self.parameters():
                nn.init.uniform_(parameter, -1 / math.sqrt(size), 1 / math.sqrt(size))
        with torch.no_grad():
            self.input.bias[size : 2 * size] += _KEEP_BIAS

    def step(self, features: Tensor, states: Tensor) -> Tensor:
        """Take one step: return the states [B, S] after features [B, F], given the states before."""
        input_gates, size = self.input(features), self.size
        if self.bias is not None:  # GRU
            input_gates, input_candidate = _split(input_gates, 2 * size, size)
            state_gates, state_candidate = _split(torch.mm(states, self.weight.T), 2 * size, size)
            reset, update = _split((input_gates + state_gates).sigmoid(), size, size)
            candidate = torch.addcmul(input_candidate, reset, state_candidate + self.bias).tanh()
            return torch.lerp(candidate, states, update)
        h, c = _split(states, size, size)
        input_gate, forget_gate, output_gate, candidate = _split(
            torch.addmm(input_gates, h, self.weight.T), *[size] * 4
        )
        c = forget_gate.sigmoid() * c + input_gate.sigmoid() * candidate.tanh()
        return torch.cat([output_gate.sigmoid() * c.tanh(), c], 1)

    def output(self, states: Tensor) -> Tensor:
        """Return ``h`` [B, H], the part of the states [B, S] that the rest of the network gets."""
        return states[:, : self.size]

    def forward(self, features: Tensor, start: SequenceStart) -> Tensor:
        """Unroll sequences: return ``h`` [B * L, H] at each row, given features [B * L, F]."""
        n = len(start.states)
        input_gates = self.input(features).view(n, -1, len(self.weight)).transpose(0, 1).contiguous()  # [L, B, G]
        continues = (~start.begins).view(n, -1).T  # [L, B]
        # States that are given for an episode's first row are zero already, so the first row needs no reset.
        needs_reset = not bool(continues[1:].all())
        factors = continues.to(input_gates.dtype)[:, :, None] if needs_reset else None  # [L, B, 1]
        if self._is_gru:
            h: Tensor = _Gru.apply(input_gates, self.weight, self.bias, start.states, factors)  # type: ignore[no-untyped-call]
        else:
            h = _Lstm.apply(input_gates, self.weight, start.states, factors)  # type: ignore[no-untyped-call]
        return h.transpose(0, 1).reshape(len(features), self.size)


def _split(columns: Tensor, *sizes: int) -> tuple[Tensor, ...]:
    return torch.split(columns, list(sizes), -1)


class _Gru(torch.autograd.Function):
    """Unrolls a GRU over input gates [L, B, 3H] and returns hidden states [L, B, H].

    With r, z = sigmoid(gates) and n = tanh(candidate):
        m_t = W_n h_{t-1} + bias,  n_t = tanh(x_n + r_t m_t),  h_t = n_t + z_t (h_{t-1} - n_t)
    ``continues`` [L, B, 1] is 0 where an episode begins, so that it starts from h = 0; None if none begins.
    """

    @staticmethod
    def forward(
        ctx: Any, input_gates: Tensor, weight: Tensor, bias: Tensor, states: Tensor, continues: Tensor | None
    ) -> Tensor:
        length, n, size = input_gates.shape[0], input_gates.shape[1], weight.shape[1]
        h_before, inner, candidate, h_after = input_gates.new_empty(4, length, n, size).unbind()
        gates = input_gates.new_empty(length, n, 2 * size)  # reset and update
        steps = zip(
            *(column.unbind() for column in _split(input_gates, 2 * size, size)),
            *(column.unbind() for column in (gates, *_split(gates, size, size), h_before, inner, candidate, h_after)),
            [None] * length if continues is None else continues.unbind(),
            strict=True,
        )
        transposed, h = weight.T, states
        for x_gates, x_candidate, gates_t, reset_t, update_t, before_t, inner_t, candidate_t, h_t, continues_t in steps:
            before_t.copy_(h) if continues_t is None else torch.mul(h, continues_t, out=before_t)
            h_gates, h_candidate = _split(torch.mm(before_t, transposed), 2 * size, size)
            torch.add(x_gates, h_gates, out=gates_t).sigmoid_()
            torch.add(h_candidate, bias, out=inner_t)
            torch.addcmul(x_candidate, reset_t, inner_t, out=candidate_t).tanh_()
            h = torch.lerp(candidate_t, before_t, update_t, out=h_t)
        ctx.save_for_backward(weight, h_before, gates, inner, candidate)
        ctx.continues = continues
        return h_after

    @staticmethod
    @once_differentiable  # type: ignore[no-untyped-call,untyped-decorator,unused-ignore]
    def backward(ctx: Any, d_output: Tensor) -> tuple[Tensor | None, ...]:
        weight, h_before, gates, inner, candidate = ctx.saved_tensors
        continues, (length, n, size) = ctx.continues, h_before.shape
        reset, update = _split(gates, size, size)
        # Slopes of h with respect to the pre-activations. They do not depend on the gradient that flows back, so they
        # are computed for all steps at once.
        candidate_slope = (1 - update) * (1 - candidate * candidate)
        inner_slope = candidate_slope * reset
        slopes = torch.stack(
            [inner_slope * inner * (1 - reset), (h_before - candidate) * update * (1 - update), inner_slope], 2
        )
        d_product = torch.empty_like(slopes)  # [L, B, 3, H] gradient of the products W h
        direct = update if continues is None else update * continues  # slope of h_t with respect to h_{t-1} besides W
        d_h = d_output.clone()
        steps = list(
            zip(
                *(
                    column.unbind()
                    for column in (slopes, d_product, d_product.flatten(2), direct, d_h, d_h[:, :, None])
                ),
                [None] * length if continues is None else continues.unbind(),
                strict=True,
            )
        )
        d_before: Tensor | None = None
        for slopes_t, d_product_t, d_product_flat, direct_t, d_h_t, d_h_wide, continues_t in reversed(steps):
            if d_before is not None:
                d_h_t += d_before
            torch.mul(slopes_t, d_h_wide, out=d_product_t)
            d_before = torch.mm(d_product_flat, weight)
            if continues_t is not None:
                d_before *= continues_t
            d_before.addcmul_(d_h_t, direct_t)
        d_input_gates = torch.cat([d_product[:, :, :2].flatten(2), d_h * candidate_slope], -1)
        d_rows = d_product.view(length * n, -1)  # [L * B, 3H]
        return d_input_gates, d_rows.T @ h_before.flatten(0, 1), d_rows[:, 2 * size :].sum(0), None, None


class _Lstm(torch.autograd.Function):
    """Unrolls an LSTM over input gates [L, B, 4H] and returns hidden states [L, B, H].

    With i, f, o = sigmoid(gates) and g = tanh(candidate):  c_t = f_t c_{t-1} + i_t g_t,  h_t = o_t tanh(c_t).
    ``continues`` [L, B, 1] is 0 where an episode begins, so that it starts from h = c = 0; None if none begins.
    """

    @staticmethod
    def forward(ctx: Any, input_gates: Tensor, weight: Tensor, states: Tensor, continues: Tensor | None) -> Tensor:
        length, n, size = input_gates.shape[0], input_gates.shape[1], weight.shape[1]
        h_before, c_before, c_after, tanh_c, h_after = input_gates.new_empty(5, length, n, size).unbind()
        gates = input_gates.new_empty(length, n, 4 * size)  # input, forget, output, candidate
        sigmoids = gates[..., : 3 * size]
        columns = gates, sigmoids, *_split(gates, *[size] * 4), h_before, c_before, c_after, tanh_c, h_after
        steps = zip(
            input_gates.unbind(),
            *(column.unbind() for column in columns),
            [None] * length if continues is None else continues.unbind(),
            strict=True,
        )
        transposed = weight.T
        h, c = _split(states, size, size)
        for x_t, gates_t, sigmoids_t, i_t, f_t, o_t, g_t, h_before_t, c_before_t, c_t, tanh_c_t, h_t, cont_t in steps:
            if cont_t is None:
                h_before_t.copy_(h)
                c_before_t.copy_(c)
            else:
                torch.mul(h, cont_t, out=h_before_t)
                torch.mul(c, cont_t, out=c_before_t)
            torch.addmm(x_t, h_before_t, transposed, out=gates_t)
            sigmoids_t.sigmoid_()
            g_t.tanh_()
            c = torch.mul(i_t, g_t, out=c_t).addcmul_(f_t, c_before_t)
            h = torch.mul(o_t, torch.tanh(c, out=tanh_c_t), out=h_t)
        ctx.save_for_backward(weight, h_before, c_before, gates, tanh_c)
        ctx.continues = continues
        return h_after

    @staticmethod
    @once_differentiable  # type: ignore[no-untyped-call,untyped-decorator,unused-ignore]
    def backward(ctx: Any, d_output: Tensor) -> tuple[Tensor | None, ...]:
        weight, h_before, c_before, gates, tanh_c = ctx.saved_tensors
        continues, (length, n, size) = ctx.continues, h_before.shape
        i, f, o, g = _split(gates, *[size] * 4)
        # Slopes with respect to the pre-activations, for all steps at once: of c for i, f and g, of h for o.
        slopes = torch.stack([g * i * (1 - i), c_before * f * (1 - f), tanh_c * o * (1 - o), i * (1 - g * g)], 2)
        c_slope = o * (1 - tanh_c * tanh_c)  # of h with respect to c
        d_product = torch.empty_like(slopes)  # [L, B, 4, H] gradient of the products W h
        direct = f if continues is None else f * continues  # slope of c_t with respect to c_{t-1}
        d_c = torch.zeros_like(h_before)
        columns = (
            *(slopes, slopes[:, :, 2], d_product, d_product[:, :, 2], d_product.flatten(2)),
            *(c_slope, direct, d_c, d_c[:, :, None]),
        )
        steps = list(
            zip(
                d_output.unbind(),
                *(column.unbind() for column in columns),
                [None] * length if continues is None else continues.unbind(),
                strict=True,
            )
        )
        d_h_before, d_c_before = torch.zeros_like(h_before[0]), torch.zeros_like(h_before[0])
        for (
            d_out_t,
            slopes_t,
            o_slope,
            d_product_t,
            d_o,
            d_flat,
            c_slope_t,
            direct_t,
            d_c_t,
            d_c_wide,
            cont_t,
        ) in reversed(steps):
            d_h = d_out_t + d_h_before
            torch.addcmul(d_c_before, d_h, c_slope_t, out=d_c_t)
            torch.mul(slopes_t, d_c_wide, out=d_product_t)
            torch.mul(o_slope, d_h, out=d_o)
            d_h_before = torch.mm(d_flat, weight)
            if cont_t is not None:
                d_h_before *= cont_t
            d_c_before = d_c_t * direct_t
        d_rows = d_product.view(length * n, -1)  # [L * B, 4H]
        return d_product.flatten(2), d_rows.T @ h_before.flatten(0, 1), None, None
