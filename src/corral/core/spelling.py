"""Words that were nearly right."""

from __future__ import annotations

import difflib
from typing import Any

__all__ = ["did_you_mean"]

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
