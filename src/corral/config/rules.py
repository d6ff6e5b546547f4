"""Sequences: the steps of one env that a policy with a memory learns from together."""

from __future__ import annotations

import math
from typing import Protocol

from corral.config.values import Recurrent

__all__ = ["nearest_divisors", "settle_sequences"]

_LONGEST, _SHORTEST = 32, 8
"""Of what is chosen without being asked."""


class _Settings(Protocol):
    """What of a config decides them."""

    policy: str | None
    recurrent: Recurrent
    recurrent_size: int
    sequence_length: int | None
    n_steps: int
    compile: bool
    expert: str | None

    @property
    def minibatch_size(self) -> int: ...


def divisors(total: int) -> list[int]:
    """All numbers that divide ``total``, the smallest first."""
    return sorted({d for i in range(1, math.isqrt(total) + 1) if total % i == 0 for d in (i, total // i)})


def nearest_divisors(wanted: int, total: int) -> str:
    """The divisors of ``total`` next to ``wanted``, in words."""
    fitting = divisors(total)
    below = max((d for d in fitting if d < wanted), default=None)
    above = min((d for d in fitting if d > wanted), default=None)
    return " and ".join(str(d) for d in (below, above) if d is not None)


def settle_sequences(config: _Settings) -> int | None:
    """Steps in a sequence, None without a memory; a ValueError says what does not go together."""
    c, kind, length = config, config.recurrent, config.sequence_length
    if kind == "none":
        asked = {"sequence_length": length is not None, "recurrent_size": c.recurrent_size != 128}
        if (name := next((name for name, given in asked.items() if given), None)) is not None:
            raise ValueError(
                f"{name} {getattr(c, name)} is of no use without recurrent; give that too, or leave it out"
            )
        return None
    for name, given in {"policy": c.policy, "compile": c.compile, "expert": c.expert}.items():
        if given:
            why = {
                "policy": "a network of one's own is not told of a memory",
                "compile": "a loop over steps does not compile well",
                "expert": "imitation learns from single steps",
            }[name]
            raise ValueError(f"recurrent {kind} cannot be had with {name} {given}: {why}; leave one out")
    common = math.gcd(c.n_steps, c.minibatch_size)
    fit = divisors(common)
    sizes = f"n_steps {c.n_steps} and the {c.minibatch_size} steps of a minibatch"
    if length is not None:
        if length not in fit:
            near = sorted(sorted(fit, key=lambda d: abs(d - length))[:3])
            raise ValueError(
                f"sequence_length {length} does not divide both {sizes}; those that do: {', '.join(map(str, near))}"
            )
        return length
    chosen = max(d for d in fit if d <= _LONGEST)
    if chosen < min(_SHORTEST, c.n_steps):
        raise ValueError(
            f"recurrent {kind}: {sizes} have only sequences of {chosen} in common, through which little memory can be "
            f"learned; choose multiples of {_LONGEST}, or say sequence_length {chosen} if it is meant"
        )
    return chosen
