"""Words in error messages: those that were nearly right, and what was given instead."""

from __future__ import annotations

import difflib
import reprlib
from typing import Any

from corral.core.errors import one_line

__all__ = ["did_you_mean", "short_repr"]

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80
_SHORT.maxlevel = 3

_ELSEWHERE = {
    "lr": "learning_rate",
    "num_envs": "n_envs",
    "steps": "timesteps",
    "total_timesteps": "timesteps",
    "epochs": "n_epochs",
    "minibatch_size": "batch_size",
    "entropy_coef": "ent_coef",
    "hidden_sizes": "net_arch",
}
"""What other libraries call it."""


def did_you_mean(word: str, known: Any) -> str:
    """`` (did you mean …?)`` with the closest of the known words, or nothing."""
    flag = "--" if word.startswith("--") else ""
    usual = _ELSEWHERE.get(word.lstrip("-").replace("-", "_"), "")
    usual = flag + usual.replace("_", "-") if flag else usual
    close = [usual] if usual in known else difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f" (did you mean {close[0]!r}?)" if close else ""


def short_repr(value: Any) -> str:
    """What was given, for a message: one line, cut off where it is long."""
    try:
        return one_line(_SHORT.repr(value))
    except (ValueError, RecursionError):  # Python writes no integer of more than 4,300 digits
        return f"(a very long {type(value).__name__})"
