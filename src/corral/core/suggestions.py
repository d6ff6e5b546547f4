"""Parts of error messages: the nearest known name, and a short form of the value that was given."""

from __future__ import annotations

import difflib
import reprlib
from typing import Any

from corral.core.errors import one_line

__all__ = ["did_you_mean", "short_repr"]

_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = 80
_REPR.maxlevel = 3

_SYNONYMS = {
    "lr": "learning_rate",
    "num_envs": "n_envs",
    "steps": "timesteps",
    "total_timesteps": "timesteps",
    "epochs": "n_epochs",
    "minibatch_size": "batch_size",
    "entropy_coef": "ent_coef",
    "hidden_sizes": "net_arch",
}
"""Names of settings in other libraries, with Corral's name."""


def did_you_mean(word: str, known: Any) -> str:
    """Return `` (did you mean 'x'?)`` with the closest of the ``known`` words; an empty text if none is close."""
    synonym = _SYNONYMS.get(word.lstrip("-").replace("-", "_"), "")
    if word.startswith("--"):
        synonym = f"--{synonym.replace('_', '-')}"
    nearest = [synonym] if synonym in known else difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f" (did you mean {nearest[0]!r}?)" if nearest else ""


def short_repr(value: Any) -> str:
    """Return the ``repr`` of a value as one line, cut off where it is long."""
    try:
        return one_line(_REPR.repr(value))
    except (ValueError, RecursionError):  # Python does not format integers of more than 4,300 digits
        return f"(a very long {type(value).__name__})"
