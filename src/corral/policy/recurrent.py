"""Memory: a GRU or an LSTM between what is observed and the two towers, and how it is unrolled over sequences.

The memory of an env is one row of numbers, its state: ``h`` for a GRU, ``h`` and ``c`` for an LSTM. Gradients through
time are written out here: torch's own layers cannot begin anew in the middle of a sequence, and autograd would spend
most of its time on calls.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from corral.config.values import Recurrent

__all__ = ["RecurrentCore", "SequenceStart", "state_size"]

_KEPT = 1.0
"""Bias at the start of the gate that keeps what is remembered: three quarters of it from step to step."""


class SequenceStart(NamedTuple):
    """What sequences start from, and where they start anew. B sequences of L rows each lie one after the other."""

    states: Tensor  # [B, S] at the first row of each sequence
    begins: Tensor  # [B * L] whether an episode begins with this row


def state_size(recurrent: Recurrent, size: int) -> int:
    """Numbers in the memory of one env."""
    return {"none": 0, "gru": size, "lstm": 2 * size}[recurrent]


class RecurrentCore(nn.Module):
    """One layer. Gates in order, of a GRU: reset, keep, candidate; of an LSTM: put, keep, show, candidate."""

    def __init__(self, recurrent: Recurrent, n_features: int, size: int, ortho_init: bool) -> None:
        super().__init__()
        self.size, self.n_state = size, state_size(recurrent, size)
        self._gru = recurrent == "gru"
        n_gates = 3 if self._gru else 4
        self.input = nn.Linear(n_features, n_gates * size)
        self.weight = nn.Parameter(torch.empty(n_gates * size, size))
        self.bias = nn.Parameter(torch.zeros(size)) if self._gru else None  # of the candidate, inside the reset gate
        if ortho_init:
            for gate in range(n_gates):
                part = slice(gate * size, (gate + 1) * size)
                nn.init.orthogonal_(self.input.weight.data[part])
                nn.init.orthogonal_(self.weight.data[part])
            nn.init.zeros_(self.input.bias)
        else:
            for parameter in self.parameters():
                nn.init.uniform_(parameter, -1 / math.sqrt(size), 1 / math.sqrt(size))
        with torch.no_grad():
            self.input.bias[size : 2 * size] += _KEPT

    def step(self, features: Tensor, states: Tensor) -> Tensor:
        """Features [B, F] and states [B, S] to the states after them."""
        gates, size = self.input(features), self.size
        if self.bias is not None:
            seen, again = _split(gates, 2 * size, size), _split(torch.mm(states, self.weight.T), 2 * size, size)
            reset, keep = _split((seen[0] + again[0]).sigmoid(), size, size)
            new = torch.addcmul(seen[1], reset, again[1] + self.bias).tanh()
            return torch.lerp(new, states, keep)
        h, c = _split(states, size, size)
        put, keep, show, new = _split(torch.addmm(gates, h, self.weight.T), *[size] * 4)
        c = keep.sigmoid() * c + put.sigmoid() * new.tanh()
        return torch.cat([show.sigmoid() * c.tanh(), c], 1)

    def output(self, states: Tensor) -> Tensor:
        """The part [B, H] of states that the rest of the network sees."""
        return states[:, : self.size]

    def forward(self, features: Tensor, start: SequenceStart) -> Tensor:
        """Features [B * L, F] of sequences to what the rest of the network sees at each row, [B * L, H]."""
        n = len(start.states)
        gates = self.input(features).view(n, -1, len(self.weight)).transpose(0, 1).contiguous()  # [L, B, G]
        goes_on = (~start.begins).view(n, -1).T  # [L, B]
        kept = None if bool(goes_on[1:].all()) else goes_on.to(gates.dtype)[:, :, None]
        if self._gru:
            output: Tensor = _Gru.apply(gates, self.weight, self.bias, start.states, kept)  # type: ignore[no-untyped-call]
        else:
            output = _Lstm.apply(gates, self.weight, start.states, kept)  # type: ignore[no-untyped-call]
        return output.transpose(0, 1).reshape(len(features), self.size)


def _split(columns: Tensor, *sizes: int) -> tuple[Tensor, ...]:
    return torch.split(columns, list(sizes), -1)


class _Gru(torch.autograd.Function):
    """Gates [L, B, 3H] of the input to hidden states [L, B, H]. ``kept`` [L, B, 1] is 0 where an episode begins."""

    @staticmethod
    def forward(ctx: Any, gates: Tensor, weight: Tensor, bias: Tensor, states: Tensor, kept: Tensor | None) -> Tensor:
        length, n, size = gates.shape[0], gates.shape[1], weight.shape[1]
        before, inner, new, after = gates.new_empty(4, length, n, size).unbind()
        open_ = gates.new_empty(length, n, 2 * size)  # reset and keep
        steps = zip(
            *(column.unbind() for column in _split(gates, 2 * size, size)),
            *(column.unbind() for column in (open_, *_split(open_, size, size), before, inner, new, after)),
            [None] * length if kept is None else kept.unbind(),
            strict=True,
        )
        across, h = weight.T, states
        for seen, seen_new, both, reset, keep, was, within, candidate, now, lasts in steps:
            was.copy_(h) if lasts is None else torch.mul(h, lasts, out=was)
            again, again_new = _split(torch.mm(was, across), 2 * size, size)
            torch.add(seen, again, out=both).sigmoid_()
            torch.add(again_new, bias, out=within)
            torch.addcmul(seen_new, reset, within, out=candidate).tanh_()
            h = torch.lerp(candidate, was, keep, out=now)
        ctx.save_for_backward(weight, before, open_, inner, new)
        ctx.kept = kept
        return after

    @staticmethod
    @once_differentiable  # type: ignore[no-untyped-call,untyped-decorator,unused-ignore]
    def backward(ctx: Any, d_after: Tensor) -> tuple[Tensor | None, ...]:
        weight, before, open_, inner, new = ctx.saved_tensors
        kept, (length, n, size) = ctx.kept, before.shape
        reset, keep = _split(open_, size, size)
        # How each gate answers to a change of h: for all steps at once, as nothing of it depends on what flows back.
        to_new = (1 - keep) * (1 - new * new)
        to_inner = to_new * reset
        answers = torch.stack([to_inner * inner * (1 - reset), (before - new) * keep * (1 - keep), to_inner], 2)
        flows = torch.empty_like(answers)  # [L, B, 3, H] back to what the weight puts out
        onward = keep if kept is None else keep * kept  # what h leaves to the next h
        d_h = d_after.clone()
        steps = list(
            zip(
                *(column.unbind() for column in (answers, flows, flows.flatten(2), onward, d_h, d_h[:, :, None])),
                [None] * length if kept is None else kept.unbind(),
                strict=True,
            )
        )
        carried: Tensor | None = None
        for answer, flow, flat, passes, at_h, wide, lasts in reversed(steps):
            if carried is not None:
                at_h += carried
            torch.mul(answer, wide, out=flow)
            carried = torch.mm(flat, weight)
            if lasts is not None:
                carried *= lasts
            carried.addcmul_(at_h, passes)
        d_gates = torch.cat([flows[:, :, :2].flatten(2), d_h * to_new], -1)
        flat = flows.view(length * n, -1)
        return d_gates, flat.T @ before.flatten(0, 1), flat[:, 2 * size :].sum(0), None, None


class _Lstm(torch.autograd.Function):
    """Gates [L, B, 4H] of the input to hidden states [L, B, H]. ``kept`` [L, B, 1] is 0 where an episode begins."""

    @staticmethod
    def forward(ctx: Any, gates: Tensor, weight: Tensor, states: Tensor, kept: Tensor | None) -> Tensor:
        length, n, size = gates.shape[0], gates.shape[1], weight.shape[1]
        before, earlier, cells, bent, after = gates.new_empty(5, length, n, size).unbind()
        open_ = gates.new_empty(length, n, 4 * size)  # put, keep, show, new
        parts = open_, open_[..., : 3 * size], *_split(open_, *[size] * 4), before, earlier, cells, bent, after
        steps = zip(
            gates.unbind(),
            *(column.unbind() for column in parts),
            [None] * length if kept is None else kept.unbind(),
            strict=True,
        )
        across = weight.T
        h, c = _split(states, size, size)
        for seen, every, doors, put, keep, show, new, was, held, cell, bow, now, lasts in steps:
            if lasts is None:
                was.copy_(h)
                held.copy_(c)
            else:
                torch.mul(h, lasts, out=was)
                torch.mul(c, lasts, out=held)
            torch.addmm(seen, was, across, out=every)
            doors.sigmoid_()
            new.tanh_()
            c = torch.mul(put, new, out=cell).addcmul_(keep, held)
            h = torch.mul(show, torch.tanh(c, out=bow), out=now)
        ctx.save_for_backward(weight, before, earlier, open_, bent)
        ctx.kept = kept
        return after

    @staticmethod
    @once_differentiable  # type: ignore[no-untyped-call,untyped-decorator,unused-ignore]
    def backward(ctx: Any, d_after: Tensor) -> tuple[Tensor | None, ...]:
        weight, before, earlier, open_, bent = ctx.saved_tensors
        kept, (length, n, size) = ctx.kept, before.shape
        put, keep, show, new = _split(open_, *[size] * 4)
        # How each gate answers to a change of c (show: of h), and c to one of h; for all steps at once.
        to_gates = [new * put * (1 - put), earlier * keep * (1 - keep), bent * show * (1 - show), put * (1 - new * new)]
        answers = torch.stack(to_gates, 2)
        to_c = show * (1 - bent * bent)
        flows = torch.empty_like(answers)  # [L, B, 4, H] back to what the weight puts out
        onward = keep if kept is None else keep * kept
        d_c = torch.zeros_like(before)
        parts = answers, answers[:, :, 2], flows, flows[:, :, 2], flows.flatten(2), to_c, onward, d_c, d_c[:, :, None]
        steps = list(
            zip(
                d_after.unbind(),
                *(column.unbind() for column in parts),
                [None] * length if kept is None else kept.unbind(),
                strict=True,
            )
        )
        carried_h, carried_c = torch.zeros_like(before[0]), torch.zeros_like(before[0])
        for at_h, answer, answer_show, flow, flow_show, flat, bends, passes, at_c, wide, lasts in reversed(steps):
            d_h = at_h + carried_h
            torch.addcmul(carried_c, d_h, bends, out=at_c)
            torch.mul(answer, wide, out=flow)
            torch.mul(answer_show, d_h, out=flow_show)
            carried_h = torch.mm(flat, weight)
            if lasts is not None:
                carried_h *= lasts
            carried_c = at_c * passes
        flat = flows.view(length * n, -1)
        return flows.flatten(2), flat.T @ before.flatten(0, 1), None, None
