"""Action distributions as pure functions of tensors, over any mix of heads; masks are an argument, not a subclass.

``heads`` are the independent factors of an action (see ``core.actions``). ``params`` [B, P] are the network's outputs:
logits of categorical and Bernoulli heads, means of Gaussian ones. ``log_std`` [G] are the log standard deviations of
the Gaussian columns. ``masks`` [B, A] are booleans, True where a choice is allowed. ``noise`` [B, D] is all the
randomness that a sample needs: uniform in (0, 1] for discrete columns, standard normal for Gaussian ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from corral.core.actions import Head, split_by_head

__all__ = ["ActionLikelihood", "kl_divergence", "likelihood", "masked_logits", "mode", "sample"]

FORBIDDEN = -1e30
"""Logit of a masked action: its probability is exactly 0, and 0 x log 0 stays 0 where -inf would give NaN."""
_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


class ActionLikelihood(NamedTuple):
    """Log-probability of given actions and entropy of their distribution, both [B]."""

    log_probs: Tensor
    entropy: Tensor


def masked_logits(logits: Tensor, mask: Tensor | None) -> Tensor:
    """Return categorical logits [B, n] in which choices that ``mask`` [B, n] forbids have probability 0.

    Invalid action masking: Huang and Ontañón 2022, arXiv:2006.14171.
    """
    return logits if mask is None else torch.where(mask, logits, FORBIDDEN)


def masked_bernoulli(logits: Tensor, mask: Tensor | None) -> Tensor:
    """Return Bernoulli logits [B, n] after a mask [B, 2n] of pairs (0 is allowed, 1 is allowed)."""
    if mask is None:
        return logits
    allows_zero, allows_one = mask.reshape(len(mask), -1, 2).unbind(-1)  # each [B, n]
    return torch.where(allows_one, torch.where(allows_zero, logits, -FORBIDDEN), FORBIDDEN)


def sample(heads: Sequence[Head], params: Tensor, log_std: Tensor, masks: Tensor | None, noise: Tensor) -> Tensor:
    """Return actions [B, D] as a function of the noise; a categorical head inverts its cumulative distribution."""
    columns = []
    for head, outputs, mask, head_log_std in split_by_head(heads, params, log_std, masks):
        head_noise = noise[:, head.actions]
        if head.kind == "categorical":
            cumulative = masked_logits(outputs, mask).softmax(-1).cumsum(-1)
            # The first choice whose cumulative probability reaches noise x total: noise is never 0, so that choice
            # has a probability above 0, and a masked one cannot be drawn.
            choice = (cumulative < head_noise * cumulative[:, -1:]).sum(-1, keepdim=True)
            columns.append(choice.clamp_(max=head.size - 1))
        elif head.kind == "bernoulli":
            columns.append((head_noise <= masked_bernoulli(outputs, mask).sigmoid()).to(outputs.dtype))
        else:
            columns.append(outputs + head_log_std.exp() * head_noise)
    return _join(columns, heads)


def mode(heads: Sequence[Head], params: Tensor, masks: Tensor | None) -> Tensor:
    """Return the most likely actions [B, D]."""
    columns = []
    for head, outputs, mask, _ in split_by_head(heads, params, params.new_zeros(0), masks):
        if head.kind == "categorical":
            columns.append(masked_logits(outputs, mask).argmax(-1, keepdim=True))
        elif head.kind == "bernoulli":
            columns.append((masked_bernoulli(outputs, mask) > 0).to(outputs.dtype))
        else:
            columns.append(outputs)
    return _join(columns, heads)


def likelihood(
    heads: Sequence[Head], params: Tensor, log_std: Tensor, actions: Tensor, masks: Tensor | None
) -> ActionLikelihood:
    """Return the log-probability [B] of ``actions`` [B, D] and the entropy [B] of the policy."""
    log_probs, entropies = [], []
    for head, outputs, mask, head_log_std in split_by_head(heads, params, log_std, masks):
        taken = actions[:, head.actions]
        if head.kind == "categorical":
            log_p = masked_logits(outputs, mask).log_softmax(-1)
            log_probs.append(log_p.gather(-1, taken.long()).squeeze(-1))
            entropies.append(-(log_p.exp() * log_p).sum(-1))
        elif head.kind == "bernoulli":
            logits = masked_bernoulli(outputs, mask)
            log_one, log_zero = logsigmoid(logits), logsigmoid(-logits)
            log_probs.append(torch.where(taken > 0.5, log_one, log_zero).sum(-1))
            entropies.append(-(log_one.exp() * log_one + log_zero.exp() * log_zero).sum(-1))
        else:
            z = (taken - outputs) * (-head_log_std).exp()
            log_probs.append((-0.5 * z * z - head_log_std - _HALF_LOG_2PI).sum(-1))
            entropies.append((0.5 + _HALF_LOG_2PI + head_log_std).sum(-1).expand(outputs.shape[0]))
    return ActionLikelihood(_sum(log_probs), _sum(entropies))


def kl_divergence(
    heads: Sequence[Head],
    params: Tensor,
    log_std: Tensor,
    reference: Tensor,
    reference_log_std: Tensor,
    masks: Tensor | None,
) -> Tensor:
    """Return KL(reference || policy) [B] in closed form, given the parameters [B, P] and deviations of both."""
    divergences = []
    pairs = zip(
        split_by_head(heads, params, log_std, masks),
        split_by_head(heads, reference, reference_log_std, masks),
        strict=True,
    )
    for (head, outputs, mask, head_log_std), (_, ref_outputs, _, ref_log_std) in pairs:
        if head.kind == "categorical":
            log_p = masked_logits(outputs, mask).log_softmax(-1)
            log_r = masked_logits(ref_outputs, mask).log_softmax(-1)
            divergences.append((log_r.exp() * (log_r - log_p)).sum(-1))
        elif head.kind == "bernoulli":
            logits, ref_logits = masked_bernoulli(outputs, mask), masked_bernoulli(ref_outputs, mask)
            for sign in (1, -1):  # the outcomes 1 and 0
                log_p, log_r = logsigmoid(sign * logits), logsigmoid(sign * ref_logits)
                divergences.append((log_r.exp() * (log_r - log_p)).sum(-1))
        else:  # Gaussians with means ``outputs`` and ``ref_outputs``
            variance_ratio = (2 * (ref_log_std - head_log_std)).exp()
            z = (outputs - ref_outputs) * (-head_log_std).exp()
            divergences.append((head_log_std - ref_log_std + 0.5 * (variance_ratio + z * z) - 0.5).sum(-1))
    return _sum(divergences)


def _join(columns: list[Tensor], heads: Sequence[Head]) -> Tensor:
    """Return the heads' columns side by side [B, D]: floats if any head is continuous, else integers."""
    dtype = torch.float32 if any(head.kind == "gaussian" for head in heads) else torch.int64
    return columns[0].to(dtype) if len(columns) == 1 else torch.cat([column.to(dtype) for column in columns], -1)


def _sum(terms: list[Tensor]) -> Tensor:
    """Return the sum over the heads, in order: heads are independent, so their log-probabilities add up."""
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total
