"""``distributions`` in numpy, for processes without torch, with the gradients that autograd would give.

The same conventions: ``params`` [B, P] logits or means, ``log_std`` [G], ``masks`` [B, A], ``noise`` [B, D].
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from corral.core.actions import Head, split_by_head

__all__ = ["Drawn", "Likelihood", "Reference", "add_divergence", "draw", "gradient", "likelihood", "mode"]

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]
Flags = npt.NDArray[np.bool_]
FORBIDDEN = np.float32(-1e30)
"""Logit of a masked action: its probability is exactly 0, and 0 x log 0 stays 0 where -inf would give NaN."""
_HALF_LOG_2PI = np.float32(0.5 * math.log(2 * math.pi))
_HALF, _ONE = np.float32(0.5), np.float32(1)
_FEW = 6


class Drawn(NamedTuple):
    """Sampled actions [B, D] and their log-probabilities [B]."""

    actions: Array
    log_probs: Floats


class _HeadLikelihood(NamedTuple):
    """What the gradient of one head needs again."""

    log_p: Floats  # categorical: [B, n] log-probabilities; Bernoulli: masked logits; Gaussian: z scores
    p: Floats  # probabilities; Gaussian: 1 / deviation
    entropy: Floats  # [B], of this head
    taken: Array


class Likelihood(NamedTuple):
    """Log-probability of given actions and entropy of their distribution, both [B]."""

    log_probs: Floats
    entropy: Floats
    parts: list[_HeadLikelihood]


class Reference(NamedTuple):
    """Another policy's distribution for the same rows."""

    params: Floats  # [B, P]
    log_std: Floats  # [G]


def draw(heads: Sequence[Head], params: Floats, log_std: Floats, masks: Flags | None, noise: Floats) -> Drawn:
    """Sample by inverting each head's distribution at the noise."""
    columns, log_probs = [], []
    rows = np.arange(len(params))
    for head, logits, mask, std in split_by_head(heads, params, log_std, masks):
        drawn = noise[:, head.actions]
        if head.kind == "categorical":
            shifted = _masked(logits, mask)
            shifted = shifted - np.maximum.reduce(shifted, axis=1, keepdims=True)
            cumulative = np.add.accumulate(np.exp(shifted), axis=1)
            total = cumulative[:, -1:]
            # The first choice whose cumulative probability reaches noise x total: noise is never 0, so that choice
            # has a probability above 0, and a masked one cannot be drawn; it is at most 1, so there is such a choice.
            choice = np.add.reduce(cumulative < drawn * total, axis=1, dtype=np.int64)
            columns.append(choice[:, None])
            log_probs.append(shifted[rows, choice] - np.log(total[:, 0]))
        elif head.kind == "bernoulli":
            signed = _masked_bernoulli(logits, mask)
            chosen = drawn <= _sigmoid(signed)
            columns.append(chosen)
            log_probs.append(_log_sigmoid(np.where(chosen, signed, -signed)).sum(axis=1))
        else:
            columns.append(logits + np.exp(std) * drawn)
            log_probs.append((-_HALF * drawn * drawn - std - _HALF_LOG_2PI).sum(axis=1))
    return Drawn(_join(columns, heads), _sum(log_probs))


def mode(heads: Sequence[Head], params: Floats, masks: Flags | None) -> Array:
    """The most likely actions [B, D]."""
    columns: list[Array] = []
    for head, logits, mask, _ in split_by_head(heads, params, params[:0, 0], masks):
        if head.kind == "categorical":
            columns.append(_masked(logits, mask).argmax(axis=1)[:, None])
        elif head.kind == "bernoulli":
            columns.append(_masked_bernoulli(logits, mask) > 0)
        else:
            columns.append(logits)
    return _join(columns, heads)


def likelihood(
    heads: Sequence[Head], params: Floats, log_std: Floats, actions: Array, masks: Flags | None
) -> Likelihood:
    """How likely ``actions`` [B, D] are, and how undecided the policy is."""
    parts, log_probs = [], []
    rows = np.arange(len(params))
    for head, logits, mask, std in split_by_head(heads, params, log_std, masks):
        taken = actions[:, head.actions]
        if head.kind == "categorical":
            log_p = _masked(logits, mask)
            log_p = log_p - _max(log_p)
            p = np.exp(log_p)
            total = _sum_of_rows(p)[:, None]
            log_p -= np.log(total)
            p /= total
            taken = taken[:, 0].astype(np.int64)
            log_probs.append(log_p[rows, taken])
            parts.append(_HeadLikelihood(log_p, p, -_sum_of_rows(p * log_p), taken))
        elif head.kind == "bernoulli":
            signed = _masked_bernoulli(logits, mask)
            p, log_one, log_zero = _sigmoid(signed), _log_sigmoid(signed), _log_sigmoid(-signed)
            log_probs.append(np.where(taken > _HALF, log_one, log_zero).sum(axis=1))
            parts.append(_HeadLikelihood(signed, p, -(p * log_one + (_ONE - p) * log_zero).sum(axis=1), taken))
        else:
            inverse = np.exp(-std)
            z = (taken - logits) * inverse
            log_probs.append((-_HALF * z * z - std - _HALF_LOG_2PI).sum(axis=1))
            entropy = np.full(len(z), (_HALF + _HALF_LOG_2PI + std).sum(), np.float32)
            parts.append(_HeadLikelihood(z, inverse, entropy, taken))
    return Likelihood(_sum(log_probs), _sum([part.entropy for part in parts]), parts)


