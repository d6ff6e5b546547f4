"""Action distributions as pure functions of tensors, over any mix of heads; masks are an argument, not a subclass.

``params`` [B, P] are the network's outputs (logits or means), ``log_std`` [G] belongs to the Gaussian columns,
``masks`` [B, A] are booleans, ``noise`` [B, D] is all the randomness a sample needs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from corral.core.actions import Head, by_head

__all__ = ["ActionLikelihood", "divergence", "likelihood", "masked_logits", "mode", "sample"]

FORBIDDEN = -1e30
"""Logit of a masked action: its probability is exactly 0, and 0 x log 0 stays 0 where -inf would give NaN."""
_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


class ActionLikelihood(NamedTuple):
    """Log-probability of given actions and entropy of their distribution, both [B]."""

    log_probs: Tensor
    entropy: Tensor


def masked_logits(logits: Tensor, mask: Tensor | None) -> Tensor:
    """Categorical logits [B, n] with forbidden choices [B, n] pushed to probability 0."""
    return logits if mask is None else torch.where(mask, logits, FORBIDDEN)


def masked_bernoulli(logits: Tensor, mask: Tensor | None) -> Tensor:
    """Bernoulli logits [B, n] with (0 allowed, 1 allowed) pairs [B, 2n] applied."""
    if mask is None:
        return logits
    zero, one = mask.reshape(len(mask), -1, 2).unbind(-1)
    return torch.where(one, torch.where(zero, logits, -FORBIDDEN), FORBIDDEN)


def sample(heads: Sequence[Head], params: Tensor, log_std: Tensor, masks: Tensor | None, noise: Tensor) -> Tensor:
    """Actions [B, D], by inverting each head's distribution at the noise."""
    columns = []
    for head, logits, mask, std in by_head(heads, params, log_std, masks):
        drawn = noise[:, head.actions]
        if head.kind == "categorical":
            cumulative = masked_logits(logits, mask).softmax(-1).cumsum(-1)
            # The first choice whose cumulative probability reaches noise x total: noise is never 0, so that choice
            # has a probability above 0, and a masked one cannot be drawn.
            choice = (cumulative < drawn * cumulative[:, -1:]).sum(-1, keepdim=True)
            columns.append(choice.clamp_(max=head.size - 1))
        elif head.kind == "bernoulli":
            columns.append((drawn <= masked_bernoulli(logits, mask).sigmoid()).to(logits.dtype))
        else:
            columns.append(logits + std.exp() * drawn)
    return _join(columns, heads)


def mode(heads: Sequence[Head], params: Tensor, masks: Tensor | None) -> Tensor:
    """The most likely actions [B, D]."""
    columns = []
    for head, logits, mask, _ in by_head(heads, params, params.new_zeros(0), masks):
        if head.kind == "categorical":
            columns.append(masked_logits(logits, mask).argmax(-1, keepdim=True))
        elif head.kind == "bernoulli":
            columns.append((masked_bernoulli(logits, mask) > 0).to(logits.dtype))
        else:
            columns.append(logits)
    return _join(columns, heads)


def likelihood(
    heads: Sequence[Head], params: Tensor, log_std: Tensor, actions: Tensor, masks: Tensor | None
) -> ActionLikelihood:
    """How likely ``actions`` [B, D] are, and how undecided the policy is."""
    log_probs, entropies = [], []
    for head, logits, mask, std in by_head(heads, params, log_std, masks):
        taken = actions[:, head.actions]
        if head.kind == "categorical":
            log_p = masked_logits(logits, mask).log_softmax(-1)
            log_probs.append(log_p.gather(-1, taken.long()).squeeze(-1))
            entropies.append(-(log_p.exp() * log_p).sum(-1))
        elif head.kind == "bernoulli":
            signed = masked_bernoulli(logits, mask)
            log_one, log_zero = torch.nn.functional.logsigmoid(signed), torch.nn.functional.logsigmoid(-signed)
            log_probs.append(torch.where(taken > 0.5, log_one, log_zero).sum(-1))
            entropies.append(-(log_one.exp() * log_one + log_zero.exp() * log_zero).sum(-1))
        else:
            z = (taken - logits) * (-std).exp()
            log_probs.append((-0.5 * z * z - std - _HALF_LOG_2PI).sum(-1))
            entropies.append((0.5 + _HALF_LOG_2PI + std).sum(-1).expand(logits.shape[0]))
    return ActionLikelihood(_sum(log_probs), _sum(entropies))


def divergence(
    heads: Sequence[Head],
    params: Tensor,
    log_std: Tensor,
    reference: Tensor,
    reference_log_std: Tensor,
    masks: Tensor | None,
) -> Tensor:
    """KL(reference || policy) [B], given the parameters [B, P] and deviations of both."""
    divergences = []
    pairs = zip(
        by_head(heads, params, log_std, masks), by_head(heads, reference, reference_log_std, masks), strict=True
    )
    for (head, logits, mask, std), (_, fixed, _, fixed_std) in pairs:
        if head.kind == "categorical":
            log_p, log_r = masked_logits(logits, mask).log_softmax(-1), masked_logits(fixed, mask).log_softmax(-1)
            divergences.append((log_r.exp() * (log_r - log_p)).sum(-1))
        elif head.kind == "bernoulli":
            signed, wanted = masked_bernoulli(logits, mask), masked_bernoulli(fixed, mask)
            for sign in (1, -1):
                log_p = torch.nn.functional.logsigmoid(sign * signed)
                log_r = torch.nn.functional.logsigmoid(sign * wanted)
                divergences.append((log_r.exp() * (log_r - log_p)).sum(-1))
        else:
            ratio, z = (2 * (fixed_std - std)).exp(), (logits - fixed) * (-std).exp()
            divergences.append((std - fixed_std + 0.5 * (ratio + z * z) - 0.5).sum(-1))
    return _sum(divergences)


def _join(columns: list[Tensor], heads: Sequence[Head]) -> Tensor:
    dtype = torch.float32 if any(head.kind == "gaussian" for head in heads) else torch.int64
    return columns[0].to(dtype) if len(columns) == 1 else torch.cat([column.to(dtype) for column in columns], -1)


def _sum(terms: list[Tensor]) -> Tensor:
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total