def gradient(
    heads: Sequence[Head], known: Likelihood, d_log_probs: Floats, d_entropy: float, d_params: Floats, d_log_std: Floats
) -> None:
    """Write the gradients of params [B, P] and log_std [G], given those of the log-probabilities and every entropy."""
    weight, bonus, rows, gaussian = d_log_probs[:, None], np.float32(d_entropy), np.arange(len(d_log_probs)), 0
    for head, part in zip(heads, known.parts, strict=True):
        out = d_params[:, head.params]
        if head.kind == "categorical":
            np.multiply(part.p, -weight, out=out)
            out[rows, part.taken] += d_log_probs
            if bonus:  # of the entropy: -p (log p + entropy)
                out -= bonus * part.p * (part.log_p + part.entropy[:, None])
        elif head.kind == "bernoulli":
            np.multiply(part.taken - part.p, weight, out=out)
            if bonus:
                out -= bonus * part.log_p * part.p * (_ONE - part.p)
        else:
            np.multiply(part.log_p * part.p, weight, out=out)
            d_std = ((part.log_p * part.log_p - _ONE) * weight).sum(axis=0) + bonus * np.float32(len(rows))
            d_log_std[gaussian : gaussian + head.size] = d_std
            gaussian += head.size


def add_divergence(
    heads: Sequence[Head],
    known: Likelihood,
    params: Floats,
    log_std: Floats,
    masks: Flags | None,
    reference: Reference,
    weight: float,
    d_params: Floats,
    d_log_std: Floats,
) -> Floats:
    """KL(reference || policy) [B]; ``weight`` times its gradients are added to those of params and log_std."""
    divergences, scale, gaussian = [], np.float32(weight), 0
    pairs = zip(
        split_by_head(heads, params, log_std, masks),
        split_by_head(heads, reference.params, reference.log_std, masks),
        strict=True,
    )
    for ((head, means, mask, std), (_, fixed, _, fixed_std)), part in zip(pairs, known.parts, strict=True):
        out = d_params[:, head.params]
        if head.kind == "categorical":
            log_r = _masked(fixed, mask)
            log_r = log_r - _max(log_r)
            log_r -= np.log(_sum_of_rows(np.exp(log_r)))[:, None]
            r = np.exp(log_r)
            divergences.append(_sum_of_rows(r * (log_r - part.log_p)))
            out += scale * (part.p - r)
        elif head.kind == "bernoulli":
            signed, wanted = part.log_p, _masked_bernoulli(fixed, mask)
            r = _sigmoid(wanted)
            of_one = r * (_log_sigmoid(wanted) - _log_sigmoid(signed))
            of_zero = (_ONE - r) * (_log_sigmoid(-wanted) - _log_sigmoid(-signed))
            divergences.append((of_one + of_zero).sum(axis=1))
            out += scale * (part.p - r)
        else:
            z, ratio = (means - fixed) * part.p, np.exp(np.float32(2) * (fixed_std - std))
            spread = ratio + z * z
            divergences.append((std - fixed_std + _HALF * spread - _HALF).sum(axis=1))
            out += scale * z * part.p
            d_log_std[gaussian : gaussian + head.size] += scale * (_ONE - spread).sum(axis=0)
            gaussian += head.size
    return _sum(divergences)


def _max(rows: Floats) -> Floats:
    """The largest of each row, [B, 1]; of few columns, one against the other is faster than a reduction."""
    if rows.shape[1] > _FEW:
        return np.asarray(rows.max(axis=1, keepdims=True))
    largest = rows[:, :1]
    for column in range(1, rows.shape[1]):
        largest = np.maximum(largest, rows[:, column : column + 1])
    return largest


def _sum_of_rows(rows: Floats) -> Floats:
    if rows.shape[1] > _FEW:
        return np.asarray(rows.sum(axis=1))
    total = rows[:, 0]
    for column in range(1, rows.shape[1]):
        total = total + rows[:, column]
    return total


def _masked(logits: Floats, mask: Flags | None) -> Floats:
    return logits if mask is None else np.where(mask, logits, FORBIDDEN)


def _masked_bernoulli(logits: Floats, mask: Flags | None) -> Floats:
    if mask is None:
        return logits
    zero, one = mask[:, 0::2], mask[:, 1::2]
    return np.where(one, np.where(zero, logits, -FORBIDDEN), FORBIDDEN)


def _sigmoid(x: Floats) -> Floats:
    with np.errstate(over="ignore"):
        return _ONE / (_ONE + np.exp(-x))


def _log_sigmoid(x: Floats) -> Floats:
    return np.minimum(x, 0) - np.log1p(np.exp(-np.abs(x)))


def _join(columns: Sequence[Array], heads: Sequence[Head]) -> Array:
    dtype = np.float32 if any(head.kind == "gaussian" for head in heads) else np.int64
    joined = columns[0] if len(columns) == 1 else np.concatenate(columns, axis=1)
    return joined.astype(dtype, copy=False)


def _sum(terms: Sequence[Floats]) -> Floats:
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total
